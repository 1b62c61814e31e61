"""tune: equal budgets, validation alone, the best settings handed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fullrank.data.events.store import Store
from fullrank.sweeps import engine, runner
from fullrank.sweeps.cost import JobCost
from fullrank.sweeps.grid import Grid
from fullrank.sweeps.search import Search
from fullrank.sweeps.sweep import sweep
from fullrank.sweeps.tune import tune
from fullrank.training.fit import fit
from refusals import refused

from .conftest import TINY

SPACE = "{training.lr: {log: [1e-3, 1e-1]}, model.dim: {choice: [8, 16]}}"


def search(cells: str = "[sasrec, {name: gru, recipe: gru4rec}]", **others: Any) -> Search:
    settings = {k: v for k, v in TINY.items() if "encoder" not in k}
    return Search.from_text(f"{{cells: {cells}, space: {SPACE}, set: {json.dumps(settings)}}}").model_copy(
        update={"trials": 3, **others}
    )


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are not measured."""

    def priced(jobs: Any, store: Any, **_: Any) -> dict[str, JobCost]:
        return {job.cost_key: JobCost(0.0, 0.1, 1, 1, 0.0, 0, 0.0, 1) for job in jobs}

    monkeypatch.setattr(runner, "measure_costs", priced)


@pytest.fixture
def blind(store: Store) -> Store:
    """The store with its test part poisoned: the targets are no items, and asking for them raises."""
    items, places = np.array(store.items), np.arange(store.num_events)
    items[places >= np.repeat(store.bounds[:, 1], np.diff(store.offsets))] = store.num_items + 7
    arrays = {n: getattr(store, n) for n in ("offsets", "bounds", "times", "weights", "types")}
    return Poisoned(store.path, store.manifest, {**arrays, "items": items}, store.catalog)


class Poisoned(Store):
    def eval_set(self, split: Any, **rest: bool) -> Any:
        if split == "test":
            raise AssertionError("the test split was asked for")
        return super().eval_set(split, **rest)


def test_the_test_split_is_never_touched(store: Store, blind: Store, out: Path, tmp_path: Path) -> None:
    """On the poisoned store a search finds what it finds on the whole one; a sweep that evaluates test fails there."""
    found, whole = (
        tune(search("[sasrec]", trials=2), s, o, progress=False) for s, o in ((blind, out), (store, tmp_path / "whole"))
    )
    assert [t["score"] for t in found["trials"]["sasrec"]] == [t["score"] for t in whole["trials"]["sasrec"]]
    assert all(t["score"] is not None for trials in found["trials"].values() for t in trials)
    rows = (out / "rows.jsonl").read_text()
    assert '"test"' not in rows and found["split"] == "validation"
    row = sweep(Grid.from_text("cells: [popularity]"), blind, tmp_path / "poisoned", progress=False)[0]
    assert "the test split was asked for" in row["error"]


def test_every_cell_gets_the_same_budget_and_it_is_recorded(store: Store, out: Path, cheap: None) -> None:
    found = tune(search(epochs_share=2 / 3, seeds=(0, 1)), store, out, command="fullrank tune x", progress=False)
    written = json.loads((out / "tuned.json").read_text())
    assert written["best"] == found["best"] and written["trials"] == found["trials"]
    budget = found["budget"]
    assert budget["trials_asked"] == budget["trials_counted"] == 3 and budget["seeds"] == [0, 1]
    assert budget["epochs_per_trial"] == {"sasrec": 2, "gru": 2} and budget["epochs_share"] == 2 / 3
    for name, trials in found["trials"].items():
        assert [t["seeds"] for t in trials] == [[0, 1]] * 3 and trials[0]["set"] == {}
        best = found["best"][name]
        assert best["score"] == max(t["score"] for t in trials) and best["default_score"] == trials[0]["score"]
        assert budget["hours"][name] == pytest.approx(sum(t["hours"] for t in trials), abs=1e-4)
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and found["command"] == "fullrank tune x"
    first = [row["metrics"]["validation"]["ndcg@10"] for row in rows if row["cell"] == "sasrec-trial1"]
    assert found["trials"]["sasrec"][1]["score"] == pytest.approx(sum(first) / 2)


def test_the_best_settings_become_a_grid_with_all_epochs(store: Store, out: Path, tmp_path: Path, cheap: None) -> None:
    found = tune(search("[sasrec]"), store, out, progress=False)
    grid = Grid.read(out / "grid.yaml")
    assert grid.seeds == (0, 1, 2) and grid.evaluate == ("test",)
    job = grid.jobs()[0]
    assert job.experiment.training.max_epochs == 3, "the trials had one"
    for path, value in found["best"]["sasrec"]["set"].items():
        assert job.settings[path] == value
    assert sweep(grid.model_copy(update={"seeds": (0,)}), store, tmp_path / "final", progress=False)[0]["epochs"] == 3


def test_the_same_call_again_repeats_nothing_and_more_trials_keep_the_first(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch, cheap: None
) -> None:
    trained = []

    def watched(experiment: Any, *rest: Any, **named: Any) -> Any:
        trained.append(experiment)
        return fit(experiment, *rest, **named)

    monkeypatch.setattr(engine, "fit", watched)
    first = tune(search("[sasrec]"), store, out, progress=False)
    again = tune(search("[sasrec]"), store, out, progress=False)
    assert len(trained) == 3 and again["trials"] == first["trials"] and again["best"] == first["best"]
    more = tune(search("[sasrec]", trials=4), store, out, progress=False)
    assert len(trained) == 4 and more["trials"]["sasrec"][:3] == first["trials"]["sasrec"]


def test_a_time_limit_cuts_whole_rounds(store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gru's second trial costs an hour: its round is started for neither cell, and only the first trials count."""

    def priced(jobs: Any, store: Any, **_: Any) -> dict[str, JobCost]:
        slow = [job.cell == "gru-trial1" for job in jobs]
        return {
            j.cost_key: JobCost(0.0, 3600.0 if s else 0.1, 1, 1, 0.0, 0, 0.0, 1)
            for j, s in zip(jobs, slow, strict=True)
        }

    monkeypatch.setattr(runner, "measure_costs", priced)
    found = tune(search(), store, out, max_hours=0.5, progress=False)
    assert {(entry["cell"]) for entry in found["not_run"]} == {"sasrec-trial1", "gru-trial1"}
    assert found["budget"]["trials_counted"] == 1
    assert {name: best["trial"] for name, best in found["best"].items()} == {"sasrec": 0, "gru": 0}


def test_a_failed_trial_has_no_score_and_is_never_the_best(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch, cheap: None
) -> None:
    def sometimes(experiment: Any, *rest: Any, **named: Any) -> Any:
        if Path(rest[1]).name.startswith("sasrec-trial1"):
            raise RuntimeError("diverged")
        return fit(experiment, *rest, **named)

    monkeypatch.setattr(engine, "fit", sometimes)
    found = tune(search("[sasrec]"), store, out, progress=False)
    trials = found["trials"]["sasrec"]
    assert trials[1]["score"] is None and "diverged" in trials[1]["error"]
    assert found["budget"]["trials_counted"] == 3, "a failed trial was part of the budget"
    assert found["best"]["sasrec"]["trial"] != 1


def test_a_search_by_tpe_goes_on_to_the_trials_of_an_unbroken_one(
    store: Store, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheap: None
) -> None:
    """Stopped in its seventh trial, the search tells the first six and asks what it would have asked."""
    asked = search("[sasrec]", trials=8)
    unbroken = tune(asked, store, out, progress=False, sampler="tpe")
    assert unbroken["sampler"] == "tpe" and unbroken["budget"]["trials_counted"] == 8
    trials = unbroken["trials"]["sasrec"]
    assert [t["set"] for t in trials[:5]] == asked.trial_settings(asked.cells[0])[:5], "Halton's points come first"
    trained = []

    def stopped(experiment: Any, *rest: Any, **named: Any) -> Any:
        trained.append(rest[1])
        if len(trained) == 7:
            raise KeyboardInterrupt
        return fit(experiment, *rest, **named)

    monkeypatch.setattr(engine, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune(asked, store, tmp_path / "again", progress=False, sampler="tpe")
    again = tune(asked, store, tmp_path / "again", progress=False, sampler="tpe")
    assert len(trained) == 9, "six, the one that was stopped, and two"
    assert [(t["set"], t["score"]) for t in again["trials"]["sasrec"]] == [(t["set"], t["score"]) for t in trials]


def test_a_time_limit_ends_a_search_by_tpe(store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def priced(jobs: Any, store: Any, **_: Any) -> dict[str, JobCost]:
        slow = [job.cell.endswith("trial6") for job in jobs]
        return {
            j.cost_key: JobCost(0.0, 3600.0 if s else 0.1, 1, 1, 0.0, 0, 0.0, 1)
            for j, s in zip(jobs, slow, strict=True)
        }

    monkeypatch.setattr(runner, "measure_costs", priced)
    found = tune(search("[sasrec]", trials=8), store, out, max_hours=0.5, progress=False, sampler="tpe")
    assert found["budget"]["trials_counted"] == 6 and [e["cell"] for e in found["not_run"]] == ["sasrec-trial6"]
    assert len(found["estimate"]) == 7, "every trial was priced when it was asked for"


def test_another_sampler_is_refused(store: Store, out: Path) -> None:
    with refused("unknown-sampler", "random", "halton", "tpe"):
        tune(search(), store, out, sampler="random")
