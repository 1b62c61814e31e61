"""Histories of users: their events, oldest first, as ragged arrays of item ids and times; and keys of users.

A key is a number made of the user's id alone, the same in every store, request and process. A model
reads it where it keeps no vector for each user (TIGER's user token). It is a polynomial in the
bytes of the id as text, sum_i (byte_i + 1) p^(i+1) modulo 2^64, of all ids at once; then the
finaliser of splitmix64, whose low bits depend on all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import polars as pl
from jaxtyping import Int, Integer, UInt64

from fullrank.core.jagged import Jagged, Rows
from fullrank.core.parted import Flat
from fullrank.core.random import finalise, shifted
from fullrank.data.features import HistoryFeatures
from fullrank.data.values import NATIVE, joined

OfUsers = Int[np.ndarray, "U"]
"""A number for each user."""
MANY_REPEATS = 0.01
"""Share of targets in their own users' histories above which it is noted, and validation ranks the history."""


@dataclass(frozen=True)
class Histories:
    """The events of users. Stores give them, requests become them, models and metrics read them."""

    items: Jagged
    """[U rows] item ids."""
    times: Int[Flat, "E"] | None = None
    """Seconds since 1970 beside `items.values`; None where unknown."""
    users: OfUsers | None = None
    """Rows of the users in their store, which a model sees as `Batch.rows`; None numbers them 0, 1, ..."""
    keys: UserKeys | None = None
    """Numbers made of the users' ids, for models that read them; None where the users are unknown."""
    features: HistoryFeatures | None = None
    """Features beside the items; None where there are none."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def lengths(self) -> OfUsers:
        """Events of each user."""
        return self.items.lengths

    @property
    def seconds(self) -> Jagged | None:
        """[U rows] times, where they are known."""
        return None if self.times is None else self.items.over(self.times)

    def take(self, rows: Rows) -> Histories:
        """Select users, in the order given."""
        users = None if self.users is None else self.users[rows]
        keys = None if self.keys is None else self.keys.take(rows)
        features = None if self.features is None else self.features.take(rows)
        return Histories(self.items.take(rows), self.times, users, keys, features)


@dataclass(frozen=True)
class EvalSet:
    """Users of a split: the history of each, and the items that they chose after it (the targets of an evaluation)."""

    histories: Histories
    targets: Jagged
    """[U rows] item ids, oldest first; they lie right behind the history, unless types of them were chosen."""
    types: OfUsers | None = None
    """The type of target of each user, by `evaluation.targets.Targets.known`; None where types are not told apart."""

    @property
    def users(self) -> OfUsers:
        """Rows of the store's users."""
        assert self.histories.users is not None
        return self.histories.users

    @cached_property
    def truth(self) -> Jagged:
        """[U rows] the distinct ids of each user's targets, which metrics read."""
        return self.targets.distinct()

    @property
    def next_items(self) -> OfUsers:
        """The item that each user chose next: the first of their targets."""
        return np.asarray(self.targets.values[self.targets.starts])

    def repeated_targets(self, chunk: int = 1 << 16) -> int:
        """Number of `truth` items in their own user's history: where lists exclude
        the history, none can be hit."""
        count = 0
        for low in range(0, len(self), chunk):
            users = self.take(slice(low, low + chunk))
            truth, seen = users.truth, users.histories.items
            items = seen.flat()
            if (truth.lengths == 1).all():  # one target each: no need to sort anything
                hits = np.flatnonzero(items == np.repeat(truth.flat(), seen.lengths))
                count += len(np.unique(np.searchsorted(seen.offsets, hits, side="right")))
                continue
            width = int(max(truth.values.max(initial=0), items.max(initial=0))) + 1
            count += int(np.isin(truth.keys(width), seen.keys(width)).sum())
        return count

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Rows) -> EvalSet:
        """Select users, in the order given."""
        return EvalSet(
            self.histories.take(rows), self.targets.take(rows), None if self.types is None else self.types[rows]
        )


@dataclass(frozen=True)
class UserKeys:
    """The keys of users, made when a model asks for them."""

    make: Callable[[], Int[np.ndarray, "n"]]
    rows: Rows | None = None
    """Which of the users; None is all."""

    def take(self, rows: Rows) -> UserKeys:
        """Select from these users."""
        if self.rows is None:
            return UserKeys(self.make, rows)
        if isinstance(self.rows, np.ndarray) and self.rows.dtype != bool:
            return UserKeys(self.make, self.rows[rows])
        return UserKeys(self.make, np.arange(len(self.make()))[self.rows][rows])

    def numbers(self) -> OfUsers:
        """The keys themselves."""
        keys = self.make()
        return keys if self.rows is None else keys[self.rows]


PRIME = np.uint64(0x100000001B3)
UNKNOWN = -1
"""The key of a user without an id."""


def user_keys(ids: pl.Series) -> OfUsers:
    """Keys from 0 to 2^62 - 1; a whole number has that of its text, a missing id `UNKNOWN`."""
    known = ids.is_not_null().to_numpy()
    with np.errstate(over="ignore"):  # modulo 2^64 on purpose
        if ids.dtype in NATIVE:
            mixed = _of_numbers(ids.fill_null(0).to_numpy())
        else:
            mixed = _of_text(ids.cast(pl.String).fill_null(""))
        mixed = finalise(mixed.view(np.int64))
    return np.where(known, shifted(mixed, 2), UNKNOWN)


def _of_text(text: pl.Series) -> UInt64[np.ndarray, "U"]:
    """The polynomial of each text, plus its length: a running sum over all bytes,
    differenced at the ends of texts."""
    sizes = text.str.len_bytes().to_numpy().astype(np.int64)
    letters = np.frombuffer(joined(text), np.uint8).astype(np.uint64)
    ends = np.cumsum(sizes)
    powers = np.cumprod(np.full(max(int(sizes.max(initial=0)), 1), PRIME))
    index = np.arange(len(letters)) - np.repeat(ends - sizes, sizes)  # of a byte within its text
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum((letters + np.uint64(1)) * powers[index])])
    return running[ends] - running[ends - sizes] + sizes.astype(np.uint64)


def _of_numbers(numbers: Integer[np.ndarray, "U"]) -> UInt64[np.ndarray, "U"]:
    """`_of_text` of the digits of whole numbers, by Horner's rule from the last
    digit on, four digits at a time."""
    negative = numbers < 0
    left = numbers.astype(np.uint64)
    left = np.where(negative, ~left + np.uint64(1), left)
    leading, power, digits, four = _digit_tables()
    total, sizes = np.zeros(len(left), np.uint64), negative.astype(np.uint64)
    while (longer := left >= _FOUR_DIGITS).any():  # a block of four digits each round; the first may have fewer
        rest = left // _FOUR_DIGITS
        total = np.where(longer, four[left - rest * _FOUR_DIGITS] + PRIME ** np.uint64(4) * total, total)
        left = np.where(longer, rest, left)
        sizes += np.where(longer, np.uint64(4), np.uint64(0))
    total = leading[left] + power[left] * total
    total = np.where(negative, np.uint64(ord("-") + 1) + PRIME * total, total)
    return PRIME * total + sizes + digits[left]


_FOUR_DIGITS = np.uint64(10_000)


@cache
def _digit_tables() -> tuple[UInt64[np.ndarray, "10000"], ...]:
    """Four tables of the numbers below 10,000: sum_i (digit_i + 1) p^i of the digits, p^(number of
    digits), the number of digits, and the sum of all four digits, leading zeros included.
    """
    numbers = np.arange(10_000, dtype=np.uint64)
    digits = np.searchsorted([10, 100, 1000], numbers, side="right") + 1
    sums = [np.zeros(10_000, np.uint64)]
    with np.errstate(over="ignore"):
        for size in range(4):  # a further digit, before the others
            digit = numbers // np.uint64(10**size) % np.uint64(10)
            sums.append(digit + np.uint64(ord("0") + 1) + PRIME * sums[-1])
        power = PRIME ** digits.astype(np.uint64)
    return np.choose(digits, sums), power, digits.astype(np.uint64), sums[-1]
