"""tune: equal budgets, validation alone, the best settings handed on."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from scipy.stats import qmc

from fullrank.data.events.store import Store
from fullrank.parallel import Runner
from fullrank.sweeps import schedule, work
from fullrank.sweeps import search as search_module
from fullrank.sweeps.search import Search
from fullrank.sweeps.sweep import Grid, sweep
from fullrank.sweeps.tune import tune
from fullrank.training.fit import fit
from refusals import refused

from .conftest import TINY, free

SPACE = "{training.lr: {log: [1e-3, 1e-1]}, model.dim: {choice: [8, 16]}}"


def search(cells: str = "[sasrec, {name: gru, recipe: gru4rec}]", **others: Any) -> Search:
    settings = {k: v for k, v in TINY.items() if "encoder" not in k}
    return Search.from_text(f"{{cells: {cells}, space: {SPACE}, set: {json.dumps(settings)}}}").model_copy(
        update={"trials": 3, **others}
    )


Tuned = Callable[..., dict[str, Any]]


@pytest.fixture
def tuned(store: Store, out: Path, cheap: None) -> Tuned:
    """``tuned(search())``: tuned in `out`."""
    return lambda space, **how: tune(space, store, out, **{"progress": False, **how})


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


def test_every_cell_gets_the_same_budget_and_it_is_recorded(out: Path, tuned: Tuned) -> None:
    found = tuned(search(epochs_share=2 / 3, seeds=(0, 1)), command="fullrank tune x")
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


def test_the_best_settings_become_a_grid_with_all_epochs(store: Store, out: Path, tmp_path: Path, tuned: Tuned) -> None:
    found = tuned(search("[sasrec]"))
    grid = Grid.read(out / "grid.yaml")
    assert grid.seeds == (0, 1, 2) and grid.evaluate == ("test",)
    job = grid.jobs()[0]
    assert job.experiment.training.max_epochs == 3, "the trials had one"
    for path, value in found["best"]["sasrec"]["set"].items():
        assert job.settings[path] == value
    assert sweep(grid.model_copy(update={"seeds": (0,)}), store, tmp_path / "final", progress=False)[0]["epochs"] == 3


def test_the_same_call_again_repeats_nothing_and_more_trials_keep_the_first(
    monkeypatch: pytest.MonkeyPatch, tuned: Tuned
) -> None:
    trained = []

    def watched(experiment: Any, *rest: Any, **named: Any) -> Any:
        trained.append(experiment)
        return fit(experiment, *rest, **named)

    monkeypatch.setattr(work, "fit", watched)
    first = tuned(search("[sasrec]"))
    again = tuned(search("[sasrec]"))
    assert len(trained) == 3 and again["trials"] == first["trials"] and again["best"] == first["best"]
    more = tuned(search("[sasrec]", trials=4))
    assert len(trained) == 4 and more["trials"]["sasrec"][:3] == first["trials"]["sasrec"]


def slow_where(slow: Callable[[str], bool]) -> Any:
    """Costs: an hour a step of these cells."""
    return partial(free, step=lambda job: 3600.0 if slow(job.cell) else 0.1)


def test_a_time_limit_cuts_whole_rounds(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """gru's second trial costs an hour: its round is started for neither cell, and only the first trials count."""
    monkeypatch.setattr(schedule, "measure_costs", slow_where(lambda cell: cell == "gru-trial1"))
    found = tuned(search(), max_hours=0.5)
    assert {(entry["cell"]) for entry in found["not_run"]} == {"sasrec-trial1", "gru-trial1"}
    assert found["budget"]["trials_counted"] == 1
    assert {name: best["trial"] for name, best in found["best"].items()} == {"sasrec": 0, "gru": 0}


def test_a_failed_trial_has_no_score_and_is_never_the_best(monkeypatch: pytest.MonkeyPatch, tuned: Tuned) -> None:
    def sometimes(experiment: Any, *rest: Any, **named: Any) -> Any:
        if Path(rest[1]).name.startswith("sasrec-trial1"):
            raise RuntimeError("diverged")
        return fit(experiment, *rest, **named)

    monkeypatch.setattr(work, "fit", sometimes)
    found = tuned(search("[sasrec]"))
    trials = found["trials"]["sasrec"]
    assert trials[1]["score"] is None and "diverged" in trials[1]["error"]
    assert found["budget"]["trials_counted"] == 3, "a failed trial was part of the budget"
    assert found["best"]["sasrec"]["trial"] != 1


@pytest.mark.slow
def test_a_search_by_tpe_goes_on_to_the_trials_of_an_unbroken_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned: Tuned
) -> None:
    """Stopped in its seventh trial, the search tells the first six and asks what it would have asked."""
    asked = search("[sasrec]", trials=8)
    unbroken = tuned(asked, sampler="tpe")
    assert unbroken["sampler"] == "tpe" and unbroken["budget"]["trials_counted"] == 8
    trials = unbroken["trials"]["sasrec"]
    assert [t["set"] for t in trials[:5]] == asked.trial_settings(asked.cells[0])[:5], "Halton's points come first"
    trained = []

    def stopped(experiment: Any, *rest: Any, **named: Any) -> Any:
        trained.append(rest[1])
        if len(trained) == 7:
            raise KeyboardInterrupt
        return fit(experiment, *rest, **named)

    monkeypatch.setattr(work, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune(asked, store, tmp_path / "again", progress=False, sampler="tpe")
    again = tune(asked, store, tmp_path / "again", progress=False, sampler="tpe")
    assert len(trained) == 9, "six, the one that was stopped, and two"
    assert [(t["set"], t["score"]) for t in again["trials"]["sasrec"]] == [(t["set"], t["score"]) for t in trials]


def test_a_time_limit_ends_a_search_by_tpe(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "measure_costs", slow_where(lambda cell: cell.endswith("trial6")))
    found = tuned(search("[sasrec]", trials=8), max_hours=0.5, sampler="tpe", engine=Flaky())
    assert found["budget"]["trials_counted"] == 6 and [e["cell"] for e in found["not_run"]] == ["sasrec-trial6"]
    assert len(found["estimate"]) == 7, "every trial was priced when it was asked for"


class Flaky(Runner):
    """Gives scores drawn from the settings in place of training; the cells named fail. Counts what was started."""

    def __init__(self, *failing: str):
        self.failing, self.started = failing, Counter[str]()

    def map(self, task: Any, items: Any) -> Any:
        for one in items:
            self.started[one.job.cell] += 1
            row = work.failed_row(one.job, one.store, RuntimeError("out of memory"), 1.0)
            if one.job.cell not in self.failing:
                score = zlib.crc32(json.dumps([one.job.settings, one.job.seed]).encode()) / 2**32
                del row["error"]
                row |= {"metrics": {"validation": {"ndcg@10": score}}, "epochs": 1}
            yield one, row


def settings_of(found: dict[str, Any], cell: str = "sasrec") -> list[dict[str, Any]]:
    return [trial["set"] for trial in found["trials"][cell]]


ByTpe = Callable[..., tuple[dict[str, Any], Counter[str]]]


@pytest.fixture
def by_tpe(tuned: Tuned) -> ByTpe:
    """``by_tpe(space, "sasrec-trial2")``: what a search by TPE found where this cell fails, and what it started."""

    def search_on(space: Search, *failing: str) -> tuple[dict[str, Any], Counter[str]]:
        flaky = Flaky(*failing)
        return tuned(space, sampler="tpe", engine=flaky), flaky.started

    return search_on


def goes_on(space: Search, out: Path, by_tpe: ByTpe) -> list[dict[str, Any]]:
    """A search of seven trials and one more asks what one of eight does; what it asked."""
    longer = space.model_copy(update={"trials": 8})
    whole, _ = by_tpe(longer)
    out.rename(out.with_name("whole"))
    by_tpe(space.model_copy(update={"trials": 7}))
    rest, started = by_tpe(longer)
    assert started == {"sasrec-trial7": 1} and settings_of(rest) == settings_of(whole)
    return settings_of(whole)


def test_trials_that_tpe_asked_for_stay_when_a_failed_one_ends_well_later(by_tpe: ByTpe) -> None:
    """Its score comes too late for the trials behind it: they keep their settings, and the next one is told of it."""
    first, _ = by_tpe(search("[sasrec]", trials=8), "sasrec-trial2")
    assert [trial["score"] is None for trial in first["trials"]["sasrec"]] == [n == 2 for n in range(8)]
    again, started = by_tpe(search("[sasrec]", trials=8))
    assert started == {"sasrec-trial2": 1} and settings_of(again) == settings_of(first)
    assert again["trials"]["sasrec"][2]["score"] is not None and again["budget"]["trials_counted"] == 8
    more, started = by_tpe(search("[sasrec]", trials=9, seeds=(0, 1)))
    assert settings_of(more)[:8] == settings_of(first), "nor do they change with more trials and seeds"
    assert started == {f"sasrec-trial{n}": 1 if n < 8 else 2 for n in range(9)}


def test_a_failed_trial_is_tried_again_once_in_a_call(by_tpe: ByTpe) -> None:
    space = search("[sasrec]", trials=8)
    for trials in (7, 8):
        found, started = by_tpe(space.model_copy(update={"trials": trials}), "sasrec-trial2")
        tried = {f"sasrec-trial{n}" for n in range(7)} if trials == 7 else {"sasrec-trial2", "sasrec-trial7"}
        assert started == dict.fromkeys(tried, 1)
        assert found["trials"]["sasrec"][2]["error"] and found["budget"]["trials_counted"] == trials


def test_a_cell_that_joins_a_search_by_tpe_leaves_the_trials_of_the_others(by_tpe: ByTpe) -> None:
    alone, _ = by_tpe(search("[sasrec]", trials=7), "sasrec-trial5")
    both, started = by_tpe(search(trials=7))
    assert settings_of(both) == settings_of(alone) and len(settings_of(both, "gru")) == 7
    assert started == {"sasrec-trial5": 1, **{f"gru-trial{n}": 1 for n in range(7)}}


def test_a_kept_choice_is_the_one_of_the_space(out: Path, by_tpe: ByTpe) -> None:
    """JSON gives a tuple back as a list; the search goes on with it as an unbroken one."""
    ks = "{evaluation.ks: {choice: [[10], [10, 5], [10, 20]]}, training.lr: {log: [1e-3, 1e-1]}}"
    plain = search("[sasrec]").model_dump()
    plain["space"] = Search.from_text(f"{{cells: [sasrec], space: {ks}}}").model_dump()["space"]
    plain["space"]["evaluation.ks"]["choice"] = ((10,), (10, 5), (10, 20))
    space = Search.model_validate(plain)
    goes_on(space, out, by_tpe)


@pytest.mark.parametrize("damage", ["[]", '{"sasrec": 1}', '{"sasrec": {KEY: [1]}}', '{"sasrec": {KEY: [{"a": 1}]}}'])
def test_a_damaged_plan_is_refused(out: Path, by_tpe: ByTpe, damage: str) -> None:
    by_tpe(search("[sasrec]", trials=6))
    (key,) = json.loads((out / "plan.json").read_text())["sasrec"]
    (out / "plan.json").write_text(damage.replace("KEY", f'"{key}"'))
    with refused("file-damaged", out / "plan.json"):
        by_tpe(search("[sasrec]", trials=6))


def test_a_dry_run_by_tpe_writes_no_plan(out: Path, tuned: Tuned) -> None:
    found = tuned(search("[sasrec]", trials=8), dry_run=True, sampler="tpe")
    assert len(found["estimate"]) == 5 and not (out / "plan.json").exists()


def test_the_next_point_is_taken_where_tpe_asks_for_nothing_new(monkeypatch: pytest.MonkeyPatch, by_tpe: ByTpe) -> None:
    """Every width of the space is tried, whatever TPE prefers."""
    monkeypatch.setattr(search_module, "ATTEMPTS", 0)
    widths = Search.from_text("{cells: [sasrec], space: {model.dim: {choice: [2, 4, 6, 8, 10, 12, 14]}}}").space
    space = search("[sasrec]", trials=8, space=widths)
    found, _ = by_tpe(space)
    assert settings_of(found) == space.trial_settings(space.cells[0])
    with refused("space-exhausted", 9, 8):
        by_tpe(space.model_copy(update={"trials": 9}))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Nothing is known of this scipy, before and after."""
    search_module._check_scipy.cache_clear()
    yield
    search_module._check_scipy.cache_clear()


def test_a_scipy_that_reads_other_permutations_is_refused(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    """It still calls the method by which ours come in, and takes its own all the same."""
    plain = qmc.Halton

    class Deaf(plain):
        def __init__(self, d: int, scramble: bool = True):
            super().__init__(d, scramble=scramble)
            plain._initialize_permutations(self)

    next(search_module.halton(2, 0))
    search_module._check_scipy.cache_clear()
    monkeypatch.setattr(qmc, "Halton", Deaf)
    with refused("unsupported-scipy", scipy.__version__, np.__version__):
        next(search_module.halton(2, 0))


def test_another_sampler_is_refused(store: Store, out: Path) -> None:
    with refused("unknown-sampler", "random", "halton", "tpe"):
        tune(search(), store, out, sampler="random")


def test_settings_on_one_axis_are_handed_on_one_by_one(out: Path, by_tpe: ByTpe) -> None:
    """tuned.json names plain settings, and a search by TPE goes on from what it asked for."""
    plain = search("[sasrec]").model_dump()
    plain["space"] = {"training.lr, training.weight_decay": {"log": (1e-3, 1e-1)}}
    space = Search.model_validate(plain)
    for tried in goes_on(space, out, by_tpe)[1:]:
        assert list(tried) == ["training.lr", "training.weight_decay"]
        assert tried["training.lr"] == tried["training.weight_decay"]
