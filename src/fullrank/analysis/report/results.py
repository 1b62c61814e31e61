"""Results of the runs on a page: metrics, diagnosis and training log of each, and whether they can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from fullrank.analysis.diagnosis import Diagnosis
from fullrank.core.errors import UserError
from fullrank.evaluation.compare import MAY_DIFFER
from fullrank.evaluation.result import protocol_difference, setting_to_align
from fullrank.problem import Problem
from fullrank.run import Run


@dataclass(frozen=True)
class RunResult:
    """Everything a page shows of one run, of either problem."""

    key: str
    """Its letter on the page."""
    name: str
    run: Run
    evaluation: Any
    """An `evaluation.EvaluationResult`."""
    diagnosis: Diagnosis
    log: tuple[dict[str, Any], ...]
    """Rows of metrics.jsonl."""
    accuracy: str
    """The metric that the page calls accuracy: the same for all runs, where all have it."""

    @property
    def selected(self) -> str:
        """The metric that the run was selected by."""
        return self.run.spec.evaluation.selection

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The rows that were written at an epoch's end."""
        return [row for row in self.log if row.get("event") == "epoch"]

    @property
    def layers(self) -> int | None:
        """Blocks of its encoder; None for a model without them."""
        return getattr(getattr(self.run.spec.model, "encoder", None), "layers", None)

    @property
    def label(self) -> str:
        """The first cell of its row in a table."""
        return f"{self.key} {self.name}"

    def metric(self, name: str) -> float | None:
        """None where it was not computed, or does not exist (gauc without groups)."""
        value = self.evaluation.metrics.get(name)
        return None if value is None or value != value else value

    def interval(self, name: str) -> tuple[float, float] | None:
        """Lower and upper end, where intervals were computed."""
        pair = self.evaluation.interval.get(name)
        return pair if pair is not None and pair[0] == pair[0] else None

    def why_missing(self, diagnostic: str) -> str:
        """Why the rows of a diagnostic are not there."""
        return self.diagnosis.left_out().get(diagnostic, "it was not measured")

    def absent(self, diagnostic: str) -> str:
        """The sentence below a figure that this run is not in."""
        return f"Run {self.key} ({self.name}) is not shown: {self.why_missing(diagnostic)}."


def measured(results: Sequence[RunResult], diagnostic: str) -> tuple[list[RunResult], tuple[str, ...]]:
    """The runs that have rows of a diagnostic, and a sentence for each that has none."""
    there = [one for one in results if one.diagnosis.of(diagnostic)]
    return there, tuple(one.absent(diagnostic) for one in results if one not in there)


def not_comparable(results: Sequence[RunResult]) -> str | None:
    """Why the metrics of these runs, all of one problem, cannot be compared; None where they can."""
    return COMPARABLE[results[0].run.spec.problem](results)


def _retrieval(results: Sequence[RunResult]) -> str | None:
    """One accuracy, and protocols that agree in all but what does not change a metric."""
    if len({one.accuracy for one in results}) > 1:
        metrics = ", ".join(sorted({one.accuracy for one in results}))
        return f"the runs were selected by different metrics ({metrics}), and not every run has the first one's"
    first = _protocol(results[0])
    for other in results[1:]:
        if _protocol(other) != first:
            return (
                f"runs {results[0].key} and {other.key} were evaluated differently: "
                f"{protocol_difference(first, _protocol(other))}{setting_to_align(first, _protocol(other))}"
            )
    return None


def _protocol(result: RunResult) -> dict[str, Any]:
    return {key: value for key, value in result.evaluation.protocol.items() if key not in MAY_DIFFER}


def _ranking(results: Sequence[RunResult]) -> str | None:
    """The same impressions."""
    first = results[0]
    for other in results[1:]:
        for what in ("fingerprint", "rows"):
            if other.evaluation.protocol.get(what) != first.evaluation.protocol.get(what):
                return f"runs {first.key} and {other.key} were evaluated on different impressions"
    return None


COMPARABLE: Mapping[Problem, Callable[[Sequence[RunResult]], str | None]] = {
    "retrieval": _retrieval, "ranking": _ranking,
}  # fmt: skip


def run_names(paths: Sequence[Path]) -> list[str]:
    """A name for each run folder: its own, or its path where several have the same. Raises for a folder given twice."""
    places = [path.resolve() for path in paths]
    for place in places:
        if places.count(place) > 1:
            raise UserError(f"the run {place} is given twice; give each once", code="given-twice")
    own = [place.name for place in places]
    return [readable(name if own.count(name) == 1 else str(path)) for name, path in zip(own, paths, strict=True)]


def readable(text: str) -> str:
    """Text that a page and a picture can show: what cannot be printed is replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def run_key(place: int) -> str:
    """A ... Z, A1 ... Z1, ..."""
    turn, letter = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(turn) if turn else "")
