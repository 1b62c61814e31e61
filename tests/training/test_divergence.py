"""A training that diverges ends with a sentence, at once, and leaves nothing that counts as trained."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.run import Run
from fullrank.training.fit import fit
from refusals import refused
from tests.training import clicks
from tests.training.conftest import tiny

EVERY_STEP = "training.checkpoint_minutes=0"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    return clicks.shop(tmp_path_factory.mktemp("shop") / "store")


class Spoil:
    """Puts a value into the first matrix behind an optimizer step."""

    every = 1

    def __init__(self, step: int, value: float):
        self.step, self.value = step, value

    def on_epoch(self, state: Any) -> dict[str, Any]:
        if state.step == self.step:
            next(p for p in state.model.parameters() if p.ndim == 2).data.fill_(self.value)
        return {}


def test_no_loss_or_weight_that_is_not_finite_is_called_a_success(
    market: Store, shop: ImpressionStore, tmp_path: Path
) -> None:
    """Wherever it comes: the loss shows it in the next step, and only the weights before a checkpoint."""
    for value, (name, spec, store) in itertools.product(
        (math.nan, math.inf), (("retrieval", tiny, market), ("ranking", clicks.tiny, shop))
    ):
        for setting, code in {"seed=1": "loss-not-finite", EVERY_STEP: "weights-not-finite"}.items():
            out = tmp_path / f"{name} {value} {code}"
            with refused(code, "training.lr"):
                fit(spec(setting), store, out, callbacks=(Spoil(2, value),), progress=False)
            assert not (out / "weights.safetensors").exists()
            assert max(row["step"] for row in Run.open(out).rows()) == 2


def test_a_loss_that_is_far_above_a_guess_ends_training_in_its_first_epochs(
    market: Store, shop: ImpressionStore, tmp_path: Path
) -> None:
    wild = {
        # a larger rate gives NaN on some processors
        "retrieval": (tiny("training.lr=0.1", "model.scoring.temperature=1e-6"), market),
        "ranking": (clicks.tiny("training.lr=100"), shop),
    }
    for name, (spec, store) in wild.items():
        with refused("loss-too-large", "training.max_loss=10000", "training.lr"):
            fit(spec, store, tmp_path / name, progress=False)
        assert not (tmp_path / name / "weights.safetensors").exists()
        run = fit(spec.override("training.max_loss=null", "training.max_epochs=1"), store, tmp_path / f"{name} asked")
        assert run.rows()[-1]["train/loss"] > 1e4
    with refused("loss-too-large"):  # the same where it goes on from its checkpoint
        fit(wild["retrieval"][0], market, tmp_path / "retrieval", resume=True, progress=False)


def test_a_long_epoch_is_not_waited_for(market: Store, tmp_path: Path) -> None:
    spec = tiny("training.batch_size=16", "training.lr=0.1", "model.scoring.temperature=1e-6")
    with refused("loss-too-large", "first 50 steps"):
        fit(spec, market, tmp_path / "run", progress=False)


def test_a_cell_of_a_sweep_that_diverges_is_recorded_and_the_others_go_on(market: Store, tmp_path: Path) -> None:
    wild = {"training.lr": 100, "model.scoring.temperature": 1e-6, "training.max_epochs": 2, "model.dim": 16}
    nan = wild | {"training.weight_decay": 1e6}  # already in the steps that tell what it will cost
    cells = [
        {"name": name, "recipe": recipe, "set": settings}
        for name, recipe, settings in (("wild", "gru4rec", wild), ("nan", "gru4rec", nan), ("tame", "popularity", {}))
    ]
    rows = {row["cell"]: row for row in fr.sweep(fr.Grid.parse({"cells": cells}), market, tmp_path, progress=False)}
    assert "training.max_loss" in rows["wild"]["error"] and "training.lr" in rows["nan"]["error"]
    assert rows["tame"]["metrics"]["test"]
