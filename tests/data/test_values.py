"""Ids, times and numbers: what is read as what, and how what cannot be read is refused."""

import datetime as dt

import numpy as np
import polars as pl
import pytest

from fullrank.data import values
from refusals import refused

NOON = int(dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC).timestamp())


@pytest.mark.parametrize(
    "text",
    [
        "2020-01-01T12:00:00",
        "2020-01-01 12:00:00",
        "2020-01-01 12:00",
        "2020-01-01T12:00Z",
        "2020-01-01T12:00:00.75Z",
        "2020-01-01T14:00:00+02:00",
        "2020-01-01T14:00:00.5+0200",
        "2020-01-01T03:30:00-08:30",
        " 2020-01-01T12:00:00z ",
    ],
)
def test_iso_strings_are_utc_seconds(text: str) -> None:
    assert values.seconds(pl.Series([text]), "t")[0].tolist() == [NOON]


def test_iso_formats_may_be_mixed() -> None:
    series = pl.Series(["2020-01-01", "2020-01-01T12:00:00Z", "2020-01-01 12:00:00"])
    assert values.seconds(series, "t")[0].tolist() == [NOON - 43_200, NOON, NOON]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_datetimes_of_every_unit(unit: str) -> None:
    series = pl.Series([dt.datetime(2020, 1, 1, 12), dt.datetime(1969, 12, 31, 23, 59, 59, 500_000)])
    seconds, key = values.seconds(series.cast(pl.Datetime(unit)), "t")  # type: ignore[arg-type]
    assert seconds.tolist() == [NOON, -1], "seconds round down, before 1970 too"
    assert key[1] < 0 < key[0]


def test_zoned_datetimes_and_dates() -> None:
    zoned = pl.Series([dt.datetime(2020, 1, 1, 12)]).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
    assert values.seconds(zoned, "t")[0].tolist() == [NOON]
    assert values.seconds(pl.Series([dt.date(2020, 1, 1)]), "t")[0].tolist() == [NOON - 43_200]


def test_numbers_count_their_unit_and_keep_their_order() -> None:
    seconds, key = values.seconds(pl.Series([1999, -1, 2000]), "t", "ms")
    assert seconds.tolist() == [1, -1, 2] and key.tolist() == [1999, -1, 2000]
    seconds, key = values.seconds(pl.Series([1.75, 1.25]), "t")
    assert seconds.tolist() == [1, 1] and np.argsort(key).tolist() == [1, 0]


def test_text_of_an_untyped_file() -> None:
    assert values.seconds(pl.Series(["7", "8"]), "t", typed=False)[0].tolist() == [7, 8]
    assert values.seconds(pl.Series(["7.9", "8"]), "t", typed=False)[0].tolist() == [7, 8]
    assert values.seconds(pl.Series(["2020-01-01"]), "t", typed=False)[0].tolist() == [NOON - 43_200]


@pytest.mark.parametrize(
    ("given", "typed", "said"),
    [
        (
            [1.0, None, float("nan"), float("inf")],
            True,
            ("unreadable-times", "'t'", "3 times", "row 1", "None"),
        ),
        ([1, 2, None], True, ("missing-times", "1 missing", "row 2")),
        ([None, dt.datetime(2020, 1, 1)], True, ("missing-times", "1 missing", "row 0")),
        (
            ["2020-01-01", "2020-02-30", "x"],
            True,
            ("unreadable-times", "2 times", "row 1", "'2020-02-30'", "ISO 8601"),
        ),
        (["1", "2", "soon"], False, ("unreadable-times", "1 times", "row 2", "'soon'")),
        (["1577880000", "1577880001"], True, ("unreadable-times", "ISO 8601")),
        ([1e300], True, ("numbers-too-large", "64 bits")),
        (pl.Series([2**64 - 1], dtype=pl.UInt64), True, ("numbers-too-large", "64 bits")),
        ([[1]], True, ("wrong-column-type", "List")),
        ([True], True, ("wrong-column-type", "Boolean")),
    ],
)
def test_bad_times_are_counted_and_shown(given: list | pl.Series, typed: bool, said: tuple) -> None:
    with refused(*said):
        values.seconds(pl.Series(given), "column 't'", typed=typed)


def test_a_unit_for_dates_has_no_effect_and_is_refused() -> None:
    with refused("setting-without-effect", "time_unit='ms'"):
        values.seconds(pl.Series([dt.date(2020, 1, 1)]), "t", "ms")


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt16, pl.Int32, pl.Int64, pl.UInt64])
def test_integer_ids_keep_their_type(dtype: type) -> None:
    assert values.ids(pl.Series([3, 1], dtype=dtype), "id").dtype == dtype


def test_ids_from_text_files() -> None:
    assert values.ids(pl.Series(["42", "-7"]), "id", typed=False).to_list() == [42, -7]
    for text in ("+4", "4.0", " 4", "4.", "4.000 "):
        assert values.ids(pl.Series(["42", text]), "id", typed=False).to_list() == [42, 4], "as pandas writes 4"
    for text in ("042", "4.5", "4e0", "a", "99999999999999999999", "04.0"):
        assert values.ids(pl.Series(["42", text]), "id", typed=False).to_list() == ["42", text], "would change the id"
    assert values.ids(pl.Series(["42"]), "id").to_list() == ["42"], "typed text stays text"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1, None, None], ("missing-ids", "'id'", "2 missing", "3 rows", "row 1")),
        ([1.0, float("nan")], ("missing-ids", "1 missing")),
        ([1.0, 2.5], ("not-whole-numbers", "row 1", "2.5")),
        ([1.0, 1e300], ("not-whole-numbers", "row 1")),
        (["a", ""], ("empty-ids", "1 empty", "row 1")),
        ([[1], [2]], ("wrong-column-type", "List")),
        ([dt.date(2020, 1, 1)], ("wrong-column-type", "Date")),
        ([None, None], ("missing-ids", "2 missing")),
    ],
)
def test_bad_ids_are_counted_and_shown(given: list | pl.Series, said: tuple) -> None:
    with refused(*said):
        values.ids(pl.Series(given), "column 'id'")


@pytest.mark.parametrize(
    "given",
    [
        ["b", "é", "Z", "b", "aa", "a"],
        [5, -2, 5, 9, 0, 1],
        pl.Series([127, -128, 0], dtype=pl.Int8),
        pl.Series([2**64 - 1, 2**64 - 3, 2**64 - 1], dtype=pl.UInt64),
        pl.Series([2**40 + 7, 2**40, 2**40 + 7], dtype=pl.UInt64),
        [2**63 - 1, -(2**63), 0, 2**63 - 1],
    ],
)
def test_dense_codes_are_places_in_the_sorted_ids(given: list | pl.Series) -> None:
    series = pl.Series(given)
    codes, distinct = values.dense(series)
    assert distinct.dtype == series.dtype
    assert distinct.to_list() == sorted(set(series.to_list()))
    assert distinct.gather(codes).to_list() == series.to_list() and codes.dtype == np.int32


def test_numbers() -> None:
    assert values.finite_numbers(pl.Series(["1.5", "2"]), "n").tolist() == [1.5, 2.0]
    with refused("numbers-too-small", "1 numbers below 0", "row 1"):
        values.finite_numbers(pl.Series([0.0, -0.5]), "n", least=0.0)
    with refused("unreadable-numbers", "2 missing"):
        values.finite_numbers(pl.Series([1.0, None, float("inf")]), "n")
    with refused("wrong-column-type"):
        values.finite_numbers(pl.Series([[1]]), "n")


@pytest.mark.parametrize("low", [-(2**63), -5, 0, 7, 2**40, 2**63 - 30])
def test_whole_numbers_near_and_far_are_found_or_not(low: int) -> None:
    """A difference that wraps round in 64 bits is no place: keys at both ends of their type are unknown."""
    there = [low, low + 3, low + 20]
    index = values.IntIndex(pl.Series(there, dtype=pl.Int64))
    asked = [*there, low + 1, -(2**63), 2**63 - 1, 0, -1]
    found = index.find(np.array(asked, np.int64))
    assert found.tolist() == [there.index(key) if key in there else -1 for key in asked]
    small = [key for key in (*there, 0, 1, 2**31 - 1) if 0 <= key < 2**31]
    for dtype in (np.int32, np.uint64):
        assert index.find(np.array(small, dtype)).tolist() == [there.index(k) if k in there else -1 for k in small]


@pytest.mark.parametrize("series", [pl.Series([3, 1, 2]), pl.Series(["c", "a", "b"]), pl.Series([1, None, 2])])
@pytest.mark.parametrize("places", [[], [1], [1, 1, 1], [2, 2], [0, 2, 0]])
def test_values_at_places(series: pl.Series, places: list[int]) -> None:
    """One place again and again goes another way, and gives the same column."""
    found = values.take(series, np.array(places, np.int64), "x")
    wanted = pl.Series("x", [series[place] for place in places], dtype=series.dtype)
    assert found.name == "x" and found.dtype == series.dtype and found.equals(wanted, null_equal=True)
