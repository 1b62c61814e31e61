"""The search space of `tune`: ranges of settings, and the points tried in them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from fullrank.core.errors import UserError
from fullrank.core.readers import read_text
from fullrank.core.spec import Spec
from fullrank.sweeps.jobs import Cell, Job, check_distinct_folders, check_name, check_seeds, make_jobs

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Bases of the Halton sequence: at most so many settings are searched at once."""


class Range(Spec):
    """The values that one setting may take: exactly one of the four."""

    log: tuple[float, float] | None = None
    """Between two positive numbers, even in the logarithm."""
    uniform: tuple[float, float] | None = None
    """Between two numbers, evenly."""
    integer: tuple[int, int] | None = None
    """Whole numbers from the first to the last."""
    choice: tuple[Any, ...] | None = None
    """One of these."""

    @model_validator(mode="after")
    def _is_one_range(self) -> Range:
        given = {name: getattr(self, name) for name in type(self).model_fields if getattr(self, name) is not None}
        if len(given) != 1:
            raise ValueError(f"a range is one of log, uniform, integer, choice; given: {', '.join(given) or 'none'}")
        name, values = next(iter(given.items()))
        if name == "choice":
            if len(values) < 2:
                raise ValueError("choice: at least two values, or there is nothing to choose")
        elif not (all(map(math.isfinite, values)) and values[0] < values[1]) or (name == "log" and values[0] <= 0):
            raise ValueError(f"{name}: the lower end, then the upper one{', both above 0' * (name == 'log')}")
        return self

    def at(self, place: float) -> Any:
        """The value at a place in [0, 1); numbers to 3 significant digits, within the range."""
        if self.choice is not None:
            return self.choice[int(place * len(self.choice))]
        if self.integer is not None:
            return self.integer[0] + int(place * (self.integer[1] - self.integer[0] + 1))
        if self.log is not None:
            low, high = self.log
            value = low * (high / low) ** place
        else:
            low, high = self.uniform or (0.0, 1.0)
            value = low + (high - low) * place
        return min(max(float(f"{value:.3g}"), low), high)


class SearchCell(Cell):
    """A cell with its own search space."""

    space: dict[str, Range] = Field(default_factory=dict)
    """Dotted setting -> the values that it may take; empty takes the space of all."""


class Search(Spec):
    """What `tune` tries. Every cell gets the same number of trials, the first of them its own defaults.

    Trials are judged on the validation split; there is no setting that would look at the test split.
    """

    name: str = "tune"
    """Name of the search in its records."""
    cells: tuple[SearchCell, ...] = Field(min_length=1)
    """What is tuned."""
    space: dict[str, Range] = Field(default_factory=dict)
    """Search space of the cells that bring none of their own."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell; a cell's own come after."""
    trials: int = Field(4, ge=2)
    """Settings tried per cell, its defaults included."""
    epochs_share: float = Field(1 / 3, gt=0, le=1)
    """Share of each cell's epochs that a trial gets."""
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    """Each trial is trained with each of these; its score is the mean."""
    seed: int = Field(0, ge=0)
    """Of the points tried."""

    @classmethod
    def read(cls, path: str | Path) -> Search:
        """A search from a YAML or JSON file. Raises `UserError` saying what is wrong in it."""
        try:
            return cls.from_text(read_text(path))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @model_validator(mode="after")
    def _every_cell_has_a_space(self) -> Search:
        check_name(self.name)
        check_seeds(self.seeds)
        for cell in self.cells:
            space = cell.space or self.space
            if not space:
                raise ValueError(f"cell {cell.name!r} has nothing to search: give it a 'space', or one for all cells")
            if len(space) > len(PRIMES):
                raise ValueError(f"cell {cell.name!r} searches {len(space)} settings; the most is {len(PRIMES)}")
            if cell.seeds is not None:
                raise ValueError(f"cell {cell.name!r}: 'seeds' must be those of all cells, or the budgets would differ")
            for path in ("training.max_epochs", "seed"):
                if path in space:
                    instead = "'epochs_share' decides the epochs of a trial" if "." in path else "use 'seeds'"
                    raise ValueError(f"cell {cell.name!r}: {path} cannot be searched; {instead}")
        return self

    def with_settings(self, settings: dict[str, Any]) -> Search:
        """The same search with settings that win over those of every cell."""
        made = [c.model_copy(update={"set": {**self.set, **c.set, **settings}}) for c in self.cells]
        return self.model_copy(update={"cells": tuple(made), "set": {}})

    def trial_settings(self, cell: SearchCell) -> list[dict[str, Any]]:
        """The settings of each trial of a cell, different from one another; trial 0 changes nothing.

        Raises `UserError` where the space holds fewer settings than there are trials.
        """
        space = cell.space or self.space
        tried: list[dict[str, Any]] = [{}]
        for point in itertools.islice(halton(len(space), self.seed), 200 + 20 * self.trials):
            if len(tried) == self.trials:
                break
            values = {path: some.at(u) for (path, some), u in zip(space.items(), point, strict=True)}
            if values not in tried:
                tried.append(values)
        if len(tried) < self.trials:
            raise UserError(
                f"cell {cell.name!r}: the space holds too few different settings for {self.trials} trials; "
                f"ask for at most {len(tried)}"
            )
        return tried

    def jobs(self) -> list[Job]:
        """Trial by trial, all cells in each. Every experiment is built here: a bad setting is found before any runs."""
        made: list[Job] = []
        plans = [(cell, self.trial_settings(cell)) for cell in self.cells]
        for trial in range(self.trials):
            for cell, tried in plans:
                name, settings = trial_name(cell.name, trial), {**self.set, **cell.set, **tried[trial]}
                plain = Cell(name=name, recipe=cell.recipe, set=settings)
                jobs = make_jobs(plain, self.seeds, ("validation",), group=f"trial {trial}", selection_only=True)
                made += [self._shortened(job) for job in jobs]
        check_distinct_folders(made)
        return made

    def _shortened(self, job: Job) -> Job:
        from dataclasses import replace

        epochs = max(1, round(job.experiment.training.max_epochs * self.epochs_share))
        return replace(job, experiment=job.experiment.override(f"training.max_epochs={epochs}"))


def trial_name(cell: str, trial: int) -> str:
    return f"{cell}-trial{trial}"


def halton(dimensions: int, seed: int) -> Iterator[Sequence[float]]:
    """Points in the unit cube that fill it evenly; point n does not depend on how many follow.

    Halton's sequence with each base's digits passed through random permutations (as in Owen 2017, arXiv:1706.02808), so
    that few points in many dimensions are not on a line.
    """
    digits = [_permutations(base, np.random.default_rng([seed, base])) for base in PRIMES[:dimensions]]
    for n in itertools.count():
        yield [_inverse(n, tables) for tables in digits]


def _permutations(base: int, rng: np.random.Generator) -> list[list[int]]:
    """One permutation per digit, as many digits as a float can tell apart."""
    return [rng.permutation(base).tolist() for _ in range(math.ceil(52 / math.log2(base)))]


def _inverse(n: int, tables: list[list[int]]) -> float:
    """n's digits, permuted and mirrored at the point."""
    base, value, scale = len(tables[0]), 0.0, 1.0
    for table in tables:
        n, digit = divmod(n, base)
        scale /= base
        value += table[digit] * scale
    return min(value, 1 - 2.0**-53)
