"""User keys: of the id alone, spread over all rows of a table, the same of a number and of its text."""

import numpy as np
import polars as pl
import pytest

from fullrank.data.user_keys import UNKNOWN, UserKeys, user_keys

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
