"""Laws of every items module: one vector per id, the same in every shape, whole in the state, and searchable once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import ItemIndex, unit
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.items.table import ItemTable
from refusals import refused
from tiny import ITEMS, SETTINGS, built, catalog, close, plain, reachable, shaken

DIM = 6
ALL = pytest.mark.parametrize("pair", everything("items"), ids=name)


def modules(pair: Pair) -> Iterator[tuple[Any, Any]]:
    return built(reachable(plain(pair), 2), DIM, catalog())


def check_vectors(items: Any) -> None:
    every = items.all()
    assert items.size == ITEMS and every.shape == (ITEMS, DIM) and every.isfinite().all()
    for ids in (
        torch.tensor(3),
        torch.arange(ITEMS),
        torch.tensor([[1, 2, 2], [5, ITEMS - 1, 0]]),
        torch.zeros(0, 4).long(),
    ):
        assert close(items.embed(ids), every[ids])
    assert torch.equal(items.popularity, torch.as_tensor(catalog().popularity).float())


def check_state(items: Any, again: Any) -> None:
    """What decides the vectors is in the state dict, the popularity too."""
    again.load_state_dict(items.state_dict())
    assert torch.equal(again.eval().all(), items.eval().all())
    assert "popularity" in items.state_dict()


def check_learns(items: Any) -> None:
    items.train()
    items.all().pow(3).sum().backward()
    for label, parameter in items.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), label
    items.eval()


@ALL
@pytest.mark.parametrize("check", [check_vectors, check_learns])
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for _, items in modules(pair):
        check(items)


@ALL
def test_state(pair: Pair) -> None:
    for spec, items in modules(pair):
        check_state(items, spec.build(DIM, catalog()))


@ALL
@pytest.mark.parametrize("cosine", [False, True])
def test_snapshot(pair: Pair, cosine: bool) -> None:
    """Before and after the table is made, ids have the same vectors; it is made once; gradients reach the items."""
    for _, items in modules(pair):
        snapshot = ItemIndex(items, normalise=cosine)
        ids = torch.tensor([[1, 2], [2, 7]])
        before = snapshot.embed(ids)
        table = snapshot.all()
        assert snapshot.all() is table
        assert close(snapshot.embed(ids), before) and close(before, table[ids])
        assert close(table, unit(items.all()) if cosine else items.all())
        assert not cosine or close(table.norm(dim=1), torch.ones(ITEMS))
        (table * torch.randn(table.shape)).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in items.parameters())


@ALL
def test_shares_of_the_training_events(pair: Pair) -> None:
    """An item without events counts as one, so that no probability is zero."""
    for _, items in modules(pair):
        log_q = ItemIndex(items, normalise=False).log_q(torch.arange(ITEMS))
        counts = catalog().popularity.clip(1)
        assert close(log_q.exp(), torch.as_tensor(counts / counts.sum()).float())


def test_unit() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-8, 0.0]])
    assert close(unit(x), torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))


class Volatile(ItemTable):
    """Planted: the vectors depend on something that is not saved."""

    def __init__(self, dim: int):
        super().__init__(dim, catalog())
        self.shift = torch.randn(dim)

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) + self.shift

    def all(self) -> Tensor:
        return super().all() + self.shift


class Skewed(ItemTable):
    """Planted: the whole table is not what single ids give."""

    def all(self) -> Tensor:
        return super().all().roll(1, 0)


def test_planted_faults_are_caught() -> None:
    with pytest.raises(AssertionError):
        check_state(shaken(Volatile(DIM)), Volatile(DIM))
    with pytest.raises(AssertionError):
        check_vectors(shaken(Skewed(DIM, catalog())))
    check_state(shaken(ItemTable(DIM, catalog())), ItemTable(DIM, catalog()))
    check_vectors(shaken(ItemTable(DIM, catalog())))


def features(**settings: Any) -> Any:
    spec = Features(**(SETTINGS["items", "features"] | settings))
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


def test_feature_dropout_in_training_alone() -> None:
    items = features(dropout=0.5)
    assert torch.equal(items.all(), items.all())
    items.train()
    assert not torch.equal(items.all(), items.all())


def test_refusals() -> None:
    with refused("no-feature-columns", "categorical", "numeric"):
        Features.parse({})
    with pytest.raises(UserError, match="no column 'colour'"):
        Features(categorical=("colour",)).build(DIM, catalog())
    with pytest.raises(UserError, match="not a number"):
        Features(numeric=("brand",)).build(DIM, catalog())
