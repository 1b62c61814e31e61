"""sweep: every cell of a grid with every seed, one row of JSON each; a ladder: one grid on several stores.

A grid has cells written out, or a base and axes multiplied out, each over some seeds. The
stores of a ladder are for example nested shares of one (`fullrank subset`). Each has a sweep
of its own in FOLDER/STORE, resumable by itself; FOLDER/rows.jsonl holds the rows of all,
which is what scaling laws are fitted to. It is replaced after each row and keeps what earlier
calls left of stores to come.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from pydantic import Field, model_validator

from fullrank.core.checks import check_once, public, takes
from fullrank.core.constraints import MOST_ENTRIES, SeedNumber, needs, once, only_with
from fullrank.core.errors import UserError, brief, no_effect
from fullrank.core.files import jsonable, write_json, write_jsonl
from fullrank.core.locks import folder_lock
from fullrank.data.impressions.store import AnyStore, check_store
from fullrank.parallel import Local
from fullrank.sweeps.jobs import (
    DIFFERENT,
    Cell,
    Job,
    Settings,
    Split,
    StudyFile,
    check_count,
    check_distinct_folders,
    check_name,
    evaluation_name,
    make_jobs,
    recipe_label,
)
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
from fullrank.sweeps.schedule import RunOptions, hours_left, run_jobs

Zipped = tuple[Settings, ...]
"""Settings that change together: a mapping for each step of the axis, with an optional `name`."""


class Grid(StudyFile):
    """The runs of a sweep, in this order: `cells`, then `base` with every combination of `axes`."""

    name: str = "sweep"
    """Name of the sweep in its records."""
    cells: tuple[Cell, ...] = ()
    """Cells written out; the first run first."""
    base: str | None = None
    """Recipe (or experiment file) that the axes change."""
    axes: Annotated[
        dict[str, tuple[Any, ...]] | tuple[dict[str, tuple[Any, ...]] | Zipped, ...],
        needs("base", code="axes-without-base"),
    ] = ()
    """Setting -> its values, all combinations, the last axis fastest. A list of axes may hold a list of mappings:
    settings that change together."""
    set: Settings = Field(default_factory=dict)
    """Settings of every cell; a cell's own come after."""
    seeds: Annotated[tuple[SeedNumber, ...], DIFFERENT] = Field((0,), min_length=1, max_length=MOST_ENTRIES)
    """Each cell runs once per seed; a baseline, which draws nothing, with the first alone."""
    order: Literal["cells", "seeds"] = "cells"
    """All seeds of a cell before the next cell, or one seed of all cells before the next seed."""
    evaluate: Annotated[tuple[Split, ...], once("split", code="repeated-split")] = ("test",)
    """Splits evaluated at the end of each run."""
    evaluate_also: Annotated[tuple[Settings, ...], only_with("evaluate")] = Field((), max_length=MOST_ENTRIES)
    """Further evaluations of each run on those splits: settings of `evaluation.*`, such as {seen: keep}, whose figures
    stand under `test_seen_keep`."""

    @model_validator(mode="after")
    def _has_cells(self) -> Grid:
        check_name(self.name)
        names = [evaluation_name(settings) for settings in self.evaluate_also]
        if len(set(names)) < len(names) or "" in names:
            raise UserError(
                f"evaluate_also: each evaluation once, and each with a setting, such as {{seen: keep}}; given "
                f"{brief(list(self.evaluate_also))}",
                code="repeated-evaluation",
            )
        prefixed = [path for changes in self.evaluate_also for path in changes if path.split(".")[0] == "evaluation"]
        if prefixed:
            raise UserError(
                f"evaluate_also: {prefixed[0]!r}: settings stand there without 'evaluation', such as {{seen: keep}}",
                code="unknown-setting",
            )
        if not self.cells and self.base is None:
            raise UserError("a grid needs 'cells', or a 'base' recipe with 'axes'", code="no-cells")
        for axis in self._axes():
            if not axis:
                raise UserError("an axis of the grid has no values", code="empty-axis")
        combinations = math.prod(len(axis) for axis in self._axes()) if self.base is not None else 0
        check_count(sum(len(cell.seeds or self.seeds) for cell in self.cells) + combinations * len(self.seeds))
        return self

    def with_settings(self, settings: Mapping[str, Any]) -> Grid:
        """A copy, with its cells written out, and with settings that win over those of every cell."""
        cells = [c.model_copy(update={"set": {**c.set, **settings}}) for c in self.expand()]
        return self.model_copy(update={"cells": tuple(cells), "base": None, "axes": (), "set": {}})

    def expand(self) -> list[Cell]:
        """Every cell with all of its settings, in the order in which they run."""
        cells = [c.model_copy(update={"set": {**self.set, **c.set}}) for c in self.cells]
        if self.base is None:
            return cells
        taken = {c.name for c in cells}
        for combination in itertools.product(*self._axes()):
            settings = dict(self.set)
            for _, change in combination:
                settings |= change
            words = "-".join([recipe_label(self.base), *(label for label, _ in combination)])
            label = re.sub(r"[^A-Za-z0-9._+-]", "_", words)[:90]
            names = itertools.chain([label], (f"{label}-{number}" for number in itertools.count(2)))
            name = next(name for name in names if name not in taken)
            taken.add(name)
            cells.append(Cell(name=name, recipe=self.base, set=settings))
        return cells

    def jobs(self) -> list[Job]:
        """One job per cell and seed. A bad setting is found here, before any runs."""
        cells = self.expand()
        by_cell = [make_jobs(cell, self.seeds, self.evaluate, also=self.evaluate_also) for cell in cells]
        rounds = by_cell if self.order == "cells" else itertools.zip_longest(*by_cell)
        jobs = [job for job in itertools.chain.from_iterable(rounds) if job is not None]
        check_distinct_folders(jobs)
        for name in map(evaluation_name, self.evaluate_also):
            if all(job.also[name] == job.experiment.evaluation for job in jobs):  # of some cells it may be the first
                raise no_effect(f"evaluate_also: {name!r}", "since every run is evaluated so anyway")
        return jobs

    def _axes(self) -> list[list[tuple[str, Settings]]]:
        """Each axis as a list of its steps, (label, settings)."""
        axes = self.axes if isinstance(self.axes, tuple) else (self.axes,)
        labelled: list[list[tuple[str, Settings]]] = []
        for axis in axes:
            if isinstance(axis, dict):
                labelled += [[(_label(path, v), {path: v}) for v in values] for path, values in axis.items()]
            else:
                labelled.append([_zipped(step) for step in axis])
        return labelled


def _zipped(step: Mapping[str, Any]) -> tuple[str, Settings]:
    settings = {path: value for path, value in step.items() if path != "name"}
    label = step.get("name") or "-".join(_label(path, value) for path, value in settings.items())
    return str(label), settings


def _label(path: str, value: Any) -> str:
    """`model.dim`, 64 -> `dim64`; a component is known by its kind."""
    last = path.rpartition(".")[2]
    if isinstance(value, dict):
        inner = [_label(key, v) for key, v in value.items() if key != "kind"]
        return "-".join([*([str(value["kind"])] if "kind" in value else [last]), *inner])
    if isinstance(value, list | tuple):
        return last + "+".join(str(v) for v in value)
    return str(value) if isinstance(value, str) and not _number(value) else f"{last}{value}"


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class SweepOptions(RunOptions, total=False):
    """Options of a sweep or a ladder, as `sweep` explains them."""

    results: str | Path | None
    command: str | None


DEFAULTS: dict[str, Any] = {
    "max_hours": None,
    "dry_run": False,
    "results": None,
    "command": None,
    "progress": True,
    "engine": Local(),
}


@public
@takes(SweepOptions, DEFAULTS, checked=True)
def sweep(grid: Grid, store: AnyStore, out: str | Path, **options: Unpack[SweepOptions]) -> list[Row]:
    """Run a grid and return the newest row of each of its runs (failed ones have `error`), in the grid's order.

    The same call again skips what is finished and goes on with what was cut off. `max_hours`: runs
    whose measured cost does not fit what is left are not started. `results`: a JSON file with the
    grid, the rows and their means over seeds, replaced after each row; `command` is noted in it.
    `engine`: where the runs are run, by default here. Raises `UserError` for what is wrong in the
    grid, its settings or the folders, before anything runs.
    """
    check_store("store", store)
    return run_sweep(grid, store, out, **options).newest


def run_sweep(
    grid: Grid,
    store: AnyStore,
    out: str | Path,
    *,
    results: str | Path | None = None,
    command: str | None = None,
    on_row: Callable[[Outcome], None] = lambda outcome: None,
    **options: Unpack[RunOptions],
) -> Outcome:
    """Run a grid as `sweep` does, and return rows, costs and what was not run;
    `on_row` is called after each row."""
    path = results_file(results)

    def keep(outcome: Outcome) -> None:
        if path is not None:
            write_json(path, jsonable(sweep_results(grid, store, outcome, command)))
        on_row(outcome)

    return run_jobs(grid.jobs(), store, out, on_row=keep, **options)


def sweep_results(grid: Grid, store: AnyStore, outcome: Outcome, command: str | None) -> dict[str, Any]:
    """The JSON of a sweep: its grid and rows, means over seeds, costs and failures."""
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
    """The name, fingerprint and sizes of a store, without its path."""
    return {"name": store.path.name, "split_fingerprint": store.fingerprint, **store.sizes}


@dataclass
class Rung:
    """A store of a ladder, and the outcome of the grid on it."""

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
    folder, begun, path, max_hours = Path(out), time.perf_counter(), results_file(results), options.get("max_hours")
    jobs = grid.jobs()
    rungs = [Rung(store, Outcome(jobs, RowsFile(folder / store.path.name, store.fingerprint))) for store in stores]

    def keep(rung: Rung, outcome: Outcome) -> None:
        rung.outcome = outcome
        rows = ladder_rows(rungs)
        write_jsonl(folder / "rows.jsonl", map(jsonable, rows))
        if path is None:
            return
        summaries = [sweep_results(grid, other.store, other.outcome, None) for other in rungs]
        of_store = ("data", "failed", "not_run", "hours_this_call", "estimate")
        tree = {
            **{key: summaries[0][key] for key in ("name", "machine", "code", "grid")},
            "command": command,
            "stores": [{key: other[key] for key in of_store} for other in summaries],
            "summary": by_store(rungs, summarise_seeds),
            "history": by_store(rungs, protocols_in_words),
            "rows": rows,
        }
        write_json(path, jsonable(tree))

    with folder_lock(folder, "sweep"):
        for rung in rungs:
            on_store(rung.store)
            options["max_hours"] = hours_left(max_hours, begun)
            rung.outcome = run_sweep(
                grid, rung.store, folder / rung.store.path.name, on_row=partial(keep, rung), **options
            )
    return rungs


def ladder_rows(rungs: Sequence[Rung]) -> list[Row]:
    """The newest rows of all stores, one store after another."""
    return [row for rung in rungs for row in rung.outcome.newest]


def by_store(rungs: Sequence[Rung], of: Callable[[list[Row]], dict[str, Any]]) -> dict[str, Any]:
    """A summary of each store's rows, joined: STORE/CELL -> what `of` (such as
    `summarise_seeds`) has for the cell."""
    return {f"{rung.store.path.name}/{cell}": v for rung in rungs for cell, v in of(rung.outcome.newest).items()}
