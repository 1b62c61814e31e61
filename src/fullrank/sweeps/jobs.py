"""A job: one experiment with one seed, the unit that a sweep or a search runs, resumes and records."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from fullrank.core.checks import check_once
from fullrank.core.constraints import MOST_ENTRIES, SeedNumber, once
from fullrank.core.errors import UserError, brief, in_context
from fullrank.core.readers import read_text
from fullrank.core.registry import kinds
from fullrank.core.spec import Spec, read_setting, spec_tree
from fullrank.evaluation.spec import Evaluation, RankingEvaluation
from fullrank.run.experiment import Experiment, find_experiment

Split = Literal["validation", "test"]
AnyProtocol = Evaluation | RankingEvaluation
MOST_JOBS = 5000
"""Runs of a sweep or a search: their experiments are all made before the first starts, in about 15 seconds."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""Names of cells are names of folders."""

ADDED: tuple[dict[tuple[str, str], Any], ...] = (
    {("evaluation", "sampled"): None},
    {("exact", "codes"): None},
    {("evaluation", "decoding"): {"kind": "exact", "beams": None, "edges": None, "steps": None}},
    {
        ("evaluation", "drop"): 0.0,
        ("evaluation", "reasoning"): {"steps": None, "streams": None, "adaptive": None, "patience": None},
        ("recommender", "reasoner"): None,
        ("sprint", "exact_bound"): False,
    },
    {("transformer", "norm_affine"): True},
)
"""Fields of today's hashes that joined their Specs when rows were already kept, newest first:
(kind, field) -> the value that changes nothing. Closed: a field added from now on is declared
where it stands, with `core.spec.later`."""


Settings = dict[str, Any]
"""Dotted setting -> its value."""


def recipe_label(recipe: str) -> str:
    """A recipe's name in tables: that of its function, or of its file."""
    return recipe.rpartition(":")[2] if ":" in recipe and "/" not in recipe else Path(recipe).stem


S = TypeVar("S", bound=Spec)


class StudyFile(Spec):
    """A grid or a search, which stand in files."""

    @classmethod
    def read(cls: type[S], path: str | Path) -> S:
        """Read a YAML or JSON file. Raises `UserError` saying what is wrong in it."""
        with in_context(f"{path}: "):
            return cls.from_text(read_text(path))


DIFFERENT = once("seed", code="invalid-seeds")
"""The check that no seed is listed twice."""


class Cell(Spec):
    """One recipe with some settings; a sweep runs it once per seed."""

    name: str
    """Name in tables and of the run folder: letters, digits and . _ + -; left out, it is the recipe's."""
    recipe: str
    """A recipe by name, or the path of an experiment's YAML or JSON file."""
    set: Settings = Field(default_factory=dict)
    """Dotted settings of the experiment, as in `--set`."""
    seeds: Annotated[tuple[SeedNumber, ...] | None, DIFFERENT] = Field(None, min_length=1, max_length=MOST_ENTRIES)
    """Seeds of this cell alone; null takes the grid's."""

    @model_validator(mode="before")
    @classmethod
    def _recipe_alone(cls, fields: Any) -> Any:
        if isinstance(fields, str):
            fields = {"recipe": fields}
        if isinstance(fields, dict) and isinstance(fields.get("recipe"), str):
            return {"name": recipe_label(fields["recipe"]), **fields}
        return fields

    @model_validator(mode="after")
    def _name_is_a_folder_name(self) -> Cell:
        check_name(self.name)
        return self


@dataclass(frozen=True)
class Job:
    """One experiment to run, and where it belongs."""

    cell: str
    recipe: str
    settings: Mapping[str, Any]
    """Settings that were changed in the recipe (the seed apart)."""
    seed: int
    experiment: Experiment
    splits: tuple[Split, ...]
    """Splits evaluated when training has ended."""
    group: str
    """Jobs of one group are started together or not at all."""
    selection_only: bool = False
    """Evaluate the metric that training selects by, and nothing else."""
    also: Mapping[str, AnyProtocol] = field(default_factory=dict)
    """Further evaluations of the same run: what is changed, as a name (`seen_keep`) -> the settings."""

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        return f"{self.cell}-seed{self.seed}"

    def run_folder(self, out: Path) -> Path:
        """Its run folder in the folder `out` of a sweep."""
        return out / "cells" / self.folder

    @property
    def evaluations(self) -> dict[str, tuple[Split, AnyProtocol]]:
        """Evaluations when training has ended, by their names in rows: `test`, `test_seen_keep`."""
        full = self.experiment.evaluation
        specs = {"": full.for_selection() if self.selection_only else full}
        specs |= {f"_{name}": spec for name, spec in self.also.items()}
        return {f"{split}{name}": (split, spec) for name, spec in specs.items() for split in self.splits}

    @cached_property
    def spec_hash(self) -> str:
        """The hash by which rows know the experiment; equal on every machine and in
        later versions (`spec_tree`)."""
        return tree_hash(spec_tree(self.experiment))

    @cached_property
    def earlier_hashes(self) -> frozenset[str]:
        """The hashes that it had before the fields in `ADDED` existed, back to the
        first that it sets otherwise."""
        hashes, without = set(), dict[tuple[str, str], Any]()
        for step in ADDED:
            without |= step
            tree = spec_tree(self.experiment, without)
            if tree is None:
                break
            hashes.add(tree_hash(tree))
        return frozenset(hashes)

    @cached_property
    def cost_key(self) -> str:
        """Equal for jobs that differ in the seed alone."""
        return tree_hash(spec_tree(self.experiment.model_copy(update={"seed": 0})))


def make_jobs(
    cell: Cell,
    seeds: Iterable[int],
    splits: tuple[Split, ...],
    *,
    group: str | None = None,
    selection_only: bool = False,
    also: Sequence[Mapping[str, Any]] = (),
) -> list[Job]:
    """One job per seed. What needs no seed (a baseline) runs with the first alone. `also`: further evaluations.

    Raises `UserError` naming the cell where its recipe is unknown or a setting does not fit.
    """
    settings = parse_exponents(cell.set)
    with in_context(f"cell {cell.name!r}: "):
        experiment = find_experiment(cell.recipe).override(*as_settings(settings))
        further = {evaluation_name(changes): experiment.evaluation.override(*as_settings(changes)) for changes in also}
        if "seed" in cell.set:
            raise UserError("'seed' cannot be set there; list the seeds in 'seeds'", code="seed-in-settings")
        if experiment.training.precision == "auto":
            raise UserError(
                "training.precision=auto is bf16 on one machine and fp32 on another, and rows are compared by their "
                "settings; name fp32 or bf16",
                code="precision-differs-by-machine",
            )
    chosen = list(cell.seeds or seeds)
    if experiment.model.kind_of() in kinds("baselines"):
        chosen = chosen[:1]
    return [
        Job(
            cell.name,
            cell.recipe,
            settings,
            seed,
            experiment.override(f"seed={seed}"),
            splits,
            group or f"{cell.name}-seed{seed}",
            selection_only,
            further,
        )
        for seed in chosen
    ]


def evaluation_name(settings: Mapping[str, Any]) -> str:
    """The settings of a further evaluation as part of a name in rows: `seen_keep`,
    `drop_0.2`, `reasoning.steps_1`."""
    return "_".join(part for path, value in settings.items() for part in _named(path, value))


def _named(path: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [part for key, inner in value.items() for part in _named(f"{path}.{key}", inner)]
    text = "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return [path, re.sub(r"[^A-Za-z0-9.+-]", "-", text)]


def as_settings(settings: Mapping[str, Any]) -> list[str]:
    """A mapping of dotted settings in the form that `Spec.override` reads."""
    return [f"{path}={json.dumps(value)}" for path, value in settings.items()]


def parse_exponents(settings: Mapping[str, Any]) -> Settings:
    """Turn texts like `1e-3`, which YAML does not read as numbers, into numbers."""
    number = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
    return {k: float(v) if isinstance(v, str) and number.fullmatch(v) else v for k, v in settings.items()}


def from_settings(settings: Iterable[str]) -> Settings:
    """The inverse of `as_settings`, for what a command line gives: `a.b=value`, the value in YAML."""
    return dict(read_setting(setting) for setting in settings)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise UserError(
            f"the name {name!r} is no folder name: use letters, digits and . _ + - (at most 100)",
            code="not-a-folder-name",
        )


def check_count(runs: int) -> None:
    """Raise `UserError` for more runs than a study may have, before one of them is made."""
    if runs > MOST_JOBS:
        raise UserError(
            f"these are {brief(runs)} runs (cells times seeds, and times trials), and a study has at most "
            f"{MOST_JOBS:,}: take fewer, or split them over several files",
            code="too-many-runs",
        )


def check_distinct_folders(jobs: Iterable[Job]) -> None:
    """Raises `UserError` where two jobs would share a run folder (also on disks that ignore case)."""
    folders = (job.folder for job in jobs)
    check_once(folders, "the run folder", "give each cell its own name", code="same-run-folder", same=str.lower)


def tree_hash(tree: Any) -> str:
    """A hash of plain data that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]
