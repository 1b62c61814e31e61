"""The grid of a sweep: cells written out, or a base and axes multiplied out, each over some seeds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fullrank.core.constraints import MOST_ENTRIES, SeedNumber, needs, once, only_with
from fullrank.core.errors import UserError, brief, no_effect
from fullrank.sweeps.jobs import (
    DIFFERENT,
    Cell,
    Job,
    Split,
    StudyFile,
    check_count,
    check_distinct_folders,
    check_name,
    evaluation_name,
    make_jobs,
    recipe_label,
)

Zipped = tuple[dict[str, Any], ...]
"""Settings that go together: one mapping per place on the axis, with an optional `name`."""


class Grid(StudyFile):
    """What a sweep runs, in this order: `cells`, then `base` with every combination of `axes`."""

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
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell; a cell's own come after."""
    seeds: Annotated[tuple[SeedNumber, ...], DIFFERENT] = Field((0,), min_length=1, max_length=MOST_ENTRIES)
    """Each cell runs once per seed; a baseline, which draws nothing, with the first alone."""
    order: Literal["cells", "seeds"] = "cells"
    """All seeds of a cell before the next cell, or one seed of all cells before the next seed."""
    evaluate: Annotated[tuple[Split, ...], once("split", code="repeated-split")] = ("test",)
    """Splits evaluated at the end of each run."""
    evaluate_also: Annotated[tuple[dict[str, Any], ...], only_with("evaluate")] = Field((), max_length=MOST_ENTRIES)
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
        prefixed = [path for one in self.evaluate_also for path in one if path.split(".")[0] == "evaluation"]
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
        """The same grid with settings that win over those of every cell; it has its cells written out."""
        made = [c.model_copy(update={"set": {**c.set, **settings}}) for c in self.expand()]
        return self.model_copy(update={"cells": tuple(made), "base": None, "axes": (), "set": {}})

    def expand(self) -> list[Cell]:
        """Every cell with all of its settings, in the order in which they run."""
        cells = [c.model_copy(update={"set": {**self.set, **c.set}}) for c in self.cells]
        if self.base is not None:
            places = itertools.product(*self._axes())
            taken = {c.name for c in cells}
            cells += [_cell(self.base, self.set, place, taken) for place in places]
        return cells

    def jobs(self) -> list[Job]:
        """One job per cell and seed. Every experiment is built here, so that a bad setting is found before any runs."""
        cells = self.expand()
        made = [make_jobs(cell, self.seeds, self.evaluate, also=self.evaluate_also) for cell in cells]
        rounds = made if self.order == "cells" else itertools.zip_longest(*made)
        jobs = [job for some in rounds for job in some if job is not None]
        check_distinct_folders(jobs)
        for name in map(evaluation_name, self.evaluate_also):
            if all(job.also[name] == job.experiment.evaluation for job in jobs):  # of some cells it may be the first
                raise no_effect(f"evaluate_also: {name!r}", "since every run is evaluated so anyway")
        return jobs

    def _axes(self) -> list[list[tuple[str, dict[str, Any]]]]:
        """Each axis as (label, settings) per place on it."""
        axes = self.axes if isinstance(self.axes, tuple) else (self.axes,)
        found: list[list[tuple[str, dict[str, Any]]]] = []
        for axis in axes:
            if isinstance(axis, dict):
                found += [[(_label(path, v), {path: v}) for v in values] for path, values in axis.items()]
            else:
                found.append([_zipped(place) for place in axis])
        return found


def _zipped(place: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = {path: value for path, value in place.items() if path != "name"}
    label = place.get("name") or "-".join(_label(path, value) for path, value in settings.items())
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


def _cell(base: str, common: Mapping[str, Any], place: Sequence[tuple[str, dict[str, Any]]], taken: set[str]) -> Cell:
    settings = dict(common)
    for _, some in place:
        settings |= some
    label = re.sub(r"[^A-Za-z0-9._+-]", "_", "-".join([recipe_label(base), *(label for label, _ in place)]))[:90]
    names = itertools.chain([label], (f"{label}-{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return Cell(name=name, recipe=base, set=settings)
