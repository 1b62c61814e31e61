"""Stores joined into one: everybody's events as they were, ids apart, and how often each store is read in an epoch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.join import join_stores
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from refusals import refused
from seals import reseal
from tests.data.test_splits import events


def shop(place: Path, users: int, items: int, *, timed: bool = True, column: Any = "a title") -> Store:
    rows = [(f"u{u}", (u * 7 + t * (3 + u % 2)) % items, 100 * u + t) for u in range(users) for t in range(7)]
    goods = pl.DataFrame({"item_id": range(items), "title": [column] * items})
    return fr.prepare(events(*rows), place, items=goods, time_col="timestamp" if timed else None)


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    home = tmp_path_factory.mktemp("shops")
    return shop(home / "toys", 40, 15), shop(home / "films", 60, 11)


def test_events_stay_and_ids_are_apart(shops: tuple, tmp_path: Path) -> None:
    both = join_stores(list(shops), tmp_path / "both")
    assert both.sizes == {name: sum(one.sizes[name] for one in shops) for name in both.sizes}
    told = zip(both.user_ids, (both.catalog.ids.gather(row).to_list() for row in _rows(both)), both.bounds, strict=True)
    expected = [
        (f"{one.path.name}/{user}", [f"{one.path.name}/{item}" for item in one.catalog.ids.gather(row)], bounds - first)
        for one in shops
        for user, row, bounds, first in zip(one.user_ids, _rows(one), one.bounds, one.offsets[:-1], strict=True)
    ]
    for (user, items, bounds), first, (who, what, inside) in zip(told, both.offsets[:-1], expected, strict=True):
        assert (user, items, (bounds - first).tolist()) == (who, what, inside.tolist())
    assert both.times is not None and both.catalog.frame["title"].n_unique() == 1
    counts = [*shops[0].catalog.popularity, *shops[1].catalog.popularity]
    assert both.catalog.popularity.tolist() == counts
    assert Store.open(both.path, verify=True).fingerprint == both.fingerprint


def _rows(store: Store) -> list:
    return np.split(np.asarray(store.items), store.offsets[1:-1])


def test_a_store_without_times_takes_them_from_all(shops: tuple, tmp_path: Path) -> None:
    plain = shop(tmp_path / "plain", 20, 9, timed=False)
    both = join_stores([shops[0], plain], tmp_path / "both")
    assert both.times is None and any("plain: without times" in note for note in both.manifest["notes"])


@pytest.mark.parametrize("weights", [(1.0, 0.25), (2.5, 1.0), (0.01, 0.01)])
def test_an_epoch_holds_each_store_as_often_as_its_weight(shops: tuple, tmp_path: Path, weights: tuple) -> None:
    both = join_stores(list(shops), tmp_path / "both", weights=weights)
    task = NextItem().build(4, 10)
    loader = Loader(both, task.segments, by="rows", size=8, seed=3)
    seen, epochs = np.zeros(both.num_users), 200
    for batch in loader.iterate(0, epochs * loader.steps_per_epoch, range(1)):
        np.add.at(seen, batch.users.numpy(), 1)
    first = shops[0].num_users
    if min(weights) > 0.1:  # below, an epoch may have no row by chance, and then has one all the same
        for part, weight in ((seen[:first], weights[0]), (seen[first:], weights[1])):
            rows = epochs * len(part)
            assert abs(part.sum() - weight * rows) <= 4 * np.sqrt(rows * max(weight % 1, 0.01))
    assert epochs <= seen.sum()
    anew = Loader(both, task.segments, by="rows", size=8, seed=3)
    for k in (0, 2 * loader.steps_per_epoch + 1):
        assert loader.batch(k).items.equal(anew.batch(k).items), "batch k is a function of the seed and k"


def test_mistakes(shops: tuple, tmp_path: Path) -> None:
    toys, films = shops
    out = tmp_path / "both"
    with refused("too-few-stores", 1):
        join_stores([toys], out)
    with refused("counts-differ", 1, "weights", 2):
        join_stores([toys, films], out, weights=[1.0])
    with refused("setting-out-of-range", "weights", 0):
        join_stores([toys, films], out, weights=[1.0, 0.0])
    with refused("names-repeated", "'toys', 'toys'"):
        join_stores([toys, toys], out)
    with refused("same-folder", str(films.path)):
        join_stores([toys, films], films.path, overwrite=True)
    with refused("columns-differ", "'title'", "List(String) in listed"):
        join_stores([toys, shop(tmp_path / "listed", 20, 9, column=["a", "b"])], out)
    with refused("splits-differ", "toys by leave_one_out", "apart by global_time"):
        rows = [(f"u{u}", (u + t) % 9, 10_000 * t + u) for u in range(30) for t in range(8)]
        apart = fr.prepare(events(*rows), tmp_path / "apart", set=["split=global_time"])
        join_stores([toys, apart], out)
    assert not out.exists()


@pytest.mark.parametrize(
    "parts",
    [7, [7], [{"counts": {"users": 100}, "weight": 0}], [{"counts": {"users": 99}, "weight": 1}], [{"weight": 1}],
     [{"counts": {"users": 100}, "weight": True}], [{"counts": {"users": 100}, "weight": 1e9}]],
)  # fmt: skip
def test_a_hostile_list_of_parts_is_refused(shops: tuple, tmp_path: Path, parts: Any) -> None:
    both = join_stores(list(shops), tmp_path / "both")
    path = both.path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"joined": parts}))
    reseal(both.path)
    with refused("manifest-incomplete", "joined"):
        Store.open(both.path)
