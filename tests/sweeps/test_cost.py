"""Costs: what is measured, and what is made of it."""

import time
from typing import Any

import pytest

from fullrank.data.events.store import Store
from fullrank.sweeps import cost as module
from fullrank.sweeps.cost import JobCost, measure_cost, measure_costs
from fullrank.sweeps.sweep import Grid
from fullrank.training.data_module import RetrievalData
from fullrank.training.fit import fit
from fullrank.training.loop import FitModule
from refusals import refused

from .conftest import tiny


def test_the_total_is_every_step_every_validation_and_every_evaluation() -> None:
    cost = JobCost(
        0.0, step=0.5, steps_per_epoch=10, epochs=4, validation=2.0, validations=2, evaluation=3.0, evaluations=1
    )
    assert (cost.train, cost.total) == (0.5 * 40 + 4, 27)
    assert cost.remaining(0) == 27 and cost.remaining(20) == 15 and cost.remaining(40) == 3 == cost.remaining(99)
    assert cost.scaled(10.0).total == 4 * 10 + 3
    assert JobCost(7.0, 0.0, 0, 0, 0.0, 0, 3.0, 2).remaining(0) == 13, "a baseline is fitted again"


def test_a_cost_counts_the_steps_that_training_takes(store: Store, tmp_path: Any) -> None:
    job = tiny("[sasrec]", settings={"training.evaluate_every": 2}).jobs()[0]
    cost = measure_cost(job, store, seconds=0.05)
    rows = fit(job.experiment, store, tmp_path / "run", progress=False).rows()
    assert cost.steps_per_epoch * cost.epochs == rows[-1]["step"]
    assert cost.validations == sum("validation_seconds" in row for row in rows) == 2
    assert cost.evaluations == 1 and cost.fit == 0 and min(cost.step, cost.validation, cost.evaluation) > 0


def test_a_slower_step_costs_more_and_a_baseline_has_no_steps(store: Store) -> None:
    slow = {"model.dim": 128, "model.encoder.layers": 4}
    small, large = (measure_cost(tiny("[sasrec]", settings=s).jobs()[0], store, seconds=0.1) for s in ({}, slow))
    assert large.step > 2 * small.step
    baseline = measure_cost(Grid.from_text("cells: [popularity]").jobs()[0], store, seconds=0.05)
    assert (baseline.epochs, baseline.validations) == (0, 0) and baseline.total > 0


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_steps_of_the_real_loop_are_timed(store: Store, monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    """Each micro-batch is held up for 20 ms where training computes it; a step is all of its micro-batches."""
    original, micro = FitModule.training_step, []

    def held_up(self: FitModule, *given: Any) -> Any:
        time.sleep(0.02)
        micro.append(self.training)
        return original(self, *given)

    monkeypatch.setattr(FitModule, "training_step", held_up)
    settings = {"training.accumulate": accumulate, "training.batch_size": 64}
    cost = measure_cost(tiny("[sasrec]", settings=settings).jobs()[0], store, seconds=0.01)
    assert cost.step > 0.02 * accumulate
    assert all(micro) and len(micro) == 5 * accumulate, "two steps to warm up and three that are timed"


def test_seeds_are_measured_once_and_test_is_not_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, original = [], Store.eval_set

    def eval_set(self: Store, split: str, **rest: bool) -> Any:
        asked.append(split)
        return original(self, split, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "eval_set", eval_set)
    jobs = tiny("[{name: a, recipe: sasrec}, {name: b, recipe: gru4rec}]", settings={}, seeds=(0, 1, 2)).jobs()[:3]
    told: list[str] = []
    costs = measure_costs(jobs, store, seconds=0.05, on_job=lambda job: told.append(job.folder))
    assert told == ["a-seed0"] and list(costs) == [jobs[0].cost_key]
    assert set(asked) == {"validation"}


def test_what_is_fitted_at_once_is_measured_once_a_recipe(store: Store) -> None:
    cells = "[{name: a, recipe: item_to_item}, {name: b, recipe: item_to_item, set: {model.window: 2}}, popularity]"
    jobs, measured = tiny(cells, settings={}).jobs(), list[str]()
    costs = measure_costs(jobs, store, seconds=0.05, on_job=lambda job: measured.append(job.cell))
    assert measured == ["a", "popularity"] and len(costs) == 3
    assert costs[jobs[0].cost_key] == costs[jobs[1].cost_key] != costs[jobs[2].cost_key]


def test_evaluation_is_drawn_out_in_a_line(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """An evaluation with 1 s of fixed cost and 8 s for all users, of which a 16th may be looked at."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])

    class Slow(RetrievalData):
        def evaluate_share(self, model: Any, share: int, *, all_metrics: bool) -> None:
            clock[0] += 1 + 8 / share

    anything: Any = Grid.from_text("cells: [popularity]").jobs()[0].experiment
    model = anything.model.build(store.catalog)
    data = Slow.of(anything, store)
    assert module.time_evaluation(model, data, seconds=6.5, all_metrics=True) == pytest.approx(9)
    assert 2 < clock[0] < 3


def test_a_model_that_cannot_be_built_is_named_before_anything_runs(store: Store) -> None:
    jobs = tiny("[{name: odd, recipe: sasrec, set: {model.dim: 9}}]").jobs()
    with refused("width-not-divisible", "cell 'odd'", 9, 2):
        measure_costs(jobs, store, seconds=0.05)


def test_what_fails_otherwise_has_no_cost_and_stops_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "profile_step", broken)
    jobs = tiny("[sasrec]").jobs()
    assert measure_costs(jobs, store, seconds=0.05) == {jobs[0].cost_key: None}
