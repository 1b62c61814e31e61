"""The search space of `tune`: ranges of settings, and the points that are tried in them.

These are Halton's by default, or TPE's (Optuna) on request.

`halton` is a function of (seed, n) alone, so every cell of a search tries settings that are known
before the first run. `tpe` chooses each trial from the scores of those before it (Bergstra et al.,
"Algorithms for Hyper-Parameter Optimization", NeurIPS 2011) and is a function of the seed, the
trial's number and these scores, whose order counts: a search that is cut off and goes on asks for
the same trials as an unbroken one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from fullrank.core.checks import check_one_way
from fullrank.core.constraints import MOST_ENTRIES, MOST_ROUNDS, MOST_SEED, PositiveShare, SeedNumber, Value
from fullrank.core.errors import UserError, package
from fullrank.core.spec import Spec
from fullrank.sweeps.jobs import (
    DIFFERENT,
    Cell,
    Job,
    Settings,
    StudyFile,
    check_count,
    check_distinct_folders,
    check_name,
    make_jobs,
)

Whole = Annotated[int, Field(ge=-MOST_SEED, le=MOST_SEED)]


class Range(Spec):
    """The values that one setting may take: exactly one of the four."""

    log: tuple[Value, Value] | None = None
    """Between two positive numbers, even in the logarithm."""
    uniform: tuple[Value, Value] | None = None
    """Between two numbers, evenly."""
    integer: tuple[Whole, Whole] | None = None
    """Whole numbers from the first to the last."""
    choice: tuple[Any, ...] | None = Field(None, min_length=2, max_length=MOST_ENTRIES)
    """One of these."""

    @model_validator(mode="after")
    def _is_one_range(self) -> Range:
        check_one_way(dict(self), needed=True, code="not-one-range")
        name, values = next((name, values) for name, values in self if values is not None)
        if name != "choice" and (values[0] >= values[1] or (name == "log" and values[0] <= 0)):
            raise UserError(
                f"{name}: the lower end, then the upper one{', both above 0' * (name == 'log')}; given: {list(values)}",
                code="invalid-range",
            )
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of a range of real numbers."""
        return self.log or self.uniform or (0.0, 1.0)

    def at(self, position: float) -> Any:
        """The value at a position in [0, 1); numbers to 3 significant digits, within the range."""
        if self.choice is not None:
            return self.choice[int(position * len(self.choice))]
        if self.integer is not None:
            return self.integer[0] + int(position * (self.integer[1] - self.integer[0] + 1))
        low, high = self.ends
        if self.log is not None:
            return self.tidy(low * (high / low) ** position)
        return self.tidy(low + (high - low) * position)

    def tidy(self, value: Any) -> Any:
        """A value as it is tried: the choice at this index, or a number to 3 significant digits in the range."""
        if self.choice is not None:
            return self.choice[value]
        if self.integer is not None:
            return value
        low, high = self.ends
        return min(max(float(f"{value:.3g}"), low), high)

    def place_of(self, value: Any) -> Any:
        """The inverse of `tidy`: the index of a choice, else the value.

        Raises `ValueError` for a value that is no choice. Choices are compared as JSON, which
        plan.json holds: there a tuple is a list, and True is not 1.
        """
        if self.choice is None:
            return value
        return [json.dumps(choice) for choice in self.choice].index(json.dumps(value))


MOST = 12
"""Settings that are searched at once: Halton's points in more dimensions lie on lines for too long."""

INSTEAD = {"training.max_epochs": "'epochs_share' decides the epochs of a trial", "seed": "use 'seeds'"}
"""Settings that are not searched -> what to do instead."""

Plan = dict[str, list[Settings]]
"""Name of a cell -> the values of each of its trials, by axis of the space (`settings_of` says what they set)."""


class SearchCell(Cell):
    """A cell with its own search space."""

    space: dict[str, Range] = Field(default_factory=dict)
    """Dotted setting -> the values that it may take; empty takes the space of all. Several settings with commas between
    them are one axis: a trial gives all of them the same value."""


class Search(StudyFile):
    """A search of `tune`. Every cell gets the same number of trials, the first of them its own defaults.

    Trials are evaluated on the validation split; there is no setting that would look at the test
    split.
    """

    name: str = "tune"
    """Name of the search in its records."""
    cells: tuple[SearchCell, ...] = Field(min_length=1)
    """Cells that are tuned."""
    space: dict[str, Range] = Field(default_factory=dict)
    """Search space of the cells that bring none of their own."""
    set: Settings = Field(default_factory=dict)
    """Settings of every cell; a cell's own come after."""
    trials: int = Field(4, ge=2, le=MOST_ROUNDS)
    """Settings tried per cell, its defaults included."""
    epochs_share: PositiveShare = 1 / 3
    """Share of each cell's epochs that a trial gets."""
    seeds: Annotated[tuple[SeedNumber, ...], DIFFERENT] = Field((0,), min_length=1, max_length=MOST_ENTRIES)
    """Each trial is trained with each of these; its score is the mean."""
    seed: SeedNumber = 0
    """Seed of the points that are tried."""

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

    def with_settings(self, settings: Settings) -> Search:
        """A copy with settings that win over those of every cell."""
        cells = [c.model_copy(update={"set": {**self.set, **c.set, **settings}}) for c in self.cells]
        return self.model_copy(update={"cells": tuple(cells), "set": {}})

    def trial_settings(self, cell: SearchCell) -> list[Settings]:
        """The values of each trial of a cell by axis, different from one another; trial 0 changes nothing.

        Raises `UserError` where the space holds fewer settings than there are trials.
        """
        space = self.space_of(cell)
        tried: list[Settings] = [{}]
        for point in itertools.islice(halton(len(space), self.seed), 200 + 20 * self.trials):
            values = {path: axis.at(u) for (path, axis), u in zip(space.items(), point, strict=True)}
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
        """The search space of a cell: its own, or that of all."""
        return cell.space or self.space

    def plan(self) -> Plan:
        """The trials of every cell by Halton's points."""
        return {cell.name: self.trial_settings(cell) for cell in self.cells}

    def jobs(self, plan: Plan | None = None) -> list[Job]:
        """Jobs trial by trial, all cells in each. A bad setting is found here, before any runs."""
        jobs: list[Job] = []
        plan = self.plan() if plan is None else plan
        for trial in range(len(plan[self.cells[0].name])):
            for cell in self.cells:
                settings = {**self.set, **cell.set, **settings_of(plan[cell.name][trial])}
                name = trial_name(cell.name, trial)
                plain = Cell(name=name, recipe=cell.recipe, set=settings)
                for job in make_jobs(plain, self.seeds, ("validation",), group=f"trial {trial}", selection_only=True):
                    epochs = max(1, round(job.experiment.training.max_epochs * self.epochs_share))
                    jobs.append(replace(job, experiment=job.experiment.override(f"training.max_epochs={epochs}")))
        check_distinct_folders(jobs)
        return jobs


def paths_of(axis: str) -> list[str]:
    """The dotted settings of an axis of a space."""
    return [path.strip() for path in axis.split(",")]


def settings_of(values: Settings) -> Settings:
    """The settings of a trial from its values by axis."""
    return {path: value for axis, value in values.items() for path in paths_of(axis)}


def trial_name(cell: str, trial: int) -> str:
    return f"{cell}-trial{trial}"


SAMPLERS = ("halton", "tpe")
STARTUP = 5
"""Trials of a search by TPE that are Halton's points, the defaults of trial 0 included: too few scores say nothing."""
ATTEMPTS = 100
"""How often TPE is asked for settings that were not tried yet, before a spare point is taken."""


def halton(dimensions: int, seed: int) -> Iterator[Sequence[float]]:
    """Points in the unit cube that fill it evenly; point n does not depend on how many follow.

    Halton's sequence with each base's digits passed through random permutations (Owen 2017,
    arXiv:1706.02808), so that few points in many dimensions are not on a line. Raises `UserError`
    where this scipy gives other points.
    """
    _check_scipy()
    engine = _halton_engine(dimensions, seed)
    while True:
        yield [min(float(value), 1 - 2.0**-53) for value in engine.random(1)[0]]  # a sum of digits may round up to 1


KNOWN_POINT = (0.6599202709073042, 0.27875379254107896, 0.17019453998976836)
"""Point 5 of seed 3 in three dimensions: 101, 12 and 10 in bases 2, 3 and 5, so that later digits count too."""


@cache
def _check_scipy() -> None:
    """Raise `UserError` where scipy and numpy give other points than those of recorded searches.

    The permutations get into scipy's engine by a method that is private to it, and numpy does not
    promise that its draws stay the same: neither would say so.
    """
    import scipy

    point = _halton_engine(3, 3).random(6)[5]
    if not np.allclose(point, KNOWN_POINT, rtol=0, atol=1e-12):  # compilers may differ in the last bit
        raise UserError(
            f"scipy {scipy.__version__} with numpy {np.__version__} gives other Halton points than recorded searches "
            "have; install versions like scipy 1.17 and numpy 2",
            code="unsupported-scipy",
        )


def _halton_engine(dimensions: int, seed: int) -> Any:
    """scipy's engine of Halton points, with permutations of ours."""
    from scipy.stats import qmc

    class Seeded(qmc.Halton):
        def _initialize_permutations(self) -> None:
            """A permutation per digit, drawn from (seed, base): a further setting
            leaves the others' values alone."""
            digits = (-(-52 // np.log2(base)) for base in self.base)  # as many as a float can tell apart
            draws = (np.random.default_rng([seed, base]) for base in self.base)
            self._permutations = [
                np.array([draw.permutation(base) for _ in range(int(count))])
                for base, count, draw in zip(self.base, digits, draws, strict=True)
            ]

    return Seeded(dimensions, scramble=True)


def tpe(
    space: Mapping[str, Range],
    tried: Sequence[Mapping[str, Any]],
    scores: Sequence[float | None],
    seed: int,
    spare: Iterable[Settings] = (),
) -> Settings:
    """Settings for the trial after those `tried`, whose scores are given (larger is better, None where one failed).

    TPE prefers what did well: where few settings are left, all that it asks for may have been
    tried. The first of `spare` that was not is taken then. Needs the extra `tune`. Raises
    `UserError` where there is none in `spare`.
    """
    optuna = package("optuna", "tune", "the sampler 'tpe'")
    kinds = {path: _distribution(values) for path, values in space.items()}
    sampler_seed = int(np.random.SeedSequence([seed, len(tried)]).generate_state(1)[0])
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line per study says nothing that ours do not
    try:
        sampler = optuna.samplers.TPESampler(seed=sampler_seed, n_startup_trials=1)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for settings, score in zip(tried, scores, strict=True):
            # trial 0, the defaults, may be no point of the space
            if score is not None and settings.keys() == space.keys():
                point = {path: space[path].place_of(value) for path, value in settings.items()}
                study.add_trial(optuna.trial.create_trial(params=point, distributions=kinds, value=score))
        points = (study.ask(kinds).params for _ in range(ATTEMPTS))
        preferred = ({path: values.tidy(point[path]) for path, values in space.items()} for point in points)
        for settings in itertools.chain(preferred, spare):
            if settings not in tried:
                return settings
    finally:
        optuna.logging.set_verbosity(before)
    raise UserError(
        f"TPE found nothing in the space that was not among the {len(tried)} trials so far: ask for fewer trials, or "
        "widen the space",
        code="space-exhausted",
    )


def _distribution(values: Range) -> Any:
    """A range in Optuna's terms; of choices their places, because a value
    may be a list or a mapping."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if values.choice is not None:
        return CategoricalDistribution(range(len(values.choice)))
    if values.integer is not None:
        return IntDistribution(*values.integer)
    return FloatDistribution(*values.ends, log=values.log is not None)
