"""User keys: a number for each user made of the id alone, the same in every store, request and process.

A model reads it where it keeps no vector for each user (TIGER's user token). It is a polynomial in the bytes of the id
as text, sum_i (byte_i + 1) p^(i+1) modulo 2^64, of all ids at once; then the finaliser of splitmix64, whose low bits
depend on all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.jagged import Rows

PRIME = np.uint64(0x100000001B3)
UNKNOWN = -1
"""The key of a user without an id."""


def user_keys(ids: pl.Series) -> Int[np.ndarray, "U"]:
    """Keys from 0 to 2^62 - 1; a whole number has that of its text, a missing id `UNKNOWN`."""
    text = ids.cast(pl.String)
    known = text.is_not_null().to_numpy()
    text = text.fill_null("")
    sizes = text.str.len_bytes().to_numpy().astype(np.int64)
    letters = np.frombuffer("".join(text.to_list()).encode(), np.uint8).astype(np.uint64)
    ends = np.cumsum(sizes)
    with np.errstate(over="ignore"):  # modulo 2^64 on purpose
        powers = np.cumprod(np.full(max(int(sizes.max(initial=0)), 1), PRIME))
        place = np.arange(len(letters)) - np.repeat(ends - sizes, sizes)
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum((letters + np.uint64(1)) * powers[place])])
        mixed = running[ends] - running[ends - sizes] + sizes.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return np.where(known, (mixed >> np.uint64(2)).astype(np.int64), UNKNOWN)


@dataclass(frozen=True)
class UserKeys:
    """The keys of some users, made when a model asks for them."""

    make: Callable[[], Int[np.ndarray, "n"]]
    rows: Rows | None = None
    """Which of them; None is all."""

    def take(self, rows: Rows) -> UserKeys:
        """Those of some of these users."""
        if self.rows is None:
            return UserKeys(self.make, rows)
        numbered = isinstance(self.rows, np.ndarray) and self.rows.dtype != bool
        own = self.rows if numbered else np.arange(len(self.make()))[self.rows]
        return UserKeys(self.make, own[rows])  # type: ignore[index]

    def numbers(self) -> Int[np.ndarray, "U"]:
        made = self.make()
        return made if self.rows is None else made[self.rows]
