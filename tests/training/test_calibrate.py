"""Calibration of ranking models: what is fitted, on which rows, and that whatever gives probabilities applies it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.optimize import minimize

import fullrank as fr
from fullrank.cascade.stages import RankingStage
from fullrank.data.impressions.encoding import transform
from fullrank.inference.predict import predict_batch
from fullrank.metrics import ctr
from fullrank.models.ranking.calibration import Calibration, logits_of
from fullrank.run.manifest import reopen_run
from fullrank.training.calibrate import LEAST_ROWS, METHODS, calibrate, fit_calibration
from refusals import refused
from tests.training.clicks import as_format_1, shop, table, tiny
from tests.training.conftest import change_json


def overconfident(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities whose logits are twice too large and too low by one, and clicks."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(-0.5, 1.2, rows)
    clicks = (rng.random(rows) < 1 / (1 + np.exp(-truth))).astype(float)
    return 1 / (1 + np.exp(-(2 * truth - 1))), clicks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fr.Run:
    home = tmp_path_factory.mktemp("calibrated")
    shop(home / "data")
    return fr.train(tiny("training.max_epochs=2"), home / "data", home / "run", device="cpu", progress=False)


@pytest.fixture
def made(run: fr.Run, tmp_path: Path) -> fr.Run:
    return fr.calibrate(run, tmp_path / "made", device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_it_mends_what_is_wrong_and_keeps_the_order(method: str) -> None:
    """On other rows than those it was fitted on, and also with few rows, ties and probabilities of 0 and 1."""
    made = fit_calibration(method, *overconfident(20_000, 0))
    p, clicks = overconfident(20_000, 1)
    better = made.of_probabilities(p)
    before, after = (ctr.ece(ctr.reliability_curve(one, clicks)) for one in (p, better))
    assert before > 0.15 and after < 0.015
    assert ctr.losses(better, clicks).mean() < ctr.losses(p, clicks).mean() - 0.05
    assert abs(better.sum() / clicks.sum() - 1) < 0.03 < abs(p.sum() / clicks.sum() - 1)
    assert np.array_equal(np.argsort(p, kind="stable"), np.argsort(better, kind="stable"))
    assert np.allclose(made.inverse().of_probabilities(better), p, atol=1e-9)
    assert Calibration.parse(json.loads(made.to_json())) == made
    for rows in (2, 7, 90):
        few = np.r_[0.0, 1.0, np.round(np.linspace(0.1, 0.9, rows - 2), 1)]
        hit = np.r_[0.0, 1.0, np.arange(rows - 2) % 2]
        found = fit_calibration(method, few, hit).of_probabilities(few)
        assert ((found > 0) & (found < 1)).all() and np.array_equal(np.argsort(few), np.argsort(found))


def test_each_method_is_the_best_of_its_kind() -> None:
    """Platt against another optimiser; isotonic against the min-max formula of the parts, at its knots."""
    p, clicks = overconfident(400, 3)
    scores, n = logits_of(p), clicks.sum()
    targets = np.where(clicks > 0, (n + 1) / (n + 2), 1 / (len(p) - n + 2))
    platt = fit_calibration("platt", p, clicks)

    def loss(line: np.ndarray) -> float:
        x = line[0] * scores + line[1]
        return float((np.logaddexp(0, x) - targets * x).sum())

    best = minimize(loss, [0.5, 0.5], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x
    assert [platt.slope, platt.knots[0][1]] == pytest.approx(best, abs=1e-5) and platt.knots[0][0] == 0
    parts = ctr.reliability_curve(scores, clicks, len(p) // LEAST_ROWS)
    weight = np.array([part.rows + 1 for part in parts])
    rate = np.array([part.rate * part.rows + clicks.mean() for part in parts]) / weight

    def mean(low: int, high: int) -> float:
        return float(np.average(rate[low : high + 1], weights=weight[low : high + 1]))

    steps = range(len(parts))
    rising = [max(min(mean(low, high) for high in steps if high >= i) for low in steps if low <= i) for i in steps]
    isotonic = fit_calibration("isotonic", p, clicks)
    assert [1 / (1 + np.exp(-y)) for _, y in isotonic.knots] == pytest.approx(sorted({round(r, 12) for r in rising}))
    assert isotonic.slope == platt.slope


@pytest.mark.parametrize("method", METHODS)
def test_everything_that_gives_probabilities_applies_it(run: fr.Run, method: Any, tmp_path: Path) -> None:
    made = fr.calibrate(run, tmp_path / "made", method=method, device="cpu")
    found = made.calibration
    assert found is not None and found.method == method and run.calibration is None
    plain, own = (fr.predict(one, table(300), device="cpu")["probability"].to_numpy() for one in (run, made))
    assert not np.allclose(plain, own) and np.allclose(found.of_probabilities(plain), own, atol=1e-9)
    made_file = fr.predict_file(made, table(300), tmp_path / "p.parquet", device="cpu")
    assert np.array_equal(pl.read_parquet(made_file.out)["probability"].to_numpy(), own)
    stage = RankingStage.of(made)  # what a cascade and `serve --ranker` score pairs with
    assert np.array_equal(predict_batch(stage.model, transform(stage.encoder, table(300), "t")), own)
    before, after = (fr.evaluate(one, device="cpu") for one in (run, made))
    told = after.protocol["calibration"]
    assert (told["method"], told["rows"], told["fitted_on"]) == (method, found.rows, "validation")
    assert told["before"] == pytest.approx({name: before.metrics[name] for name in told["before"]}, abs=1e-7)
    assert after.metrics["auc"] == before.metrics["auc"] and after.metrics["gauc"] == before.metrics["gauc"]
    assert fr.compare(before, after, "logloss").difference == after.metrics["logloss"] - before.metrics["logloss"]
    assert fr.verify(made.path).ok and made.manifest["format_version"] == 4
    again = fr.calibrate(made, tmp_path / "again", method=method, device="cpu").calibration
    assert again is not None and again == found, "from the logits as trained"
    shipped = fr.export(made, tmp_path / "shipped", to="folder")
    assert shipped.calibration == found


def test_it_is_fitted_on_validation_alone(run: fr.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = fr.ImpressionStore.open(run.manifest["data"]["path"]), []
    plain = fr.ImpressionStore.batch
    monkeypatch.setattr(
        fr.ImpressionStore, "batch", lambda self, rows: [read.extend(np.asarray(rows).tolist()), plain(self, rows)][1]
    )
    calibration = fr.calibrate(run, tmp_path / "made", device="cpu").calibration
    assert read == list(store.split("validation")) and calibration is not None and calibration.rows == len(read)


def test_what_is_refused(run: fr.Run, made: fr.Run, tmp_path: Path) -> None:
    with refused("unknown-method", "isotonic"):
        calibrate(run, tmp_path / "out", method="isotonik")
    with refused("calibration-not-rising", "auc"):
        fit_calibration("platt", np.linspace(0.9, 0.1, 50), np.r_[np.zeros(25), np.ones(25)])
    with refused("constant-labels"):
        fit_calibration("platt", np.full(5, 0.5), np.ones(5))
    with refused("folder-not-empty"):
        fr.calibrate(run, made.path, device="cpu")
    file = made.path / "calibration.json"
    tree = json.loads(file.read_text())
    for change in ({"slope": -1.0}, {"knots": [[1, 0], [0, 1]]}, {"slope": "x"}, {"knots": []}, {"method": "eval"}):
        with refused("calibration-not-rising" if change.get("knots") else "invalid-setting"):
            Calibration.parse(tree | change)
    change_json(file, slope=tree["slope"] * 2)
    with refused("file-damaged", "calibration.json"):
        fr.Run.open(made.path).model()
    file.unlink()
    with refused("missing-file"):
        fr.Run.open(made.path)
    old = fr.export(run, tmp_path / "old", to="folder")
    with refused("run-not-finished", "format 1"):
        fr.calibrate(as_format_1(old.path), tmp_path / "new", device="cpu")


def test_training_on_forgets_it(run: fr.Run, made: fr.Run, tmp_path: Path) -> None:
    """Its weights are about to change."""
    how = {"set": ["training.max_epochs=1"], "device": "cpu", "progress": False}
    new = fr.train("same", run.manifest["data"]["path"], tmp_path / "new", init_from=made, **how)
    assert new.calibration is None and torch.isfinite(next(iter(new.tensors().values()))).all()
    reopen_run(made.path)
    again = fr.Run.open(made.path)
    assert again.calibration is None and again.manifest["format_version"] == 3
