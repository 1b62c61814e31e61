"""A click model that goes on from a run with new impressions: a row belongs to a value, wherever its id is now."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data.impressions.store import ImpressionStore
from fullrank.run import Run
from fullrank.training.cold_start.warm_start_ranking import _buckets
from refusals import refused
from seals import reseal
from tests.training.clicks import as_format_1, table, tiny
from tests.training.conftest import Runs, change_json, same_weights

FIELDS: list[Any] = [
    "user", {"name": "item", "min_count": 2}, {"name": "age", "kind": "numeric", "transform": "linear"},
    {"name": "tags", "kind": "bag"}, {"name": "note", "hash_buckets": 6},
    {"name": "size", "kind": "numeric", "transform": "bucket", "buckets": 4},
    {"name": "seen", "kind": "sequence", "shares": "item"},
]  # fmt: skip
FROZEN = ("training.lr=1e-30", "training.max_epochs=1", "model.embedding.l2=0")


def log(rows: int, seed: int, *, gone: int = 0) -> pl.DataFrame:
    """Users and items from number `gone` on: the others left, new ones came."""
    frame = table(rows, seed).with_columns(user=pl.col("user") + gone, item=pl.col("item") + gone)
    return frame.with_columns(size=pl.col("note") % 40 + 0.25 * gone, seen=pl.concat_list("item", pl.col("item") + 1))


def prepared(folder: Path, frame: pl.DataFrame, fields: list[Any] = FIELDS) -> ImpressionStore:
    return fr.prepare_impressions(frame, folder, schema={"fields": fields, "group": "user"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("warm")
    store = prepared(home / "store", log(900, 0))
    return fr.train(tiny("training.max_epochs=2"), store, home / "run", progress=False)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    return prepared(tmp_path_factory.mktemp("later") / "store", log(900, 5, gone=6))


@pytest.fixture(scope="module")
def went_on(run: Run, later: ImpressionStore, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on(run, later, tmp_path_factory.mktemp("on") / "run")


def on(start: Any, store: Any, out: Path) -> Run:
    return fr.train("same", store, out, init_from=start, set=FROZEN, progress=False)


def test_rows_are_matched_by_value(run: Run, later: ImpressionStore, went_on: Run) -> None:
    """What both know is predicted as before, although every id moved; what is new has a row of its own."""
    old = ImpressionStore.open(run.manifest["data"]["path"])
    both = log(60, 9).filter(pl.col("user").is_between(6, 19), pl.col("item").is_between(6, 28))
    both = both.with_columns(size=pl.lit(-5.0))  # the lowest bucket of both
    before, after = (fr.predict(one, both)["probability"].to_numpy() for one in (run, went_on))
    assert len(both) > 20 and np.allclose(before, after, rtol=1e-5)
    assert not old.vocabulary("item").equals(later.vocabulary("item"))
    ids = old.encoder.lookups["user"].ids(pl.Series(["20", "25"]))
    assert ids.tolist() == [1, 1], "unknown to the old run"
    fresh = fr.predict(went_on, both.with_columns(user=20))["probability"].to_numpy()
    assert not np.allclose(fresh, fr.predict(run, both.with_columns(user=20))["probability"], rtol=1e-5)


def test_the_weights_of_the_ranker_are_those_of_the_run(run: Run, went_on: Run) -> None:
    old, new = run.model().state_dict(), went_on.model().state_dict()
    assert old.keys() == new.keys()
    for name in old:
        if "tables" not in name:
            assert torch.allclose(old[name], new[name]), name


def test_a_second_start_on_the_same_data_is_the_run_itself(run: Run, tmp_path: Path) -> None:
    again = on(run, run.manifest["data"]["path"], tmp_path / "on")
    old, new = run.model().state_dict(), again.model().state_dict()
    assert all(torch.allclose(old[name], new[name]) for name in old)
    assert again.manifest["init_from"] == str(run.path.resolve())


def test_the_earlier_run_needs_no_store(run: Run, later: ImpressionStore, went_on: Run, tmp_path: Path) -> None:
    """Its own encoder says which row is which value: the start is the same, whether its store is there or not."""
    manifest = Path(shutil.copytree(run.path, tmp_path / "run")) / "manifest.json"
    change_json(manifest, data={**run.manifest["data"], "path": str(tmp_path / "gone")})
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
def test_another_schema_is_refused(run: Run, tmp_path: Path, fields: list[Any], code: str) -> None:
    store = prepared(tmp_path / "store", log(300, 1), fields)
    with refused(code):
        on(run, store, tmp_path / "on")
    assert not (tmp_path / "on").exists()


def test_what_a_model_cannot_start_from(run: Run, runs: Runs, tmp_path: Path) -> None:
    store = prepared(tmp_path / "store", log(300, 1))
    for settings in (("model.ranker.deep.hidden=[17]",), ("model.embedding.dim=4",), ("model.ranker=fm",)):
        with refused("weights-differ-from-spec"):
            fr.train(tiny(*settings), store, tmp_path / "on", init_from=run, progress=False)
    items = runs("sasrec", "training.max_epochs=1")
    with refused("run-of-other-problem"):
        fr.train(tiny(), store, tmp_path / "on", init_from=items, progress=False)
    other = prepared(tmp_path / "other", log(300, 1, gone=500), FIELDS[:2])
    alone = fr.train(tiny(*FROZEN), prepared(tmp_path / "old", log(300, 1), FIELDS[:2]), tmp_path / "r", progress=False)
    with refused("no-known-values"):
        on(alone, other, tmp_path / "on")
    as_format_1(alone.path)
    assert on(alone.path, tmp_path / "old", tmp_path / "with").rows()
    shutil.rmtree(tmp_path / "old")
    with refused("missing-store"):
        on(alone.path, store, tmp_path / "on")
