"""Boosted trees are a ranking run like any other: trained, sealed, evaluated, asked, calibrated, in a cascade."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.cascade import Cascade
from fullrank.core import errors
from fullrank.core.errors import UserError
from fullrank.core.tensor_files import read_tensors
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.ranking.lightgbm import BoostedTrees, LightGBM
from fullrank.run import Run
from fullrank.run.experiment import Experiment, Training
from tests.cascade.conftest import HISTORIES as ASKED
from tests.cascade.conftest import SCHEMA as SHOWN
from tests.cascade.conftest import goods, log, people, retriever, stores
from tests.cascade.test_cascade import reference
from tests.training.clicks import HISTORIES, table, with_histories

lightgbm = pytest.importorskip("lightgbm")


def trees(*settings: str) -> Experiment:
    training = Training(max_epochs=60, lr=0.2, patience=10)
    return Experiment(recipe="lightgbm", model=LightGBM(leaves=15), training=training).override(
        "evaluation.bootstrap=0", *settings
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    return prepare_impressions(with_histories(table()), tmp_path_factory.mktemp("trees") / "store", schema=HISTORIES)


@pytest.fixture(scope="module")
def run(store: ImpressionStore, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fr.train(trees(), store, tmp_path_factory.mktemp("trees") / "run", progress=False)


def test_what_is_planted_is_found_and_kept(run: Run, store: ImpressionStore, tmp_path: Path) -> None:
    """An interaction of two fields; patience ends long before the last tree, and the best ones are kept."""
    figures = run.rows()[-1]
    found = fr.evaluate(run, "validation")
    assert found.metrics["auc"] > 0.8 and figures["validation/auc"] == pytest.approx(found.metrics["auc"])
    assert 1 <= figures["trees"] == run.model().booster.num_trees() < 60
    again = fr.train(trees(), store, tmp_path / "again", progress=False)
    assert torch.equal(again.model().text, run.model().text)
    last = fr.train(trees("training.keep=last", "training.patience=null"), store, tmp_path / "last", progress=False)
    assert last.rows()[-1]["trees"] == 60


def test_predictions_are_lightgbms_own(run: Run, tmp_path: Path) -> None:
    """The weights are its text, and what it is asked about are the ids and numbers of the fields."""
    text = bytes(read_tensors(run.path / "weights.safetensors")["text"].tolist()).decode("ascii")
    frame = with_histories(table(200, seed=1)).with_columns(
        user=pl.when(pl.col("note") % 9 == 0).then(None).otherwise("user")
    )
    encoded = run.encoder().encode(frame, "rows")
    rows = []
    for at in range(len(frame)):
        tags, history = (bag.take(np.array([at])).flat() for bag in encoded.bags)
        rows.append([
            *encoded.categorical[at], encoded.numeric[at, 0],
            tags[0] if len(tags) else 0, len(tags), history[-1] if len(history) else 0, len(history),
        ])  # fmt: skip
    expected = lightgbm.Booster(model_str=text).predict(np.array(rows, float))
    found = fr.load(run).predict(frame)["probability"]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.n_unique() > 100 and np.isnan(np.array(rows, float)).any()


def test_groups_are_ranked(store: ImpressionStore, tmp_path: Path) -> None:
    ranked = fr.train(
        trees("model.objective=lambdarank", "evaluation.selection=gauc"), store, tmp_path / "run", progress=False
    )
    found = fr.evaluate(ranked, "test")
    assert found.metrics["gauc"] > 0.8
    calibrated = fr.calibrate(ranked, tmp_path / "calibrated")
    assert fr.evaluate(calibrated, "test").metrics["logloss"] < min(found.metrics["logloss"], 0.6)
    bare = prepare_impressions(table(), tmp_path / "bare", schema={"fields": ["user", "item"]})
    with pytest.raises(UserError, match="lambdarank needs a group column"):
        fr.train(trees("model.objective=lambdarank"), bare, tmp_path / "no", progress=False)


def test_a_cascade_equals_the_joined_table(tmp_path: Path) -> None:
    events, _ = stores(tmp_path)
    clicks = log(1200).with_columns(label=(pl.col("item") + pl.col("hour")) % 2)
    shown = prepare_impressions(clicks, tmp_path / "shown", schema=SHOWN)
    made = fr.train(trees("training.max_epochs=5", "model.least=5"), shown, tmp_path / "run", progress=False)
    cascade = Cascade(retriever(events), made, users=people(), items=goods())
    asked: dict[str, Any] = {"hour": 3}
    expected = reference(cascade, ASKED, 12, asked, people(), goods())
    found = cascade.recommend(ASKED, k=12, candidates=12, context=asked).sort("user", maintain_order=True)
    assert found.select("user", "item").equals(expected.select("user", "item")) and found["score"].n_unique() > 2


@pytest.mark.parametrize("setting", ["training.weight_decay=0.1", "training.batch_size=8", "training.ema=0.9"])
def test_idle_settings_are_refused(setting: str, store: ImpressionStore, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="boosted trees, which read max_epochs, lr"):
        fr.train(trees(setting), store, tmp_path / "run", progress=False)


def test_what_trees_have_not_is_said(run: Run, store: ImpressionStore, tmp_path: Path) -> None:
    for ask in (lambda: fr.diagnose(run), lambda: fr.export(run, tmp_path / "graph", to="torch")):
        with pytest.raises(UserError, match="ranker with layers"):
            ask()
    with pytest.raises(UserError, match="start from"):
        fr.train("dcnv2", store, tmp_path / "from", init_from=run, progress=False)


def test_damage_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = BoostedTrees(run.fields)
    model.keep("tree\nrubbish")
    with pytest.raises(UserError, match="LightGBM cannot read the trees"):
        _ = model.booster
    other = BoostedTrees(run.fields[:2])
    other.keep(bytes(run.model().text.tolist()).decode())
    with pytest.raises(UserError, match="the fields have 2"):
        _ = other.booster
    monkeypatch.setattr("fullrank.models.ranking.lightgbm.MOST_BYTES", 100)
    with pytest.raises(UserError, match="at most 100 are read"):
        run.model()


def test_a_missing_package_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    model = run.model()
    monkeypatch.setattr(errors.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"needs the package lightgbm: pip install .*\[lightgbm\]"):
        _ = model.booster
