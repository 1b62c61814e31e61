"""sweep: every cell of a grid with every seed, one row of JSON each; a ladder: one grid on several stores.

The stores of a ladder are for example nested shares of one (`fullrank subset`). Each has a sweep of its own in
FOLDER/STORE, resumable by itself; FOLDER/rows.jsonl holds the rows of all, which is what scaling laws are fitted to. It
is replaced after each row and keeps what earlier calls left of stores to come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from fullrank.core.checks import check_once, public
from fullrank.core.files import jsonable, write_json, write_jsonl
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore, check_store
from fullrank.parallel import Local, Runner
from fullrank.sweeps.grid import Grid
from fullrank.sweeps.records import (
    Outcome,
    Row,
    RowsFile,
    code_version,
    environment,
    protocols_in_words,
    results_file,
    summarise_seeds,
)
from fullrank.sweeps.runner import RunOptions, hours_left, run_jobs


@public
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
    engine: Runner = Local(),
) -> list[Row]:
    """Run a grid and return the newest row of each of its runs (failed ones have `error`), in the grid's order.

    The same call again skips what is finished and goes on with what was cut off. `max_hours`: runs whose measured cost
    does not fit what is left are not started. `results`: a JSON file with the grid, the rows and their means over
    seeds, replaced after each row; `command` is noted in it. `engine`: where the runs are run, by default here.
    Raises `UserError` for what is wrong in the grid, its settings or the folders, before anything runs.
    """
    check_store("store", store)
    return run_sweep(
        grid, store, out, max_hours=max_hours, dry_run=dry_run, results=results, command=command, progress=progress,
        engine=engine,
    ).newest  # fmt: skip


class SweepOptions(RunOptions, total=False):
    """Options of a sweep or a ladder, as `sweep` explains them."""

    results: str | Path | None
    command: str | None


def run_sweep(
    grid: Grid,
    store: AnyStore,
    out: str | Path,
    *,
    results: str | Path | None = None,
    command: str | None = None,
    kept: Callable[[Outcome], None] = lambda outcome: None,
    **options: Unpack[RunOptions],
) -> Outcome:
    """`sweep` with all that is known of it: rows, costs, what was not run. `kept` is called after each row."""
    place = results_file(results)

    def keep(outcome: Outcome) -> None:
        if place is not None:
            write_json(place, jsonable(sweep_results(grid, store, outcome, command)))
        kept(outcome)

    return run_jobs(grid.jobs(), store, out, kept=keep, **options)


def sweep_results(grid: Grid, store: AnyStore, outcome: Outcome, command: str | None) -> dict[str, Any]:
    """All that is known of a sweep, as plain data."""
    return {
        "name": grid.name,
        "command": command,
        "data": describe_data(store),
        "machine": environment(),
        "code": code_version(),
        "summary": summarise_seeds(outcome.newest),
        "history": protocols_in_words(outcome.newest),
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


@dataclass
class Rung:
    """A store and what became of the grid on it."""

    store: AnyStore
    outcome: Outcome


def run_ladder(
    grid: Grid,
    stores: Sequence[AnyStore],
    out: str | Path,
    *,
    on_store: Callable[[AnyStore], None] = lambda store: None,
    results: str | Path | None = None,
    command: str | None = None,
    **options: Unpack[RunOptions],
) -> list[Rung]:
    """Run the grid on each store in turn, within `max_hours` for all of them; `results` and `engine` as in `sweep`.

    Raises `UserError` where two stores have one name, and for what `sweep` refuses.
    """
    names = [store.path.name for store in stores]
    remedy = "rename one, since each has a folder of its name"
    check_once(names, "the name of a store", remedy, code="same-store-name", same=str.lower)
    folder, begun, place, max_hours = Path(out), time.perf_counter(), results_file(results), options.get("max_hours")
    jobs = grid.jobs()
    rungs = [Rung(store, Outcome(jobs, store.fingerprint, RowsFile(folder / store.path.name))) for store in stores]

    def keep(rung: Rung, outcome: Outcome) -> None:
        rung.outcome = outcome
        write_jsonl(folder / "rows.jsonl", (jsonable(row) for row in ladder_rows(rungs)))
        if place is not None:
            write_json(place, jsonable(_results(grid, rungs, command)))

    with folder_lock(folder, "sweep"):
        for rung in rungs:
            on_store(rung.store)
            options["max_hours"] = hours_left(max_hours, begun)
            rung.outcome = run_sweep(
                grid, rung.store, folder / rung.store.path.name, kept=partial(keep, rung), **options
            )
    return rungs


def ladder_rows(rungs: Sequence[Rung]) -> list[Row]:
    """The newest rows of all stores, one store after another."""
    return [row for rung in rungs for row in rung.outcome.newest]


def by_store(rungs: Sequence[Rung], of: Callable[[list[Row]], dict[str, Any]]) -> dict[str, Any]:
    """What `summarise_seeds` or `protocols_in_words` says of each store's rows, a cell's name behind its store's."""
    return {f"{rung.store.path.name}/{cell}": v for rung in rungs for cell, v in of(rung.outcome.newest).items()}


def _results(grid: Grid, rungs: Sequence[Rung], command: str | None) -> dict[str, Any]:
    each = [sweep_results(grid, rung.store, rung.outcome, None) for rung in rungs]
    same = {key: each[0][key] for key in ("name", "machine", "code", "grid")}
    own = ("data", "failed", "not_run", "hours_this_call", "estimate")
    stores = [{key: one[key] for key in own} for one in each]
    means = {"summary": by_store(rungs, summarise_seeds), "history": by_store(rungs, protocols_in_words)}
    return {**same, "command": command, "stores": stores, **means, "rows": ladder_rows(rungs)}
