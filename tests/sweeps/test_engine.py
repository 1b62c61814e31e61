"""Engines: the runner takes rows in any order, hands out what still fits, and every entry passes the engine on."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from fullrank.data.events.store import Store
from fullrank.parallel import Local, Runner
from fullrank.parallel.processes import LocalProcesses
from fullrank.sweeps.records import Row
from fullrank.sweeps.search import Search
from fullrank.sweeps.sweep import run_ladder
from fullrank.sweeps.tune import tune
from fullrank.sweeps.work import Work
from refusals import refused
from tests.parallel.test_processes import killed_once
from tests.training.conftest import same_weights

from .conftest import Sweeps, tiny

pytestmark = pytest.mark.usefixtures("cheap")

OF_THE_CALL = {"seconds", "load_average", "finished", "tokens_per_s"}


class Backwards(Runner):
    """Takes all items at once, sends them through bytes, and runs them from the last to the first."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def map(self, task: Any, items: Any) -> Any:
        for item in reversed(list(items)):
            self.ran.append(str(item))
            yield item, pickle.loads(pickle.dumps(task))(pickle.loads(pickle.dumps(item)))


class Failing(Runner):
    """Runs nothing, asks for at most so many jobs, and gives so many rows for each."""

    def __init__(self, most: int = 99, times: int = 1) -> None:
        self.most, self.times, self.asked = most, times, list[str]()

    def map(self, task: Any, items: Any) -> Any:
        for item in items:
            self.asked.append(str(item))
            yield from [(item, RuntimeError("no machine"))] * self.times
            if len(self.asked) == self.most:
                return


def documented() -> Any:
    """The engine that docs/adding.md shows."""
    page = Path(__file__).resolve().parents[2] / "docs" / "adding.md"
    section = page.read_text(encoding="utf-8").partition("## An engine for sweeps")[2]
    made: dict[str, Any] = {}
    exec(section.split("```python\n")[1].split("```")[0], made)
    return made["Processes"]


def lasting(rows: list[Row]) -> list[Any]:
    return [{key: value for key, value in row.items() if key not in OF_THE_CALL} for row in rows]


def test_rows_are_the_same_in_whatever_order_they_come(out: Path, tmp_path: Path, swept: Sweeps) -> None:
    grid, engine = tiny("[sasrec, popularity]", seeds=(0, 1)), Backwards()
    seen, outcome = tmp_path / "seen.json", swept.outcome(grid, engine=engine)
    assert engine.ran == ["popularity-seed0", "sasrec-seed1", "sasrec-seed0"]
    assert [row["cell"] for row in outcome.rows.all] == ["popularity", "sasrec", "sasrec"], "as they ended"
    here = swept(grid, tmp_path / "here", results=seen)
    assert lasting(outcome.newest) == lasting(here) and len(here) == 3, "in the order of the grid"
    assert same_weights(out / "cells/sasrec-seed1", tmp_path / "here/cells/sasrec-seed1")
    again = Backwards()
    assert swept(grid, engine=again) == outcome.newest and not again.ran


def test_work_is_handed_out_as_it_is_asked_for_and_as_it_fits(swept: Sweeps) -> None:
    """At a second a step and one for the evaluation a run takes 4 s, the long one 3601 s."""
    grid = tiny("[sasrec, {name: long, recipe: sasrec, set: {training.max_epochs: 3600}}, gru4rec]",
                settings={"training.patience": 1})  # fmt: skip
    engine = Failing()
    outcome = swept.outcome(grid, max_hours=0.9, engine=engine)
    assert engine.asked == ["sasrec-seed0", "gru4rec-seed0"] and outcome.not_run[0]["cell"] == "long"
    assert [row["error"] for row in outcome.failed] == ["RuntimeError: no machine"] * 2
    one = Failing(most=1)
    assert len(swept.outcome(grid, engine=one).rows.all) == 3 and len(one.asked) == 1


@pytest.mark.process
def test_the_engine_of_the_documentation_runs_in_other_processes(out: Path, swept: Sweeps) -> None:
    grid = tiny("[popularity, {name: bad, recipe: popularity}, sasrec]")
    (out / "cells").mkdir(parents=True)
    (out / "cells" / "bad-seed0").write_text("a file where the run folder belongs")
    first, bad, last = swept(grid, engine=documented()(2))
    assert first["metrics"]["test"] and last["epochs"] == 3 and bad["error"]
    assert len((out / "rows.jsonl").read_text().splitlines()) == 3


@pytest.mark.process
def test_a_process_that_dies_costs_its_job_and_no_other(monkeypatch: pytest.MonkeyPatch, swept: Sweeps) -> None:
    monkeypatch.setattr(Work, "run", dies)
    first, last = swept("[popularity, sasrec]", engine=documented()(1))
    assert "BrokenProcessPool" in first["error"] and "BrokenProcessPool" in last["error"]


def dies(*_: Any, **__: Any) -> Row:
    os._exit(1)


@pytest.mark.slow
def test_a_killed_worker_changes_no_row_and_no_weight(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    grid = tiny("[{name: long, recipe: sasrec, set: {training.max_epochs: 20}}, popularity]")
    here = swept(grid, tmp_path / "here")
    killed = killed_once(out / "cells/long-seed0/checkpoints/last.json", monkeypatch)
    rows = swept(grid, engine=LocalProcesses(jobs=1))
    assert killed and rows[0]["resumed_at_step"], "it went on from its last checkpoint"
    for row, other in zip(lasting(rows), lasting(here), strict=True):
        assert row == {**other, "resumed_at_step": row.get("resumed_at_step")}
    assert same_weights(out / "cells/long-seed0", tmp_path / "here/cells/long-seed0")
    assert len((out / "rows.jsonl").read_text().splitlines()) == 2


def test_what_an_engine_does_not_ask_for_is_not_run(swept: Sweeps) -> None:
    outcome = swept.outcome("[popularity, sasrec, gru4rec]", engine=Failing(most=1))
    assert [row["cell"] for row in outcome.failed] == ["popularity"]
    assert [entry["cell"] for entry in outcome.not_run] == ["sasrec", "gru4rec"]


def test_rows_that_are_missing_or_come_twice_are_no_sweep(tmp_path: Path, swept: Sweeps) -> None:
    with pytest.raises(RuntimeError, match="no row for popularity-seed0"):
        swept.outcome("[popularity]", engine=Failing(times=0))
    with pytest.raises(RuntimeError, match="or twice"):
        swept.outcome("[popularity]", tmp_path / "twice", engine=Failing(times=2))


def test_ladders_and_searches_pass_the_engine_on(store: Store, out: Path, tmp_path: Path) -> None:
    engine = Failing()
    run_ladder(tiny("[popularity]"), [store], out, progress=False, engine=engine)
    space = Search.from_text("{cells: [sasrec], space: {training.lr: {log: [1.0e-4, 1.0e-2]}}, trials: 2}")
    tune(space, store, tmp_path / "tuned", progress=False, engine=engine)
    assert engine.asked == ["popularity-seed0", "sasrec-trial0-seed0", "sasrec-trial1-seed0"]


def test_a_device_that_is_not_there_is_refused_before_anything_runs(out: Path, swept: Sweeps) -> None:
    with refused("unknown-device", "'gpu'", "auto, cpu, cuda, cuda:N, mps"):
        swept("[sasrec]", engine=Local(device="gpu"))
    assert not (out / "cells").exists()
