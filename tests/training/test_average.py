"""Averaged weights: the mean by hand, training untouched, a run that goes on to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.training import TrainState
from refusals import refused
from tests.training.conftest import Stop, Stopped, same_weights, tiny

EMA = "training.ema=0.9"


class Watch:
    """Keeps the weights behind every step."""

    every = 1

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, Tensor]] = {}

    def on_epoch(self, state: TrainState) -> dict[str, Any]:
        self.seen[state.step] = {name: one.detach().clone() for name, one in state.model.named_parameters()}
        return {}


def fitted(store: Store, out: Path, *settings: str, **how: Any) -> Any:
    return fr.train(tiny("training.max_epochs=3", *settings), store, out, progress=False, device="cpu", **how)


def test_the_run_keeps_the_mean_of_the_steps(market: Store, tmp_path: Path) -> None:
    watch = Watch()
    run = fitted(market, tmp_path / "run", EMA, "training.keep=last", callbacks=[watch])
    start = fitted(market, tmp_path / "start", "training.max_epochs=1", "training.lr=1e-12").tensors()
    mean = {name: start[name].clone() for name in watch.seen[1]}
    for step in sorted(watch.seen):
        share = min(0.9, (1 + step) / (10 + step))
        mean = {name: share * one + (1 - share) * watch.seen[step][name] for name, one in mean.items()}
    found, last = run.tensors(), watch.seen[max(watch.seen)]
    for name, one in mean.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)
    assert any(not torch.allclose(found[name], last[name], atol=1e-4) for name in mean)


def test_training_itself_is_as_without(market: Store, tmp_path: Path) -> None:
    runs = [fitted(market, tmp_path / str(n), *some) for n, some in enumerate(((), (EMA,)))]
    losses = [[row["train/loss"] for row in run.rows() if "train/loss" in row] for run in runs]
    assert losses[0] == losses[1] and not same_weights(*runs)


def test_what_is_validated_is_what_is_kept(market: Store, tmp_path: Path) -> None:
    run = fitted(market, tmp_path / "run", EMA)
    metric = run.spec.evaluation.selection
    best = max(row[f"validation/{metric}"] for row in run.rows() if f"validation/{metric}" in row)
    asked = [f"metrics=[{metric.split('@')[0]}]", "bootstrap=0"]
    found = fr.evaluate(run, "validation", data=market, set=asked)
    assert found.metrics[metric] == pytest.approx(best)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(market: Store, tmp_path: Path) -> None:
    whole = fitted(market, tmp_path / "whole", EMA)
    with pytest.raises(Stopped):
        fitted(market, tmp_path / "cut", EMA, callbacks=[Stop(1)])
    assert same_weights(whole, fitted(market, tmp_path / "cut", EMA, resume=True))


def test_processes_that_share_out_tables_have_none(market: Store, tmp_path: Path) -> None:
    with refused("setting-without-effect", "ema", "shard_items"):
        fitted(market, tmp_path / "run", EMA, "training.shard_items=true")
