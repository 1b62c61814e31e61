"""The item catalogue: ids both ways, features as numbers, and growth that keeps what a model has learned."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fullrank.data.events.catalog import Catalog
from refusals import refused


def catalog(**columns: Any) -> Catalog:
    base = {"item": [0, 1, 2, 3], "item_id": [10, 20, 30, 40], "train_count": [4, 0, 2, 1]}
    return Catalog(pl.DataFrame(base | columns, strict=False))


TEXT = Catalog(pl.DataFrame({"item": [0, 1], "item_id": ["B01", "B02"], "train_count": [1, 1], "title": ["x", None]}))


@pytest.mark.parametrize(
    "asked",
    [
        [30, 7, 10],
        (30, 7, 10),
        [30, None, 10],
        np.array([30, 7, 10]),
        np.array([30, 7, 10], np.uint8),
        pd.Series([30, 7, 10]),
        pl.Series([30, 7, 10]),
        pl.Series([30, 2**63, 10], dtype=pl.UInt64),
    ],
)
def test_lookup_of_whole_numbers(asked: Any) -> None:
    assert catalog().lookup(asked).tolist() == [2, -1, 0]


def test_lookup_of_strings() -> None:
    assert TEXT.lookup(["B02", "nope", "B02"]).tolist() == [1, -1, 1]
    assert TEXT.lookup(pl.Series(["B01"], dtype=pl.Categorical)).tolist() == [0]
    assert TEXT.lookup([]).tolist() == [] and catalog().lookup([]).dtype == np.int64


def test_lookup_refuses_the_other_kind_of_id() -> None:
    with refused("wrong-id-type", "whole numbers", "String ('10')"):
        catalog().lookup(["10"])
    with refused("wrong-id-type", "strings", "Int64"):
        TEXT.lookup([1])
    with refused("wrong-id-type", "Float64"):
        catalog().lookup([1.0])


def test_parse_reads_ids_from_text() -> None:
    assert catalog().parse(["10", " 20 "]).to_list() == [10, 20]
    assert TEXT.parse(["B01", "7"]).to_list() == ["B01", "7"]
    with refused("not-an-item-id", "x"):
        catalog().parse(["10", "x"])


def test_external_is_the_inverse() -> None:
    assert catalog().external([3, -1, 0]).to_list() == [40, None, 10]
    assert catalog().external(np.zeros(0, np.int64)).to_list() == []
    assert catalog().lookup(catalog().external(np.arange(4))).tolist() == [0, 1, 2, 3]
    for wrong in ([4], [-2]):
        with refused("id-out-of-range", "0 .. 3"):
            catalog().external(wrong)


def test_plain_properties(tmp_path: Path) -> None:
    items = catalog(title=["a", None, "c", "d"])
    assert items.size == len(items) == 4 and items.popularity.tolist() == [4, 0, 2, 1] and items.columns == ["title"]
    assert items.titles[1] is None and catalog().titles is None
    assert catalog(title=[None] * 4).titles is None
    items.write(tmp_path / "items.parquet")
    assert Catalog.open(tmp_path / "items.parquet").frame.equals(items.frame)
    with refused("missing-file", "other.parquet"):
        Catalog.open(tmp_path / "other.parquet")


def test_categories_are_codes_in_sorted_order() -> None:
    found = catalog(brand=["nike", None, "asics", "nike"]).categorical("brand")
    assert (
        found.codes.tolist() == [2, 0, 1, 2] and found.cardinality == 3 and found.values.to_list() == ["asics", "nike"]
    )
    assert catalog(year=[1999, 2001, None, 1999]).categorical("year").codes.tolist() == [1, 2, 0, 1]
    assert catalog(new=[True, False, None, True]).categorical("new").codes.tolist() == [2, 1, 0, 2]
    assert catalog(none=[None] * 4).categorical("none").cardinality == 1


def test_unsuitable_columns_are_refused() -> None:
    items = catalog(price=[1.5, 2.0, 3.0, 4.0], genres=[["a"], [], ["b"], None], bad=[1.0, float("inf"), 2.0, 3.0])
    for column, code, *names in (
        ("price", "wrong-column-type", "'price'", "Float64"), ("genres", "wrong-column-type", "'genres'", "List"),
        ("prize", "unknown-column", "prize", "price"),
    ):  # fmt: skip
        with refused(code, *names):
            items.categorical(column)
    for columns, code, *names in (
        (["train_count"], "unknown-column", "'train_count'"), (["price", "genres"], "wrong-column-type", "'genres'"),
        (["bad"], "infinite-numbers", "'bad'", "1 infinite"), ("price", "not-a-list"), ([], "not-a-list"),
    ):  # fmt: skip
        with refused(code, *names):
            items.numeric(columns)


def test_numbers_are_standardised_with_missing_indicators() -> None:
    items = catalog(price=[1.0, 3.0, None, float("nan")], same=[7.1] * 4, year=[2000, 2001, 2002, 2003])
    found = items.numeric(["price", "same", "year"])
    assert found.values.dtype == np.float32 and found.names == ("price", "same", "year")
    np.testing.assert_allclose(found.values[:, 0], [-1, 1, 0, 0])
    assert found.values[:, 1].tolist() == [0, 0, 0, 0], "a constant says nothing"
    np.testing.assert_allclose(found.values[:, 2].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(found.values[:, 2].std(), 1, rtol=1e-6)
    assert found.missing[:, 0].tolist() == [0, 0, 1, 1] and found.matrix.shape == (4, 6)


def test_growth_appends_and_keeps_codes_and_scales() -> None:
    items = catalog(brand=["nike", None, "asics", "nike"], price=[1.0, 2.0, 3.0, 4.0])
    grown = items.extended(pd.DataFrame({"item_id": [5, 99], "brand": ["adidas", "nike"], "price": [1000.0, 2.0]}))
    assert grown.ids.to_list() == [10, 20, 30, 40, 5, 99] and grown.ids.dtype == items.ids.dtype
    assert grown.popularity.tolist() == [4, 0, 2, 1, 0, 0] and grown.lookup([5, 99, 10]).tolist() == [4, 5, 0]
    assert (items.version, items.base, grown.version, grown.base) == (0, 4, 1, 4)
    before, after = items.categorical("brand"), grown.categorical("brand")
    assert after.codes.tolist() == [*before.codes.tolist(), 0, 2], "an unseen brand has no learned vector: missing"
    assert after.cardinality == before.cardinality
    np.testing.assert_array_equal(grown.numeric(["price"]).values[:4], items.numeric(["price"]).values)
    again = grown.extended(pl.DataFrame({"item_id": [7]}))
    assert again.version == 2 and again.base == 4 and again.frame["brand"][6] is None
    assert again.frame["map_version"].to_list() == [0, 0, 0, 0, 1, 1, 2]


def test_a_grown_catalogue_survives_the_disk(tmp_path: Path) -> None:
    grown = TEXT.extended(pl.DataFrame({"sku": ["B07"], "title": ["y"]}), item="sku")
    grown.write(tmp_path / "items.parquet")
    assert Catalog.open(tmp_path / "items.parquet").version == 1
    (tmp_path / "new.csv").write_text("item_id,title\n007,Bond\n")
    assert TEXT.extended(tmp_path / "new.csv").ids.to_list() == ["B01", "B02", "007"]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"item_id": [50, 10]}, ("known-ids", "1 ids", "row 1", "10")),
        ({"item_id": [50, 50]}, ("repeated-ids", "2 repeated")),
        ({"item_id": [50, None]}, ("missing-ids", "1 missing", "row 1")),
        ({"item_id": ["x"]}, ("wrong-id-type", "x")),
        ({"item_id": [50], "prize": [1.0]}, ("unknown-column", "prize", "price")),
        ({"item_id": [50], "price": ["dear"]}, ("wrong-column-type", "price")),
        ({"item": [50]}, ("missing-column", "item_id", "item")),
        ({"item_id": []}, ("empty-table",)),
    ],
)
def test_new_items_that_do_not_fit(new: dict, said: str) -> None:
    with refused(*said):
        catalog(price=[1.0, 2.0, 3.0, 4.0]).extended(pl.DataFrame(new))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("item", [0, 1, 3, 2]),
        ("item", [0, 1, 2, None]),
        ("item_id", [1, 1, 2, 3]),
        ("item_id", [1, None, 2, 3]),
        ("item_id", [1.0, 2.0, 3.0, 4.0]),
        ("train_count", [1, 2, -3, 0]),
        ("train_count", [1, 2, None, 0]),
        ("map_version", [0, 1, 0, 1]),
    ],
)
def test_tables_that_are_no_catalogue(column: str, values: list) -> None:
    with refused("wrong-item-table", repr(column)):
        catalog(**{column: values})
