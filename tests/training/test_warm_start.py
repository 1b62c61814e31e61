"""Training that goes on from a run with new events: what belongs to an item or a value goes with it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import fullrank as fr
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run, write_weights
from fullrank.training.warm_start import _buckets, copy_weights
from refusals import refused
from seals import reseal
from tests.training.clicks import as_format_1, table
from tests.training.clicks import tiny as tiny_ranker
from tests.training.conftest import Runs, change_json, same_weights, tiny, weights

FROZEN = ("training.lr=1e-30", "training.max_epochs=1")
QKV = "encoder.blocks.0.attention.qkv.weight"


def events(ids: list[int] | list[str], users: int = 60) -> pl.DataFrame:
    return pl.DataFrame([{"user_id": u, "item_id": ids[(u * 7 + t * 3) % len(ids)], "timestamp": t}
                         for u in range(users) for t in range(6)])  # fmt: skip


def go_on(run: Run, data: Store, out: Path) -> Run:
    return fr.train("same", data, out, init_from=run, set=FROZEN, progress=False)


def test_items_are_matched_by_external_id(run: Run, market: Store, tmp_path: Path) -> None:
    """New data: other users, some items gone, some new, so that internal ids move."""
    kept = market.catalog.ids.to_list()[10:]
    data = fr.prepare(events([*kept, 10**6, 10**6 + 1, 10**6 + 2]), tmp_path / "store")
    old, new = weights(run), weights(go_on(run, data, tmp_path / "on"))
    place = run.catalog.lookup(data.catalog.ids)
    known = torch.from_numpy(place >= 0)
    torch.testing.assert_close(new["items.embedding.weight"][known], old["items.embedding.weight"][place[place >= 0]])
    torch.testing.assert_close(new[QKV], old[QKV])
    assert new["items.popularity"].tolist() == data.catalog.popularity.tolist()
    assert (~known).sum() == 3


def test_what_only_looks_like_one_row_per_item_stays(tmp_path: Path) -> None:
    """48 items before and after, and an attention whose queries, keys and values are 3 x 16 = 48 rows."""
    first, second = (fr.prepare(events(list(range(a, a + 48))), tmp_path / f"store{a}") for a in (0, 5))
    run = Runs(first, tmp_path)("run", "training.max_epochs=1")
    old, new = weights(run), weights(go_on(run, second, tmp_path / "on"))
    assert len(new[QKV]) == second.num_items == first.num_items == 48
    torch.testing.assert_close(new[QKV], old[QKV])
    torch.testing.assert_close(new["items.embedding.weight"][:43], old["items.embedding.weight"][5:])


def test_strangers_are_refused(run: Run, tmp_path: Path) -> None:
    names = pl.DataFrame({"user_id": [1] * 4, "item_id": ["p", "q", "r", "s"], "timestamp": [1, 2, 3, 4]})
    with refused("wrong-id-type", 1001, "String", "'p'"):
        go_on(run, fr.prepare(names, tmp_path / "names"), tmp_path / "a")
    data = fr.prepare(events([1, 2, 3]), tmp_path / "store")
    with refused("no-known-ids", 3):
        go_on(run, data, tmp_path / "b")


def titled(ids: list[int], titles: list[str | None]) -> pl.DataFrame:
    return pl.DataFrame({"item_id": ids, "title": titles, "sort": ["a", "b"] * (len(ids) // 2)})


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on items 1 .. 40 with titles."""
    place, ids = tmp_path_factory.mktemp("numbered"), list(range(1, 41))
    data = fr.prepare(events(ids), place / "store", items=titled(ids, [f"Toy {i}" for i in ids]))
    return fr.train(tiny("training.max_epochs=1"), data, place / "run", progress=False)


def test_ids_that_name_other_items_are_refused(numbered: Run, tmp_path: Path) -> None:
    """Both catalogues are numbered from 1: all ids are known, and no item is."""
    ids = list(range(1, 31))
    data = fr.prepare(events(ids), tmp_path / "store", items=titled(ids, [f"Cream {i}" for i in ids]))
    with refused("ids-of-other-items", 30, "100%", "'title'", "'Toy ", "'Cream "):
        go_on(numbered, data, tmp_path / "on")
    assert not (tmp_path / "on").exists()


@pytest.mark.parametrize("case", ["some edited", "another case", "mostly missing", "no column", "brands alone", "few"])
def test_items_whose_titles_changed_are_still_matched(case: str, numbered: Run, tmp_path: Path) -> None:
    """Few other titles are edits; and where titles say nothing, ids are taken for what they are."""
    ids = list(range(1, 10)) if case == "few" else list(range(1, 41))
    titles: dict[str, list[str | None]] = {
        "some edited": [f"Toy {i}" if i % 3 else f"Toy {i}, new" for i in ids],
        "another case": [f" TOY {i}" for i in ids],
        "mostly missing": [None if i > 25 else f"Toy {i}" for i in ids],
        "brands alone": ["Cream", "Soap"] * 20,
    }
    table = titled(ids, titles.get(case, [f"Cream {i}" for i in ids])) if case != "few" else None
    if table is None:
        table = pl.DataFrame({"item_id": ids, "title": [f"Cream {i}" for i in ids]})
    data = fr.prepare(events(ids), tmp_path / "store", items=table.drop("title") if case == "no column" else table)
    went_on = go_on(numbered, data, tmp_path / "on")
    old, new = weights(numbered), weights(went_on)
    place = numbered.catalog.lookup(data.catalog.ids)
    torch.testing.assert_close(new["items.embedding.weight"], old["items.embedding.weight"][place])


def test_another_spec_is_refused(run: Run, runs: Runs) -> None:
    with refused("weights-differ-from-spec"):
        runs("on", "model.dim=32", init_from=run)


def goods(ids: list[int], brands: list[str | None], prices: list[float | None]) -> Catalog:
    columns = {"item": np.arange(len(ids)), "item_id": ids, "train_count": [1] * len(ids)}
    return Catalog(pl.DataFrame(columns | {"brand": brands, "price": pl.Series(prices, dtype=pl.Float64)}))


OLD = goods([1, 2, 3, 4, 5], ["a", "b", "c", None, "c"], [1.0, 2.0, 4.0, 8.0, None])
NEW = goods([2, 3, 4, 5, 6, 7], ["b", "c", None, "c", "d", "e"], [2.0, 4.0, 8.0, None, 16.0, 11.0])
"""Values move to other codes, one is gone and two are new; mean and scale of the prices are others."""


class Shop(RecommenderModel):
    """A model of items alone, with weights that are far from their small first values."""

    def __init__(self, catalog: Catalog, dim: int = 6, **settings: bool):
        nn.Module.__init__(self)
        self.items = Features(categorical=("brand",), numeric=("price",), **settings).build(dim, catalog)
        for parameter in self.parameters():
            nn.init.normal_(parameter)


def warm(tmp_path: Path, old: Catalog, new: Catalog, **settings: bool) -> tuple[Shop, Shop, Shop]:
    """The old model, the new one as it started, and as it was filled."""
    torch.manual_seed(0)
    before, first, after = Shop(old, **settings), Shop(new, **settings), Shop(new, **settings)
    after.load_state_dict(first.state_dict())
    old.write(tmp_path / "items.parquet")
    write_weights(tmp_path, before)
    copy_weights(after, new, Run(tmp_path, tiny(), {}))
    return before, first, after


@pytest.mark.parametrize("ids", [True, False])
def test_equal_features_have_equal_vectors(ids: bool, tmp_path: Path) -> None:
    before, first, after = warm(tmp_path, OLD, NEW, ids=ids)
    torch.testing.assert_close(after.items.all()[:4], before.items.all()[1:])
    brands = [shop.items.tables[0].weight for shop in (before, first, after)]
    assert torch.equal(brands[2][3:], brands[1][3:]), "values that the run never saw keep their first vectors"
    assert torch.equal(brands[2][:3], brands[0][[0, 2, 3]])
    assert torch.equal(after.items.codes, first.items.codes) and torch.equal(after.items.numbers, first.items.numbers)
    if ids:
        assert torch.equal(after.items.embedding.weight[4:], first.items.embedding.weight[4:])


def test_a_price_is_a_line_of_the_raw_number(tmp_path: Path) -> None:
    """A price between two of the run's has the vector between theirs, whatever else the new data holds."""
    before, _, after = warm(tmp_path, OLD, goods([1, 9], ["a", "a"], [1.0, 1.5]), ids=False)
    old = before.items
    wanted = old.linear(old.numbers[:2]).mean(0) + old.tables[0].weight[1]
    torch.testing.assert_close(after.items.all()[1], wanted)


def test_a_constant_or_missing_price(tmp_path: Path) -> None:
    before, _, after = warm(tmp_path, OLD, goods([1, 4], ["a", None], [4.0, 4.0]), ids=False)
    three = before.items.linear(before.items.numbers[2])
    torch.testing.assert_close(after.items.all(), three + before.items.tables[0].weight[:2].flip(0))
    before, _, after = warm(tmp_path, OLD, goods([5, 4], ["c", "c"], [None, None]), ids=False)
    torch.testing.assert_close(after.items.all(), before.items.all()[[4, 4]])


def test_as_many_values_as_items_are_still_values(tmp_path: Path) -> None:
    """5 items and 5 codes (missing, a .. d) before and after, in another order of the items."""
    old = goods([1, 2, 3, 4, 5], ["a", "b", "c", "d", None], [1.0, 2.0, 3.0, 4.0, 5.0])
    new = goods([2, 1, 3, 5, 4], ["b", "a", "c", None, "d"], [2.0, 1.0, 3.0, 5.0, 4.0])
    for ids in (True, False):
        before, _, after = warm(tmp_path, old, new, ids=ids)
        torch.testing.assert_close(after.items.all(), before.items.all()[[1, 0, 2, 4, 3]])


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    numbered = Catalog(NEW.frame.with_columns(brand=pl.Series([1, 2, 3, 4, 5, 6])))
    with refused("column-type-changed", "'brand'", "String", "Int64"):
        warm(tmp_path, OLD, numbered)


def test_going_on_with_features(market: Store, tmp_path: Path) -> None:
    """From end to end, with brands and prices of which some are gone and some are new."""
    spec = tiny("training.max_epochs=1", "model.items={kind: features, categorical: [brand], numeric: [price]}")
    run = fr.train(spec, market, tmp_path / "run", progress=False)
    frame = market.catalog.frame.select("item_id", "brand", "price")
    new = pl.DataFrame({"item_id": [10**6], "brand": ["Aaa, a new brand"], "price": [1e4]})
    table = pl.concat([frame[20:], new.select(pl.col(n).cast(frame[n].dtype) for n in frame.columns)])
    data = fr.prepare(events(table["item_id"].to_list(), users=90), tmp_path / "store", items=table)
    went_on = go_on(run, data, tmp_path / "on")
    place = torch.from_numpy(run.catalog.lookup(data.catalog.ids))
    before, after = run.model().items.all(), went_on.model().items.all()
    assert (place < 0).sum() == 1
    torch.testing.assert_close(after[place >= 0], before[place[place >= 0]])


FIELDS: list[Any] = [
    "user", {"name": "item", "min_count": 2}, {"name": "age", "kind": "numeric", "transform": "linear"},
    {"name": "tags", "kind": "bag"}, {"name": "note", "hash_buckets": 6},
    {"name": "size", "kind": "numeric", "transform": "bucket", "buckets": 4},
    {"name": "seen", "kind": "sequence", "shares": "item"},
]  # fmt: skip
FROZEN_RANKER = ("training.lr=1e-30", "training.max_epochs=1", "model.embedding.l2=0")


def log(rows: int, seed: int, *, gone: int = 0) -> pl.DataFrame:
    """Users and items from number `gone` on: the others left, new ones came."""
    frame = table(rows, seed).with_columns(user=pl.col("user") + gone, item=pl.col("item") + gone)
    return frame.with_columns(size=pl.col("note") % 40 + 0.25 * gone, seen=pl.concat_list("item", pl.col("item") + 1))


def prepared(folder: Path, frame: pl.DataFrame, fields: list[Any] = FIELDS) -> ImpressionStore:
    return fr.prepare_impressions(frame, folder, schema={"fields": fields, "group": "user"})


@pytest.fixture(scope="module")
def ranker_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("warm")
    store = prepared(home / "store", log(900, 0))
    return fr.train(tiny_ranker("training.max_epochs=2"), store, home / "run", progress=False)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    return prepared(tmp_path_factory.mktemp("later") / "store", log(900, 5, gone=6))


@pytest.fixture(scope="module")
def went_on(ranker_run: Run, later: ImpressionStore, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on(ranker_run, later, tmp_path_factory.mktemp("on") / "run")


def on(start: Any, store: Any, out: Path) -> Run:
    return fr.train("same", store, out, init_from=start, set=FROZEN_RANKER, progress=False)


def test_rows_are_matched_by_value(ranker_run: Run, later: ImpressionStore, went_on: Run) -> None:
    """What both know is predicted as before, although every id moved; what is new has a row of its own."""
    old = ImpressionStore.open(ranker_run.manifest["data"]["path"])
    both = log(60, 9).filter(pl.col("user").is_between(6, 19), pl.col("item").is_between(6, 28))
    both = both.with_columns(size=pl.lit(-5.0))  # the lowest bucket of both
    before, after = (fr.predict(one, both)["probability"].to_numpy() for one in (ranker_run, went_on))
    assert len(both) > 20 and np.allclose(before, after, rtol=1e-5)
    assert not old.vocabulary("item").equals(later.vocabulary("item"))
    ids = old.encoder.lookups["user"].ids(pl.Series(["20", "25"]))
    assert ids.tolist() == [1, 1], "unknown to the old run"
    fresh = fr.predict(went_on, both.with_columns(user=20))["probability"].to_numpy()
    assert not np.allclose(fresh, fr.predict(ranker_run, both.with_columns(user=20))["probability"], rtol=1e-5)


def test_the_weights_of_the_ranker_are_those_of_the_run(ranker_run: Run, went_on: Run) -> None:
    old, new = ranker_run.model().state_dict(), went_on.model().state_dict()
    assert old.keys() == new.keys()
    for name in old:
        if "tables" not in name:
            assert torch.allclose(old[name], new[name]), name


def test_a_second_start_on_the_same_data_is_the_run_itself(ranker_run: Run, tmp_path: Path) -> None:
    again = on(ranker_run, ranker_run.manifest["data"]["path"], tmp_path / "on")
    old, new = ranker_run.model().state_dict(), again.model().state_dict()
    assert all(torch.allclose(old[name], new[name]) for name in old)
    assert again.manifest["init_from"] == str(ranker_run.path.resolve())


def test_the_earlier_run_needs_no_store(ranker_run: Run, later: ImpressionStore, went_on: Run, tmp_path: Path) -> None:
    """Its own encoder says which row is which value: the start is the same, whether its store is there or not."""
    manifest = Path(shutil.copytree(ranker_run.path, tmp_path / "run")) / "manifest.json"
    change_json(manifest, data={**ranker_run.manifest["data"], "path": str(tmp_path / "gone")})
    reseal(tmp_path / "run")
    assert same_weights(went_on, on(tmp_path / "run", later, tmp_path / "on"))


def test_buckets_are_matched_by_their_middles() -> None:
    ids, known = _buckets(np.array([0.0, 10.0, 20.0]), np.array([1.0, 11.0, 21.0]))
    assert ids.tolist() == [2, 3, 4, 5] and known.tolist() == [2, 3, 4, 5]
    ids, known = _buckets(np.array([0.0, 10.0]), np.array([-5.0, 4.0, 12.0]))
    assert known.tolist() == [2, 2, 3, 4]
    assert _buckets(np.array([1.0]), np.array([]))[0].tolist() == [2]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (FIELDS[:-1], "other-fields"),
        ([FIELDS[1], FIELDS[0], *FIELDS[2:]], "other-fields"),
        ([{"name": "user", "hash_buckets": 9}, *FIELDS[1:]], "other-fields"),
        ([*FIELDS[:2], {"name": "age", "kind": "numeric", "transform": "log"}, *FIELDS[3:]], "other-fields"),
    ],
)
def test_another_schema_is_refused(ranker_run: Run, tmp_path: Path, fields: list[Any], code: str) -> None:
    store = prepared(tmp_path / "store", log(300, 1), fields)
    with refused(code):
        on(ranker_run, store, tmp_path / "on")
    assert not (tmp_path / "on").exists()


def test_what_a_model_cannot_start_from(ranker_run: Run, runs: Runs, tmp_path: Path) -> None:
    store = prepared(tmp_path / "store", log(300, 1))
    for settings in (("model.ranker.deep.hidden=[17]",), ("model.embedding.dim=4",), ("model.ranker=fm",)):
        with refused("weights-differ-from-spec"):
            fr.train(tiny_ranker(*settings), store, tmp_path / "on", init_from=ranker_run, progress=False)
    items = runs("sasrec", "training.max_epochs=1")
    with refused("run-of-other-problem"):
        fr.train(tiny_ranker(), store, tmp_path / "on", init_from=items, progress=False)
    other = prepared(tmp_path / "other", log(300, 1, gone=500), FIELDS[:2])
    alone = fr.train(
        tiny_ranker(*FROZEN_RANKER), prepared(tmp_path / "old", log(300, 1), FIELDS[:2]), tmp_path / "r", progress=False
    )
    with refused("no-known-values"):
        on(alone, other, tmp_path / "on")
    as_format_1(alone.path)
    assert on(alone.path, tmp_path / "old", tmp_path / "with").rows()
    shutil.rmtree(tmp_path / "old")
    with refused("missing-store"):
        on(alone.path, store, tmp_path / "on")
