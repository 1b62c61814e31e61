"""Histories and evaluation sets: choosing users keeps what belongs to each of them together."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fullrank.core.jagged import Jagged
from fullrank.data.events.prepare import Columns, Prepare, prepare
from fullrank.data.events.store import Store
from fullrank.data.histories import UNKNOWN, EvalSet, Histories, UserKeys, user_keys
from tests.data.test_splits import events

ITEMS = np.array([5, 6, 7, 8, 9, 4, 3])
KNOWN = Histories(
    Jagged(ITEMS, np.array([0, 3, 5]), np.array([2, 4, 5])), np.arange(100, 107), users=np.array([2, 4, 9])
)
ASKED = EvalSet(KNOWN, Jagged(ITEMS, np.array([2, 4, 5]), np.array([3, 5, 7])))


@pytest.mark.parametrize("rows", [np.array([2, 0]), np.array([True, False, True]), slice(1, None), slice(0, 0)])
def test_taking_users_keeps_their_items_times_and_targets(rows: np.ndarray | slice) -> None:
    order = np.arange(3)[rows].tolist()
    taken = ASKED.take(rows)
    assert len(taken) == len(taken.histories) == len(order)
    for found, whole in (
        (taken.users, [2, 4, 9]),
        (taken.histories.items, [[5, 6], [8], []]),
        (taken.histories.seconds, [[100, 101], [103], []]),
        (taken.targets, [[7], [9], [4, 3]]),
        (taken.next_items, [7, 9, 4]),
        (taken.histories.lengths, [2, 1, 0]),
    ):
        assert [one.tolist() for one in found] == [whole[i] for i in order]


def test_histories_without_times_or_users() -> None:
    bare = Histories(KNOWN.items).take(np.array([1]))
    assert bare.times is None and bare.seconds is None and bare.users is None and len(bare) == 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    rows = [(user, item, 10 * user + item) for user in range(3) for item in range(2 + user)]
    return prepare(events(*rows), tmp_path / "s")


def test_all_events_of_a_store(store: Store) -> None:
    rows = [store.catalog.external(row).to_list() for row in store.events.items]
    assert rows == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [row.tolist() for row in store.events.seconds] == [[0, 1], [10, 11, 12], [20, 21, 22, 23]]


def test_times_are_unknown_where_the_store_has_none(tmp_path: Path) -> None:
    store = prepare(events((1, 1, 1), (1, 2, 2), (1, 3, 3)), tmp_path / "s", spec=Prepare(columns=Columns(time=None)))
    assert store.events.times is None and store.eval_set("test").histories.seconds is None


@pytest.mark.parametrize("last", [[7], [7, 9]], ids=["one target each", "several"])
def test_targets_in_the_history_of_their_user_are_counted(last: list[int]) -> None:
    """A history may hold its target twice, and a hit may stand first in it, right behind another user's."""
    histories = Jagged.from_lists([[5, 1, 1], [7, 2], [], [3, 1], [7]], np.int32)
    users = EvalSet(Histories(histories), Jagged.from_lists([[1], [7], [7], [9], last], np.int32))
    assert [users.repeated_targets(chunk) for chunk in (1, 2, 9)] == [3, 3, 3]


BITS = 2**64


def key(text: str) -> int:
    """The same in Python's whole numbers."""
    found = sum((byte + 1) * pow(0x100000001B3, i + 1, BITS) for i, byte in enumerate(text.encode())) + len(
        text.encode()
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = ((found % BITS) ^ ((found % BITS) >> shift)) * factor % BITS
    return (found ^ (found >> 31)) >> 2


def test_equals_the_polynomial() -> None:
    ids = ["", "a", "b", "aa", "user-17", "ünïcode", "x" * 200, "\0", "\0\0"]
    assert user_keys(pl.Series(ids)).tolist() == [key(one) for one in ids]
    assert len(set(user_keys(pl.Series(ids)).tolist())) == len(ids)


def test_numbers_are_their_text_and_missing_ids_are_nobody() -> None:
    assert user_keys(pl.Series([5, 77, None])).tolist() == [key("5"), key("77"), UNKNOWN]
    assert user_keys(pl.Series([], dtype=pl.String)).tolist() == user_keys(pl.Series([], dtype=pl.Int64)).tolist() == []


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt16, pl.Int32, pl.UInt32, pl.Int64, pl.UInt64])
def test_numbers_of_any_length_are_their_text(dtype: type[pl.DataType]) -> None:
    low, high = int(pl.select(dtype.min()).item()), int(pl.select(dtype.max()).item())  # type: ignore[attr-defined]
    edges = [sign * 10**digits + near for digits in range(20) for near in (-1, 0, 1) for sign in (-1, 1)]
    numbers = pl.Series([low, high, *(one for one in edges if low <= one <= high)], dtype=dtype)
    assert user_keys(numbers).tolist() == [key(str(one)) for one in numbers.to_list()]


def test_rows_of_a_table_are_filled_evenly() -> None:
    """20,000 users in 2,000 rows: ten each, give or take what chance does (Poisson)."""
    found = np.bincount(user_keys(pl.Series([f"user {i}" for i in range(20_000)])) % 2000, minlength=2000)
    assert found.min() >= 1 and found.max() <= 28 and abs(found.std() - 10**0.5) < 0.3


@pytest.mark.parametrize("rows", [np.array([3, 1]), np.array([True, False, True, False]), slice(1, 3)])
def test_some_of_them(rows: object) -> None:
    whole = np.array([10, 11, 12, 13])
    keys = UserKeys(lambda: whole)
    assert keys.take(rows).numbers().tolist() == whole[rows].tolist()  # type: ignore[arg-type, index]
    assert keys.take(rows).take(slice(0, 1)).numbers().tolist() == whole[rows][:1].tolist()  # type: ignore[arg-type, index]
