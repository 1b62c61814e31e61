"""What peers are given and how their lists are scored; the peers themselves are not installed here."""

import argparse
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from benchmarks.data import tiny
from benchmarks.harness import Wrong
from benchmarks.impressions import prepared
from benchmarks.peers import __main__ as peers
from benchmarks.peers import environments, ranking
from benchmarks.peers.exchange import K, export, read_lists, score
from benchmarks.retrieve import model_of
from fullrank.core.errors import UserError
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation import Evaluation, evaluate
from fullrank.inference.predict import predict_batch
from fullrank.inference.recommend import rank
from fullrank.run.experiment import Experiment


def frame(store: Store, ids: np.ndarray) -> pl.DataFrame:
    users = store.eval_set("test").users
    places = np.tile(np.arange(1, K + 1), len(users))
    return pl.DataFrame({"user_id": np.repeat(users, K), "item_id": ids.ravel(), "rank": places})


@pytest.fixture
def store() -> Store:
    return tiny()


@pytest.fixture
def lists(store: Store) -> np.ndarray:
    torch.manual_seed(0)
    return rank(model_of(store, dim=8), store.eval_set("test").histories, k=K).ids


def test_the_scorer_is_right() -> None:
    peers.check()


def test_a_scorer_that_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "score", lambda store, ids: score(store, np.roll(ids, 1, axis=1)))
    with pytest.raises(Wrong, match="rank 3"):
        peers.check()


def test_scores_are_those_of_evaluation(store: Store, lists: np.ndarray, tmp_path: Path) -> None:
    frame(store, lists).sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "lists")
    found = score(store, read_lists(store, tmp_path / "lists"))
    wanted = evaluate(model_of(store, dim=8), store, "test", Evaluation(metrics=("ndcg@10", "recall@10")))
    assert found["ndcg@10"] == pytest.approx(wanted.metrics["ndcg@10"])
    assert found["recall@10"] == pytest.approx(wanted.metrics["recall@10"])
    assert found["full_lists"] == 1 and found["seen_listed"] == 0


def test_peers_get_the_split_in_order_and_no_targets(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path, {"rows": 8})
    train, history = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("train", "history"))
    for user in (0, 1, 17, store.num_users - 1):
        low, middle, high = store.offsets[user], *store.bounds[user]
        assert train.filter(user_id=user).sort("timestamp")["item_id"].to_list() == store.items[low:middle].tolist()
        assert history.filter(user_id=user).sort("timestamp")["item_id"].to_list() == store.items[low:high].tolist()
    assert len(history) == store.num_events - store.num_users
    assert history.select("user_id", "timestamp").is_unique().all()
    assert json.loads((tmp_path / "settings.json").read_text()) == {"rows": 8, "items": store.num_items, "k": K}


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (pl.col("user_id") + 1000, "nobody"),
        (pl.col("rank") - 1, "rank outside"),
        (pl.lit(1).alias("rank"), "one rank"),
        (pl.lit(5).alias("item_id"), "twice"),
    ],
)
def test_what_is_no_table_of_lists_is_refused(
    store: Store, lists: np.ndarray, tmp_path: Path, fault: pl.Expr, named: str
) -> None:
    frame(store, lists).with_columns(fault).write_parquet(tmp_path / "lists")
    with pytest.raises(Wrong, match=named):
        read_lists(store, tmp_path / "lists")


def test_short_lists_are_counted(store: Store, lists: np.ndarray, tmp_path: Path) -> None:
    frame(store, lists).filter(pl.col("rank") <= 6).write_parquet(tmp_path / "lists")
    ids = read_lists(store, tmp_path / "lists")
    assert (ids[:, 6:] == -1).all() and (ids[:, :6] == lists[:, :6]).all()
    assert score(store, ids)["full_lists"] == 0


RUNNER = """
import json, shutil, sys
folder, out, precision = sys.argv[1:]
settings = json.load(open(folder + "/settings.json"))
if settings["rows"] == 0:
    sys.exit("no rows were given")
shutil.copy(folder + "/made", out + "/lists.parquet")
timing = {"library": f"Peer {precision}", "seconds_per_epoch": 6.0, "users": 90, "recommend_seconds": 2.0}
json.dump(timing, open(out + "/timing.json", "w"))
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "run_peer.py").write_text(RUNNER)
    monkeypatch.setattr(peers, "HERE", tmp_path)
    return tmp_path


@pytest.mark.process
@pytest.mark.parametrize("rows", [4, 0])
def test_a_runner_gives_a_row_whatever_happens(store: Store, lists: np.ndarray, stand_in: Path, rows: int) -> None:
    settings: dict[str, Any] = {"rows": rows, "threads": 1, "seconds": 60}
    folder = stand_in / "exchange"
    export(store, folder, settings)
    frame(store, lists).write_parquet(folder / "made")
    row = peers.run("peer", Path(sys.executable), folder, store, settings, "bf16")
    if rows:
        assert (row["library"], row["precision"]) == ("Peer bf16", "bf16")
        assert row["users_per_s"] == 45 and row["recall@10"] == pytest.approx(
            score(store, lists)["recall@10"], rel=1e-3
        )
    else:
        assert row == {"library": "peer", "precision": "bf16", "failed": "no rows were given"}
        assert "no rows were given" in peers.shown([row])


def test_ratios_are_above_one_where_the_peer_is_slower() -> None:
    rows = [
        {"library": "fullrank", "precision": "fp32", "seconds_per_epoch": 2.0, "users_per_s": 900.0},
        {"library": "fullrank", "precision": "bf16", "seconds_per_epoch": 1.0, "users_per_s": 600.0},
        {"library": "Peer", "precision": "fp32", "seconds_per_epoch": 8.0, "users_per_s": 300.0},
        {"library": "other", "precision": "fp32", "failed": "out of memory"},
    ]
    assert peers.ratios(rows) == {
        "peer_epoch_over_ours": 4.0, "peer_recommend_over_ours": 3.0,
        "peer_epoch_over_ours_bf16": 8.0, "peer_recommend_over_ours_bf16": 2.0,
    }  # fmt: skip
    assert peers.ratios(rows[2:]) == {}


def test_an_environment_is_made_again_when_its_pins_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pins, commands = tmp_path / "pins.txt", []
    pins.write_text("a==1\n")
    monkeypatch.setattr(environments, "PLACE", tmp_path / "place")
    monkeypatch.setattr(environments, "requirements", lambda name: pins)
    monkeypatch.setattr(environments, "_cpu_index", lambda: [])

    def note(command: list[str]) -> None:
        commands.append(command[1:])
        (tmp_path / "place" / "peer").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(environments, "_run", note)
    for _ in range(2):
        environments.python_of("peer", lambda text: None)
    assert len(commands) == 3 and commands[1][-1] == environments.TORCH  # torch before the pins, once
    pins.write_text("a==2\n")
    environments.python_of("peer", lambda text: None)
    assert len(commands) == 6


@pytest.mark.parametrize("name", ["rectools", "replay", "fuxictr"])
def test_requirements_are_pinned_to_one_torch(name: str) -> None:
    lines = [x for x in environments.requirements(name).read_text().splitlines() if not x.startswith("#")]
    assert all("==" in line for line in lines) and environments.TORCH in lines


def test_a_part_of_an_epoch_is_scaled_up() -> None:
    spec = importlib.util.spec_from_file_location("common", environments.HERE / "runners" / "common.py")
    assert spec is not None and spec.loader is not None
    common = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(common)
    clock = common.Clock()
    clock.begun, clock.last, clock.batches, clock.epochs = 0.0, 6.0, 3, []
    figures = clock.figures(10)
    assert figures["seconds_per_epoch"] == 20 and figures["epoch_extrapolated"] and figures["epochs"] == 0.3
    clock.last, clock.batches, clock.epochs = 35.0, 25, [10.0, 22.0, 34.0]
    figures = clock.figures(10)
    assert figures["seconds_per_epoch"] == 12 and not figures["epoch_extrapolated"] and figures["epochs"] == 2.5


@pytest.fixture
def shown(tmp_path: Path) -> ImpressionStore:
    return prepared(400, tmp_path / "impressions")


def test_a_scorer_of_probabilities_that_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ranking.score
    monkeypatch.setattr(ranking, "score", lambda store, p: right(store, np.roll(p, 1)))
    with pytest.raises(Wrong, match="AUC"):
        peers.check()
    monkeypatch.setattr(ranking, "score", lambda store, p: right(store, p) | {"logloss": 0.5})
    with pytest.raises(Wrong, match="LogLoss"):
        peers.check()


def test_rankers_get_the_splits_and_no_test_labels(shown: ImpressionStore, tmp_path: Path) -> None:
    settings = ranking.settings_of("finalmlp", shown, {"epochs": 2, "threads": 1, "seed": 5})
    ranking.export(shown, tmp_path, settings)
    tables = {part: pl.read_parquet(tmp_path / f"{part}.parquet") for part in ranking.PARTS}
    assert [("label" in table.columns) for table in tables.values()] == [True, True, False]
    names = [field.name for field in shown.fields]
    for part, table in tables.items():
        batch = shown.batch(shown.split(part))
        single = [field.name for field in shown.fields if field.kind == "categorical"]
        assert np.array_equal(table.select(single).to_numpy(), batch.categorical.numpy())
        assert table["genres"].to_list() == batch.bags[0].ids.tolist()
        assert table.columns[: len(names)] == names
    assert np.array_equal(tables["train"]["label"].to_numpy(), shown.labels("train"))
    spec = Experiment.parse(json.loads((tmp_path / "settings.json").read_text())["experiment"])
    assert (spec.seed, spec.training.max_epochs, spec.recipe) == (5, 2, "finalmlp-frappe")


def test_scores_of_probabilities_are_those_of_evaluation(shown: ImpressionStore, tmp_path: Path) -> None:
    run = fr.train("dnn", shown, tmp_path / "run", set=["training.max_epochs=1"], device="cpu", progress=False)
    found = predict_batch(run.model(), shown.batch(shown.split("test")))
    wanted = fr.evaluate(run, split="test", data=shown).metrics
    assert ranking.score(shown, found) == pytest.approx({name: wanted[name] for name in ("auc", "logloss")})


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (pl.col("row") + 1, "one row for each"),
        (pl.lit(0).alias("row"), "one row for each"),
        (pl.col("probability") + 1, "outside 0 to 1"),
        (pl.lit(float("nan")).alias("probability"), "or none"),
    ],
)
def test_what_is_no_table_of_probabilities_is_refused(
    shown: ImpressionStore, tmp_path: Path, fault: pl.Expr, named: str
) -> None:
    count = len(shown.split("test"))
    table = pl.DataFrame({"row": np.arange(count), "probability": np.full(count, 0.5)})
    table.with_columns(fault).write_parquet(tmp_path / "p")
    with pytest.raises(Wrong, match=named):
        ranking.read_probabilities(shown, tmp_path / "p")


@pytest.mark.slow
def test_our_ranker_runs_as_a_peer(shown: ImpressionStore, tmp_path: Path) -> None:
    most = {"epochs": 1, "threads": 1, "seed": 0}
    ranking.export(shown, tmp_path, ranking.settings_of("dcnv2", shown, most))
    row = ranking.run("ours", Path(sys.executable), tmp_path, shown, most, "bf16")
    written = json.loads((tmp_path / "ours-bf16" / "run" / "spec.json").read_text())
    assert row["precision"] == written["training"]["precision"] == "bf16"
    assert row["library"] == "fullrank" and row["epochs"] == 1 and 0 <= row["auc"] <= 1
    assert 0 < row["seconds_per_epoch"] <= row["train_seconds"]


def test_ratios_of_rankers() -> None:
    alike = {"data": "frappe", "model": "dcnv2", "precision": "fp32"}
    ours = alike | {"library": "fullrank", "seconds_per_epoch": 2.0, "auc": 0.98, "logloss": 0.15}
    theirs = alike | {"library": "fuxictr", "seconds_per_epoch": 5.0, "auc": 0.97, "logloss": 0.16}
    other = theirs | {"model": "finalmlp"}
    found = ranking.ratios([ours, theirs, other])
    half = ours | {"precision": "bf16", "seconds_per_epoch": 1.0}
    assert ranking.ratios([half, theirs])["fuxictr_epoch_over_ours_dcnv2_frappe_bf16"] == 5
    assert found == {
        "fuxictr_epoch_over_ours_dcnv2_frappe": 2.5, "auc_above_fuxictr_dcnv2_frappe": 0.01,
        "logloss_below_fuxictr_dcnv2_frappe": 0.01,
    }  # fmt: skip
    failed = alike | {"library": "fuxictr", "failed": "out of memory"}
    assert ranking.ratios([ours, failed]) == {} and "out of memory" in ranking.shown([failed])


def test_a_library_of_the_other_task_is_refused() -> None:
    options = argparse.Namespace(task="ranking", only=["replay"], install=True)
    with pytest.raises(UserError, match="compares ours, fuxictr, not replay"):
        peers.measure(options, lambda text: None)


def test_models_are_those_of_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "ZOO", tmp_path / "zoo")
    monkeypatch.setattr(environments, "MODELS", {"M": hashlib.sha256(b"class M: ...").hexdigest()})
    monkeypatch.setenv("FULLRANK_FUXICTR", str(tmp_path))
    with pytest.raises(UserError, match="FULLRANK_FUXICTR"):
        environments.fetch_models(lambda text: None)
    file = tmp_path / "model_zoo" / "M" / "src" / "M.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"class N: ...")
    with pytest.raises(UserError, match="not the file of commit"):
        environments.fetch_models(lambda text: None)
    file.write_bytes(b"class M: ...")
    environments.fetch_models(lambda text: None)
    monkeypatch.delenv("FULLRANK_FUXICTR")
    monkeypatch.setattr(environments, "_downloaded", lambda url: pytest.fail("fetched twice"))
    environments.fetch_models(lambda text: None)
    assert (tmp_path / "zoo" / "M.py").read_bytes() == b"class M: ..."
