"""The checks of `fullrank.testing.items` catch planted faults; features by hand."""

from typing import Any

import polars as pl
import pytest
import torch

from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.items.table import ItemTable
from fullrank.testing import check_component
from fullrank.testing.inputs import EXAMPLES
from fullrank.testing.items import DIM, check_state, check_vectors
from refusals import refused
from tiny import ITEMS, catalog, close, shaken


def test_unit() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-8, 0.0]])
    assert close(unit(x), torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))


class Volatile(ItemTable):
    """Planted: the vectors depend on something that is not saved."""

    def __init__(self, dim):
        super().__init__(dim, catalog())
        self.shift = torch.randn(dim)

    def embed(self, ids):
        return super().embed(ids) + self.shift

    def all(self):
        return super().all() + self.shift


class Skewed(ItemTable):
    """Planted: the whole table is not what single ids give."""

    def all(self):
        return super().all().roll(1, 0)


def test_planted_faults_are_caught() -> None:
    with pytest.raises(AssertionError):
        check_state(shaken(Volatile(DIM)), Volatile(DIM))
    with pytest.raises(AssertionError):
        check_vectors(shaken(Skewed(DIM, catalog())))
    check_state(shaken(ItemTable(DIM, catalog())), ItemTable(DIM, catalog()))
    check_vectors(shaken(ItemTable(DIM, catalog())))


def features(**settings) -> Any:
    spec = Features(**(EXAMPLES["features"] | settings))
    return shaken(spec.build(DIM, catalog())).eval()


def test_features_are_a_sum() -> None:
    """id vector + brand's vector + linear map of (standardised price, missing)."""
    items = features()
    brand, price = catalog().categorical("brand"), catalog().numeric(["price"])
    for i in range(ITEMS):
        numbers = torch.tensor([price.values[i, 0], price.missing[i, 0]])
        wanted = items.embedding.weight[i] + items.tables[0].weight[brand.codes[i]] + items.linear(numbers)
        assert close(items.embed(torch.tensor(i)), wanted)


def test_without_ids_equal_features_are_equal_items() -> None:
    frame = catalog().frame.with_columns(brand=pl.lit("one"), price=pl.lit(2.0).repeat_by(1).list.first())
    frame = frame.with_columns(price=pl.when(pl.col("item") % 2 == 0).then(1.0).otherwise(None))
    items = shaken(Features(categorical=("brand",), numeric=("price",), ids=False).build(DIM, Catalog(frame)))
    table = items.all()
    assert close(table[0], table[2]) and close(table[1], table[3]) and not close(table[0], table[1])


def test_a_missing_value_has_a_vector_of_its_own() -> None:
    only_brand = features(numeric=(), ids=False)
    table = only_brand.all()
    assert close(table[4], only_brand.tables[0].weight[0]) and close(table[4], table[9])
    assert not close(table[4], table[3])
    only_price = features(categorical=(), ids=False)
    missing = only_price.linear(torch.tensor([0.0, 1.0]))
    assert close(only_price.all()[6], missing)


def test_a_list_adds_the_vector_of_each_of_its_values() -> None:
    """Once each, wherever they stand; no list, an empty one and one without a known value are a missing value."""
    lists = [["a", "b"], ["b", "a", "b"], None, [], ["c"], ["a", None]]
    table = pl.DataFrame({"item": range(6), "item_id": range(6), "train_count": [1] * 6, "tags": lists})
    for frame in (table, table.with_columns(pl.col("tags").cast(pl.List(pl.Categorical)))):
        items = shaken(Features(categorical=("tags",), ids=False).build(DIM, Catalog(frame)))
        missing, a, b, c = items.tables[0].weight
        assert close(items.all(), torch.stack([a + b, a + b, missing, missing, c, a]))
    both = shaken(
        Features(categorical=("tags", "item_id2")).build(DIM, Catalog(table.with_columns(item_id2=pl.col("item"))))
    )
    wanted = both.embedding.weight[0] + both.tables[0].weight[1:3].sum(0) + both.tables[1].weight[1]
    assert close(both.embed(torch.tensor([[0, 0]]))[0, 1], wanted)


def test_a_list_of_an_item_that_came_later_keeps_the_codes() -> None:
    """A value that the model never saw is left out, and longer lists change nothing for the others."""
    old = Catalog(pl.DataFrame({"item": [0, 1], "item_id": [5, 6], "train_count": [1, 1], "tags": [["b"], ["a"]]}))
    more = pl.DataFrame({"item_id": [7, 8, 9], "tags": [["new", "b", "a"], ["new"], None]})
    codes = old.extended(more).categories("tags")
    assert codes.codes.tolist() == [[2, -1], [1, -1], [2, 1], [0, -1], [0, -1]] and codes.values.to_list() == ["a", "b"]
    spec = Features(categorical=("tags",))
    spec.build(DIM, old.extended(more)).transferred(spec.build(DIM, old).state_dict(), old, old.extended(more))


@pytest.mark.parametrize(
    "spec",
    [
        Features(categorical=("brand", "tags"), numeric=("price",)),
        *(Features(categorical=columns, combine="beside") for columns in (("brand", "tags"), ("brand",), ("tags",))),
    ],
    ids=str,
)
def test_features_pass_every_check(spec) -> None:
    check_component(spec)


def test_feature_dropout_is_of_training() -> None:
    items = features(dropout=0.5).train()
    assert not torch.equal(items.all(), items.all())


def test_refusals() -> None:
    with refused("no-feature-columns", "categorical", "numeric"):
        Features.parse({})
    with refused("unknown-column", "colour"):
        Features(categorical=("colour",)).build(DIM, catalog())
    long = catalog().frame.with_columns(tags=pl.Series([[*range(65)]] + [[]] * (ITEMS - 1)))
    with refused("list-too-long", "'tags'", 65, 64):
        Features(categorical=("tags",)).build(DIM, Catalog(long))
    with refused("wrong-column-type", "'tags'", "inside its lists, is of type Float64"):
        Features(categorical=("tags",)).build(DIM, Catalog(long.with_columns(pl.col("tags").cast(pl.List(pl.Float64)))))
    with refused("wrong-column-type", "brand"):
        Features(numeric=("brand",)).build(DIM, catalog())
