"""sweep: every cell of a grid with every seed, one row of JSON each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fullrank.data.impressions.store import AnyStore
from fullrank.sweeps.engine import Engine, Local
from fullrank.sweeps.environment import code, machine
from fullrank.sweeps.grid import Grid
from fullrank.sweeps.records import Row, results_file, summarise_seeds, write_results
from fullrank.sweeps.runner import Outcome, run_jobs


def sweep(
    grid: Grid,
    store: AnyStore,
    out: str | Path,
    *,
    max_hours: float | None = None,
    dry_run: bool = False,
    results: str | Path | None = None,
    command: str | None = None,
    progress: bool = True,
    engine: Engine = Local(),
) -> list[Row]:
    """Run a grid and return the newest row of each of its runs (failed ones have `error`), in the grid's order.

    The same call again skips what is finished and goes on with what was cut off. `max_hours`: runs whose measured cost
    does not fit what is left are not started. `results`: a JSON file with the grid, the rows and their means over
    seeds, replaced after each row; `command` is noted in it. `engine`: where the runs are run, by default here.
    Raises `UserError` for what is wrong in the grid, its settings or the folders, before anything runs.
    """
    return run_sweep(
        grid, store, out, max_hours=max_hours, dry_run=dry_run, results=results, command=command, progress=progress,
        engine=engine,
    ).newest  # fmt: skip


def run_sweep(
    grid: Grid,
    store: AnyStore,
    out: str | Path,
    *,
    max_hours: float | None = None,
    dry_run: bool = False,
    results: str | Path | None = None,
    command: str | None = None,
    progress: bool = True,
    engine: Engine = Local(),
    kept: Callable[[Outcome], None] | None = None,
) -> Outcome:
    """`sweep` with all that is known of it: rows, costs, what was not run. `kept` is called after each row."""
    jobs = grid.jobs()
    place = results_file(results)

    def keep(outcome: Outcome) -> None:
        if place is not None:
            write_results(place, sweep_results(grid, store, outcome, command))
        if kept is not None:
            kept(outcome)

    return run_jobs(
        jobs, store, out, max_hours=max_hours, dry_run=dry_run, progress=progress, kept=keep, engine=engine
    )  # fmt: skip


def sweep_results(grid: Grid, store: AnyStore, outcome: Outcome, command: str | None) -> dict[str, Any]:
    """All that is known of a sweep, as plain data."""
    return {
        "name": grid.name,
        "command": command,
        "data": describe_data(store),
        "machine": machine(),
        "code": code(),
        "summary": summarise_seeds(outcome.newest),
        "failed": [f"{row['cell']}-seed{row['seed']}" for row in outcome.failed],
        "not_run": outcome.not_run,
        "hours_this_call": round(outcome.hours, 4),
        "estimate": outcome.estimate,
        "grid": grid.dump(),
        "rows": outcome.newest,
    }


def describe_data(store: AnyStore) -> dict[str, Any]:
    """Which data, without where they lie."""
    return {"name": store.path.name, "split_fingerprint": store.fingerprint, **store.sizes}
