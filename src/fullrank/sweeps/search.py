"""The search space of `tune`: ranges of settings, and the points tried in them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from fullrank.core.constraints import MOST_ENTRIES, MOST_ROUNDS, MOST_SEED, SeedNumber
from fullrank.core.errors import UserError
from fullrank.sweeps.jobs import (
    DIFFERENT,
    Cell,
    Job,
    StudyFile,
    check_count,
    check_distinct_folders,
    check_name,
    make_jobs,
)  # fmt: skip
from fullrank.sweeps.samplers import Range, halton

MOST = 12
"""Settings that are searched at once: Halton's points in more dimensions lie on lines for too long."""

INSTEAD = {"training.max_epochs": "'epochs_share' decides the epochs of a trial", "seed": "use 'seeds'"}
"""Settings that are not searched -> what to do instead."""

Plan = dict[str, list[dict[str, Any]]]
"""Name of a cell -> the values of each of its trials, by axis of the space (`settings_of` says what they set)."""


class SearchCell(Cell):
    """A cell with its own search space."""

    space: dict[str, Range] = Field(default_factory=dict)
    """Dotted setting -> the values that it may take; empty takes the space of all. Several settings with commas between
    them are one axis: a trial gives all of them the same value."""


class Search(StudyFile):
    """What `tune` tries. Every cell gets the same number of trials, the first of them its own defaults.

    Trials are evaluated on the validation split; there is no setting that would look at the test split.
    """

    name: str = "tune"
    """Name of the search in its records."""
    cells: tuple[SearchCell, ...] = Field(min_length=1)
    """What is tuned."""
    space: dict[str, Range] = Field(default_factory=dict)
    """Search space of the cells that bring none of their own."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell; a cell's own come after."""
    trials: int = Field(4, ge=2, le=MOST_ROUNDS)
    """Settings tried per cell, its defaults included."""
    epochs_share: float = Field(1 / 3, gt=0, le=1)
    """Share of each cell's epochs that a trial gets."""
    seeds: Annotated[tuple[SeedNumber, ...], DIFFERENT] = Field((0,), min_length=1, max_length=MOST_ENTRIES)
    """Each trial is trained with each of these; its score is the mean."""
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Of the points tried."""

    @model_validator(mode="after")
    def _every_cell_has_a_space(self) -> Search:
        check_name(self.name)
        check_count(len(self.cells) * self.trials * len(self.seeds))
        for cell in self.cells:
            space = self.space_of(cell)
            if not space:
                raise UserError(
                    f"cell {cell.name!r} has nothing to search: give it a 'space', or one for all cells",
                    code="no-search-space",
                )
            if len(space) > MOST:
                raise UserError(
                    f"cell {cell.name!r} searches {len(space)} settings; the most is {MOST}", code="too-many-settings"
                )
            if cell.seeds is not None:
                raise UserError(
                    f"cell {cell.name!r}: 'seeds' must be those of all cells, or the budgets would differ",
                    code="cell-has-seeds",
                )
            paths = [path for axis in space for path in paths_of(axis)]
            if "" in paths or len(set(paths)) < len(paths):
                raise UserError(
                    f"cell {cell.name!r}: an axis of the space is one setting, or several with commas between them, "
                    f"and no setting stands there twice; given: {', '.join(map(repr, space))}",
                    code="repeated-setting",
                )
            for path, instead in INSTEAD.items():
                if path in paths:
                    raise UserError(
                        f"cell {cell.name!r}: {path} cannot be searched; {instead}", code="setting-not-searchable"
                    )
        return self

    def with_settings(self, settings: dict[str, Any]) -> Search:
        """The same search with settings that win over those of every cell."""
        made = [c.model_copy(update={"set": {**self.set, **c.set, **settings}}) for c in self.cells]
        return self.model_copy(update={"cells": tuple(made), "set": {}})

    def trial_settings(self, cell: SearchCell) -> list[dict[str, Any]]:
        """The values of each trial of a cell by axis, different from one another; trial 0 changes nothing.

        Raises `UserError` where the space holds fewer settings than there are trials.
        """
        space = self.space_of(cell)
        tried: list[dict[str, Any]] = [{}]
        for point in itertools.islice(halton(len(space), self.seed), 200 + 20 * self.trials):
            values = {path: some.at(u) for (path, some), u in zip(space.items(), point, strict=True)}
            if values not in tried:
                tried.append(values)
            if len(tried) == self.trials:
                return tried
        raise UserError(
            f"cell {cell.name!r}: the space holds too few different settings for {self.trials} trials; "
            f"ask for at most {len(tried)}",
            code="space-exhausted",
        )

    def space_of(self, cell: SearchCell) -> dict[str, Range]:
        """What is searched in a cell."""
        return cell.space or self.space

    def plan(self, trials: int | None = None) -> Plan:
        """The first trials of every cell by Halton's points, or all of them."""
        return {cell.name: self.trial_settings(cell)[:trials] for cell in self.cells}

    def jobs(self, plan: Plan | None = None) -> list[Job]:
        """Trial by trial, all cells in each. Every experiment is built here: a bad setting is found before any runs."""
        made: list[Job] = []
        plan = self.plan() if plan is None else plan
        for trial in range(len(plan[self.cells[0].name])):
            for cell in self.cells:
                settings = {**self.set, **cell.set, **settings_of(plan[cell.name][trial])}
                name = trial_name(cell.name, trial)
                plain = Cell(name=name, recipe=cell.recipe, set=settings)
                for job in make_jobs(plain, self.seeds, ("validation",), group=f"trial {trial}", selection_only=True):
                    epochs = max(1, round(job.experiment.training.max_epochs * self.epochs_share))
                    made.append(replace(job, experiment=job.experiment.override(f"training.max_epochs={epochs}")))
        check_distinct_folders(made)
        return made


def paths_of(axis: str) -> list[str]:
    """The dotted settings of an axis of a space."""
    return [path.strip() for path in axis.split(",")]


def settings_of(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that a trial's values by axis are of."""
    return {path: value for axis, value in values.items() for path in paths_of(axis)}


def trial_name(cell: str, trial: int) -> str:
    return f"{cell}-trial{trial}"
