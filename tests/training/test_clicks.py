"""Click models in the same training room: they learn, stop, resume to the same bits, and refuse the wrong store."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fullrank as fr
from fullrank.core.registry import kinds
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.ranking.model import RankingModel
from fullrank.run import Run
from fullrank.training.data_module import ImpressionLoader
from fullrank.training.fit import fit
from fullrank.training.optim import RowOptimizer, clip_gradients, make_optimizer
from refusals import refused
from tests.training.clicks import HISTORIES, shop, table, tiny, with_histories
from tests.training.conftest import Runs, Stop, Stopped, column, same_weights, weights
from tests.training.conftest import tiny as sasrec
from tiny import drawn

TIMED = ("rows_per_s", "seconds", "validation_seconds")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    return shop(tmp_path_factory.mktemp("shop") / "store")


@pytest.fixture
def clicked(store: ImpressionStore, tmp_path: Path) -> Runs:
    return Runs(store, tmp_path, tiny)


@pytest.fixture(scope="module")
def run(store: ImpressionStore, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Runs(store, tmp_path_factory.mktemp("runs"), tiny)("run", "training.max_epochs=2")


def rows(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if k not in TIMED} for row in run.rows()]


def test_it_learns_and_its_best_epoch_is_kept(store: ImpressionStore, clicked: Runs) -> None:
    run = clicked("run", "training.max_epochs=8")
    losses, best = column(run, "train/bce"), max(column(run, "validation/auc"))
    assert losses[-1] < 0.5 < losses[0] and min(column(run, "rows_per_s")) > 0
    assert fr.evaluate(run, "validation").metrics["auc"] == pytest.approx(best, abs=1e-6) and best > 0.8
    assert run.fields == store.fields and not (run.path / "items.parquet").exists()


def test_every_recipe_trains_and_is_read_back(store: ImpressionStore, tmp_path: Path) -> None:
    small = ("training.max_epochs=1", "training.batch_size=512", "evaluation.bootstrap=5")
    whole = fr.prepare_impressions(with_histories(table()), tmp_path / "histories", schema=HISTORIES)
    for name in kinds("recipes"):
        spec = fr.recipe(name)
        if isinstance(spec.model, RankingModel):
            shown = whole if spec.model.sequences.learns else store
            run = fit(spec.override(*small, "seed=3"), shown, tmp_path / name, progress=False)
            found = fr.evaluate(Run.open(run.path), "validation")
            assert 0 < found.metrics["auc"] < 1 and 0.3 < found.metrics["logloss"] < 1.5, name
            assert fr.predict(run, with_histories(table(3))).height == 3, name


def test_predict_equals_evaluation(run: Run, store: ImpressionStore) -> None:
    found, given = fr.evaluate(run, "test"), table()
    predicted = fr.predict(run, given)
    assert predicted.columns == [*given.columns, "probability"] and predicted.drop("probability").equals(given)
    places = store.external(found.per_impression.rows)["input_row"].to_numpy()
    same = predicted["probability"].to_numpy()[places]
    assert np.allclose(same, found.per_impression.probabilities, rtol=1e-6)
    assert np.array_equal(given["label"].to_numpy()[places], found.per_impression.labels)
    with refused("column-exists", "'probability'"):
        fr.predict(run, given.with_columns(probability=0.5))


@pytest.mark.parametrize("update", ["adamw", "lazy_adam", "rowwise_adagrad"])
def test_resume_gives_the_same_bits(clicked: Runs, update: str) -> None:
    """A run stopped after half its epochs and one that was not end in the same weights, optimizer and rows."""
    settings = (
        f"model.embedding.update={update}", "training.schedule=plateau", "model.embedding.l2=0.01",
        "training.max_epochs=4", "training.batch_size=256",
    )  # fmt: skip
    unbroken = clicked("unbroken", *settings)
    with pytest.raises(Stopped):
        clicked("broken", *settings, callbacks=(Stop(3),))
    again = clicked("broken", *settings, resume=True)
    assert same_weights(unbroken, again) and rows(unbroken) == rows(again)
    last = json.loads((unbroken.path / "checkpoints" / "last.json").read_text())["folder"]
    a, b = (read_tensors(run.path / "checkpoints" / last / "optimizer.safetensors") for run in (unbroken, again))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert same_weights(unbroken.path / "checkpoints" / last, again.path / "checkpoints" / last)


def test_plateau_cuts_the_rate_and_patience_ends_the_run(clicked: Runs) -> None:
    settings = ("training.lr=0.05", "training.max_epochs=40", "training.schedule=plateau", "training.patience=2")
    run = clicked("run", *settings)
    values = column(run, "validation/auc")
    assert len(values) < 40 and max(values) not in values[-2:]
    state = json.loads((run.path / "checkpoints" / f"step-{column(run, 'step')[-1]:09d}" / "state.json").read_text())
    best, cuts = -1.0, 0
    for value in values:
        cuts, best = (cuts, value) if value > best else (cuts + 1, best)
    assert state["cuts"] == cuts >= 2


def test_logloss_is_smaller_when_better(clicked: Runs) -> None:
    run = clicked("run", "evaluation.selection=logloss")
    best = min(column(run, "validation/logloss"))
    assert fr.evaluate(run, "validation").metrics["logloss"] == pytest.approx(best, abs=1e-6)


def test_micro_batches_add_up(clicked: Runs) -> None:
    """Without dropout, a batch in several shards moves the weights as one does."""
    plain = ("model.ranker.deep.dropout=0", "training.max_epochs=1", "model.embedding.l2=0")
    whole, *parts = (clicked(f"in {n}", *plain, f"training.accumulate={n}") for n in (1, 2, 3))
    for part in parts:
        a, b = weights(whole), weights(part)
        assert all(torch.allclose(a[name], b[name], atol=2e-3) for name in a)
        assert column(whole, "train/bce") == pytest.approx(column(part, "train/bce"), rel=1e-3)


def test_lazy_updates_leave_other_rows_alone(store: ImpressionStore) -> None:
    for update in ("lazy_adam", "rowwise_adagrad"):
        spec = tiny(f"model.embedding.update={update}")
        model = spec.model.build(store.fields)  # type: ignore[attr-defined]
        optimizer = make_optimizer(model, spec.training)
        (table_,) = model.row_parameters()
        before, batch = table_.detach().clone(), store.batch(np.arange(3))
        sum(model(batch).values()).backward()
        touched = table_.grad.coalesce().indices()[0]
        optimizer.step()
        moved = (table_ != before).any(1).nonzero()[:, 0]
        assert moved.tolist() == touched.tolist() and 0 < len(moved) < len(before) / 2


def test_lazy_adam_is_adam_where_every_row_is_touched() -> None:
    one, two = (torch.nn.Parameter(torch.arange(12.0).view(4, 3)) for _ in range(2))
    lazy = RowOptimizer([{"params": [one], "rows": "lazy_adam"}], lr=0.1, betas=(0.9, 0.999))
    adam = torch.optim.Adam([two], lr=0.1)
    for step in range(5):
        grad = drawn(4, 3, seed=step)
        one.grad, two.grad = grad.to_sparse(1), grad
        lazy.step()
        adam.step()
    assert torch.allclose(one, two, atol=1e-6)


def test_clipping_counts_a_repeated_row_as_its_sum() -> None:
    dense, sparse = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3, 1))
    dense.grad = torch.tensor([3.0, 0.0])
    sparse.grad = torch.sparse_coo_tensor([[1, 1]], [[2.0], [2.0]], (3, 1))
    clip_gradients([dense, sparse], 1.0)
    assert math.hypot(float(dense.grad.norm()), float(sparse.grad.to_dense().norm())) == pytest.approx(1.0, rel=1e-4)


def test_batches_cover_an_epoch_in_another_order_each_time(store: ImpressionStore) -> None:
    loader = ImpressionLoader(store, 100, seed=3, shards=2)
    steps, train_rows = loader.steps_per_epoch, store.split("train")
    for epoch in (0, 1):
        seen = [loader.batch(epoch * steps + k, shard).rows.tolist() for k in range(steps) for shard in (0, 1)]
        assert sorted(row for rows in seen for row in rows) == list(train_rows)
    again = ImpressionLoader(store, 100, seed=3, shards=2).batch(steps + 1, 1)
    assert torch.equal(again.rows, loader.batch(steps + 1, 1).rows) and again.count is not None
    assert not torch.equal(again.rows[:10], loader.batch(1, 1).rows[:10])


def test_the_wrong_store_is_refused(runs: Runs, store: ImpressionStore, market: Store) -> None:
    with refused("store-of-other-problem", "fullrank list rankers"):
        Runs(store, runs.home)("a")
    with refused("store-of-other-problem", "prepare-impressions"):
        Runs(market, runs.home, tiny)("a")
    assert not (runs.home / "a").exists()


def test_what_ranks_items_is_refused_on_a_click_model(run: Run, clicked: Runs) -> None:
    for ask in (lambda: fr.recommend(run, {"me": [1]}), lambda: run.catalog):
        with refused("not-a-recommender"):
            ask()
    with refused("setting-without-effect", "users", "alarm"):
        clicked("w", "training.max_epochs=1", callbacks=(fr.Watch(users=9),))
    assert not (clicked.home / "w").exists()


def test_model_and_evaluation_go_together() -> None:
    assert fr.Experiment(model="click").evaluation == fr.RankingEvaluation()
    with refused("evaluation-of-other-problem", "kind: clicks", "model=click"):
        sasrec("evaluation=clicks")
    with refused("evaluation-of-other-problem", "evaluation=clicks"):
        sasrec("model=click")
    assert sasrec("model=click", "evaluation=clicks").clicks == fr.RankingEvaluation()
