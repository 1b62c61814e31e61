"""What the two kinds of findings share: the names of runs, and what already stands in their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from fullrank.analysis.diagnose import NAME, Diagnosis
from fullrank.core.errors import UserError, unknown
from fullrank.run import Run


@dataclass(frozen=True)
class Known:
    """What a page shows of one run, of whatever kind it is."""

    key: str
    """Its letter on the page."""
    name: str
    run: Run
    evaluated: Any
    diagnosis: Diagnosis
    journal: tuple[dict[str, Any], ...]
    """Rows of metrics.jsonl."""

    @property
    def selected(self) -> str:
        """The metric that the run was selected by."""
        return self.run.spec.evaluation.selection

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The rows that were written at an epoch's end."""
        return [row for row in self.journal if row.get("event") == "epoch"]

    def metric(self, name: str) -> float | None:
        """None where it was not computed, or does not exist (gauc without groups)."""
        value = self.evaluated.metrics.get(name)
        return None if value is None or value != value else value

    def interval(self, name: str) -> tuple[float, float] | None:
        """Lower and upper end, where intervals were computed."""
        pair = self.evaluated.interval.get(name)
        return pair if pair is not None and pair[0] == pair[0] else None


def names_of(runs: Sequence[Run], settings: Sequence[str], evaluations: Mapping[str, Any] | None) -> list[str]:
    """A name for each run. Raises `UserError` where evaluations are given for others, or beside settings."""
    if not runs:
        raise UserError("a report needs at least one run")
    if settings and evaluations:
        raise UserError("settings change how runs are evaluated, so they have no effect on evaluations that are given")
    names = named([run.path for run in runs])
    for name in evaluations or ():
        if name not in names:
            raise unknown("run of this report", name, names)
    return names


def named(paths: Sequence[Path]) -> list[str]:
    """A name for each run folder: its own, or its path where several have the same. Raises for a folder given twice."""
    places = [path.resolve() for path in paths]
    for place in places:
        if places.count(place) > 1:
            raise UserError(f"the run {place} is given twice; give each once")
    own = [place.name for place in places]
    return [readable(name if own.count(name) == 1 else str(path)) for name, path in zip(own, paths, strict=True)]


def readable(text: str) -> str:
    """Text that a page and a picture can show: what cannot be printed is replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def key_of(place: int) -> str:
    """A ... Z, A1 ... Z1, ..."""
    turn, letter = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(turn) if turn else "")


def has_evaluation(run: Run) -> bool:
    """Whether the folder holds an evaluation that is not older than the weights."""
    path = run.path / "evaluation.json"
    return path.is_file() and path.stat().st_mtime >= (run.path / "weights.safetensors").stat().st_mtime


def kept_diagnosis(run: Run, asked: Mapping[str, Any]) -> Diagnosis | None:
    """The diagnosis in the folder, where it was made as asked."""
    if not (run.path / NAME).is_file():
        return None
    kept = Diagnosis.load(run.path / NAME)
    about = kept.about()
    return kept if all(about.get(key) == value for key, value in asked.items()) else None
