"""Filters that say what cannot be asked, and values that a column cannot hold."""

import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.core.errors import UserError
from fullrank.inference.column_filters import canonical_filter, check_filters, column_kinds, filters_key, refused_by
from fullrank.serving.item_documents import cell, changed, type_of
from refusals import refused

COLUMNS = {
    column.name: column
    for column in (
        pl.Series("in_stock", [True, False, None]),
        pl.Series("brand", ["a", "b", None]),
        pl.Series("sort", ["a", "b", None], dtype=pl.Categorical),
        pl.Series("price", [1.5, float("nan"), None]),
        pl.Series("count", [2**53 + 1, -5, None]),
        pl.Series("tags", [["a", None], [], None]),
        pl.Series("sizes", [[1, 2], [3, 4], None], dtype=pl.Array(pl.Int64, 2)),
        pl.Series("day", [None, None, None], dtype=pl.Date),
    )
}


@pytest.mark.parametrize(
    ("filters", "passed"),
    [
        ({"in_stock": True}, [0]),
        ({"in_stock": [False, True]}, [0, 1]),
        ({"brand": "a", "in_stock": True}, [0]),
        ({"brand": "a", "in_stock": False}, []),
        ({"sort": ["b", "c"]}, [1]),
        ({"price": {"min": -100}}, [0]),  # NaN is no price
        ({"price": {"max": 1.5}}, [0]),
        ({"price": 1.5}, [0]),
        ({"count": 2**53 + 1}, [0]),
        ({"count": 2**53}, []),
        ({"count": {"min": -5, "max": 10**30}}, [0, 1]),
        ({"count": 10**30}, []),
        ({"count": -5.0}, [1]),
        ({"tags": "a"}, [0]),
        ({"sizes": [4, 9]}, [1]),
        ({"sizes": {"min": 2, "max": 2}}, [0]),
        ({"brand": []}, []),
    ],
)
def test_filters(filters: dict, passed: list) -> None:
    assert np.flatnonzero(~refused_by(COLUMNS, filters)).tolist() == passed


@pytest.mark.parametrize(
    ("code", "filters"),
    [
        ("filter-null", {"in_stock": None}),
        ("filter-null", {"brand": ["a", None]}),
        ("filter-wrong-type", {"in_stock": 1}),
        ("filter-wrong-type", {"in_stock": "true"}),
        ("filter-wrong-type", {"price": "1"}),
        ("filter-wrong-type", {"price": True}),
        ("filter-wrong-type", {"brand": 1}),
        ("filter-wrong-type", {"brand": ["a", 1]}),
        ("filter-wrong-type", {"brand": {"min": 1}}),
        ("filter-wrong-type", {"price": {"min": "1"}}),
        ("filter-wrong-type", {"price": {"min": None}}),
        ("filter-wrong-type", {"tags": 1}),
        ("filter-wrong-type", {"price": float("nan")}),
        ("filter-wrong-type", {"brand": [["a"]]}),
        *[
            ("filter-wrong-type", {"price": wanted})
            for huge in (10**309, -(10**400), float("inf"))
            for wanted in (huge, [1, huge], {"min": huge}, {"max": huge})
        ],
        ("filter-wrong-type", {"sizes": {"min": 10**309}}),
        ("filter-not-a-range", {"price": {"least": 1}}),
        ("filter-not-a-range", {"price": {}}),
        ("empty-range", {"price": {"min": 2, "max": 1}}),
        ("too-many-values", {"price": list(range(1001))}),
        ("column-not-filtered", {"day": "2024-01-01"}),
    ],
)
def test_what_cannot_be_asked(code: str, filters: dict) -> None:
    with refused(code, *filters):
        refused_by(COLUMNS, filters)


@pytest.mark.parametrize(
    ("filters", "rule"),
    [
        ({"brand": None}, "no filter lets items without a value through"),
        ({"brand": 1}, "this column holds text"),
        ({"brand": {"min": 1}}, "ranges are of numbers, and this column holds text"),
        ({"price": {"min": "1"}}, "min and max are finite numbers"),
        ({"price": {"least": 1}}, "a range has min, max, or both"),
        ({"price": {"min": 2, "max": 1}}, "min is above max"),
        ({"price": list(range(1001))}, "at most 1,000 values are allowed, not 1,001"),
        ({"day": "2024-01-01"}, "prepare the store with it as one of these"),
    ],
)
def test_what_is_allowed_is_said(filters: dict, rule: str) -> None:
    (name,) = filters
    with pytest.raises(UserError, match=rf"{name}.*{rule}"):
        refused_by(COLUMNS, filters)


@pytest.mark.parametrize(
    "dtype", [pl.Int8, pl.UInt8, pl.UInt32, pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.Decimal(30, 2)]
)
def test_numbers_of_every_type_and_size(dtype) -> None:
    """What JSON may hold is compared with columns that cannot hold it; a list lets through what each of it does."""
    held = [None, 0, 1, 2, 100] if dtype.is_integer() else [None, 0, 1, 2, 100, 0.25]
    held += {pl.UInt64: [2**63 + 5, 2**64 - 1], pl.Int64: [-(2**63)], pl.Float64: [1e300, 2.0**1023]}.get(dtype, [])
    column = pl.Series("n", held, dtype=None if dtype.is_integer() else pl.Float64, strict=False).cast(dtype)
    wanted = [-(2**63), -1, 1.0, 2, 0.25, 1.5, 300, 2**40, 2**53 + 1, 2**63 + 5, 2**64 - 1, 10**30, 1e300, 2**1023]

    def passed(wanted) -> list:
        return [held[row] for row in np.flatnonzero(~refused_by({"n": column}, {"n": wanted}))]

    assert [passed(one) for one in wanted] == [[one] if one in held else [] for one in wanted]
    assert passed(wanted) == passed(wanted * 50) == [one for one in held if one in wanted]
    for bound in wanted:
        assert passed({"min": bound}) == [one for one in held if one is not None and one >= bound]
        assert passed({"max": bound}) == [one for one in held if one is not None and one <= bound]


def test_filters_are_a_mapping_of_names() -> None:
    assert check_filters({"price": 1}) == {"price": 1} and check_filters({}) == {}
    for wrong in ([1], "price", {1: 2}, None):
        with refused("not-filters", "a mapping of columns", '"genre": ["Comedy"]'):
            check_filters(wrong)
    with pytest.raises(UserError) as told:
        check_filters(list(range(1000)))
    assert len(str(told.value)) < 250, "what was given is cut"
    assert told.value.public, "a caller of the service may read it"


def test_a_name_that_is_nearly_right() -> None:
    with refused("unknown-column", "in_stok", "did you mean 'in_stock'", "brand"):
        refused_by(COLUMNS, {"in_stok": True})


def test_equal_filters_are_equal() -> None:
    day = {"day": datetime.date(2024, 1, 1)}  # refused later, by the column
    assert filters_key(day) == filters_key(dict(day)) != filters_key({"day": datetime.date(2024, 1, 2)})
    assert canonical_filter(["a", "b", "a"]) == canonical_filter(["b", "a"]) != canonical_filter(["b"])
    assert canonical_filter({"min": 1, "max": 2}) == canonical_filter({"max": 2, "min": 1})
    assert canonical_filter({1: 2, "min": 3}) == canonical_filter({"min": 3, 1: 2}), "of one that will be refused, too"
    assert canonical_filter([1, True]) == canonical_filter([True, 1]) != canonical_filter([1])


@given(
    name=st.sampled_from([name for name in COLUMNS if name not in ("day", "sizes")]),
    rows=st.lists(st.integers(0, 2), unique=True),
)
def test_values_change_in_place(name: str, rows: list) -> None:
    fresh = {"in_stock": True, "price": 9.5, "count": 7, "tags": ["z", "q"]}
    column = COLUMNS[name]
    found = changed(column, {row: fresh.get(name, "z") for row in rows})
    assert found.dtype == column.dtype
    kept = [row for row in range(3) if row not in rows]
    assert found[kept].equals(column[kept], null_equal=True) and all(found[row] is not None for row in rows)


def test_values_that_a_column_cannot_hold() -> None:
    assert cell("price", 5, pl.Float64()) == 5 and cell("tags", [], pl.List(pl.String)) == []
    assert cell("sort", "new", pl.Categorical()) == "new" and cell("any", None, pl.Boolean()) is None
    for value, dtype in [
        (1e39, pl.Float32()), ([1.0, -1e39], pl.List(pl.Float32)), (10**400, pl.Float64()), (2**63, pl.Int64()),
        (5.5, pl.Int64()), (True, pl.Int64()), ("5", pl.Int64()), (300, pl.UInt8()), ("c", pl.Enum(["a"])),
        (["a"], pl.String()), ("a", pl.List(pl.String)), ([1], pl.Array(pl.Int64, 2)), (0, pl.Date()),
        ("2024-01-01", pl.Date()),
    ]:  # fmt: skip
        with refused("wrong-column-type", "'column'"):
            cell("column", value, dtype)
    with refused("wrong-column-type"):
        type_of("new", ["a", 1])
    assert (type_of("n", 1), type_of("n", None), type_of("n", []), type_of("n", True)) == (
        pl.Float64(), None, None, pl.Boolean(),
    )  # fmt: skip
    assert type_of("n", ["a"]) == pl.List(pl.String) and "day" not in column_kinds(COLUMNS)
