"""Results of the runs on a page: metrics, diagnosis and training log of each, and paired differences of every run.

Differences are from the best baseline, on the same users or impressions (`evaluation.compare`). A baseline learns
nothing by gradient descent (`models/sequential/baselines`) or is linear in the fields (`lr`). Where none is among the
runs, the first run stands in its place: the page then says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.diagnosis import Diagnosis
from fullrank.analysis.report import TableCell
from fullrank.core.checks import check_once
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.log import Tell, quiet
from fullrank.core.registry import Problem
from fullrank.evaluation import compare
from fullrank.evaluation.compare import Comparison, compared_protocol
from fullrank.evaluation.result import protocol_difference, setting_to_align
from fullrank.evaluation.statistics import RESAMPLED
from fullrank.models.ranking.lr import LR
from fullrank.models.ranking.model import RankingModel
from fullrank.models.sequential.baselines import BaselineSpec
from fullrank.models.sequential.model import Recommender
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
    log: tuple[JsonObject, ...]
    """Rows of metrics.jsonl."""
    accuracy: str
    """The metric that the page calls accuracy: the same for all runs, where all have it."""
    store: Any = None
    """The prepared dataset that it was evaluated on; None where only the results are at hand."""
    reference: str | None = None
    """Key of the run that `against` is the difference from (`with_differences`); None where runs are not compared."""
    against: Mapping[str, Comparison] = field(default_factory=dict)
    """Metric -> this run less the reference, paired; empty for the reference itself."""

    @property
    def selected(self) -> str:
        """The metric that the run was selected by."""
        return self.run.spec.evaluation.selection

    @property
    def epochs(self) -> list[JsonObject]:
        """The rows that were written at an epoch's end."""
        return [row for row in self.log if row.get("event") == "epoch"]

    @property
    def layers(self) -> int | None:
        """Blocks of its encoder; None for a model without them."""
        model = self.run.spec.model
        return getattr(model.encoder, "layers", None) if isinstance(model, Recommender) else None

    @property
    def label(self) -> str:
        """The first cell of its row in a table."""
        return f"{self.key} {self.name}"

    @property
    def seconds(self) -> float | None:
        """Seconds of training and of its validation, as the log has them; None where it has none."""
        names = ("seconds", "validation_seconds")
        found = [
            float(row[name]) for row in self.log if row.get("event") in ("epoch", "fit") for name in names
            if isinstance(row.get(name), int | float)
        ]  # fmt: skip
        return sum(found) if found else None

    def metric(self, name: str) -> float | None:
        """None where it was not computed, or does not exist (gauc without groups)."""
        value = self.evaluation.metrics.get(name)
        return None if value is None or value != value else value

    def interval(self, name: str) -> tuple[float, float] | None:
        """Lower and upper end, where intervals were computed."""
        pair = self.evaluation.interval.get(name)
        return pair if pair is not None and pair[0] == pair[0] else None


Runs = Sequence[RunResult]
"""The runs on a page, in its order."""


def accuracy_word(results: Runs) -> str:
    """The metric that all of them call accuracy, or that word."""
    metrics = {one.accuracy for one in results}
    return metrics.pop() if len(metrics) == 1 else "accuracy"


METRIC_WORDS = {
    "fair": "long-tail share", "coverage": "catalogue coverage", "lift": "popularity lift", "gini": "Gini index",
    "ece": "calibration error", "pcoc": "predicted / clicked",
}  # fmt: skip
"""Metrics whose name alone says little to whoever has not read the guide."""


def metric_header(name: str) -> TableCell | str:
    """A metric in the head of a table: its word with its name below, or its name."""
    base = name.partition("@")[0].rstrip("0123456789.")
    return TableCell(METRIC_WORDS[base], name) if base in METRIC_WORDS else name


def metric_cell(one: RunResult, name: str) -> TableCell | None:
    """A metric with its interval below."""
    value, pair = one.metric(name), one.interval(name)
    if value is None:
        return None
    return TableCell(f"{value:.4f}", "" if pair is None else f"{pair[0]:.4f}–{pair[1]:.4f}")


def item_title(one: RunResult, item: int) -> str:
    """An item's title, or its id where the catalogue has none."""
    titles, ids = one.run.catalog.titles, one.run.catalog.ids
    return readable((None if titles is None else titles[item]) or str(ids[item]))


def not_comparable(results: Runs) -> str | None:
    """Why the metrics of these runs, all of one problem, cannot be compared; None where they can."""
    return COMPARABLE[results[0].run.spec.problem](results)


def _retrieval(results: Runs) -> str | None:
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


def _protocol(result: RunResult) -> JsonObject:
    return compared_protocol(result.evaluation.protocol)


def _ranking(results: Runs) -> str | None:
    """The same impressions."""
    first = results[0]
    for other in results[1:]:
        for what in ("fingerprint", "rows"):
            if other.evaluation.protocol.get(what) != first.evaluation.protocol.get(what):
                return f"runs {first.key} and {other.key} were evaluated on different impressions"
    return None


COMPARABLE: Mapping[Problem, Callable[[Runs], str | None]] = {
    "retrieval": _retrieval, "ranking": _ranking,
}  # fmt: skip


def run_names(paths: Sequence[Path]) -> list[str]:
    """A name for each run folder: its own, or its path where several have the same. Raises for a folder given twice."""
    places = [path.resolve() for path in paths]
    check_once(map(str, places), "the run", "give each once", code="given-twice")
    own = [place.name for place in places]
    return [readable(name if own.count(name) == 1 else str(path)) for name, path in zip(own, paths, strict=True)]


def readable(text: str) -> str:
    """Text that a page and a picture can show: what cannot be printed is replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def run_key(place: int) -> str:
    """A ... Z, A1 ... Z1, ..."""
    turn, letter = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(turn) if turn else "")


def run_place(label: str) -> int | None:
    """The place of the run whose letter a label begins with (`RunResult.label`); None of another label."""
    found = re.match(r"([A-Z])([1-9]\d*)?( |$)", label)
    return None if found is None else ascii_uppercase.index(found[1]) + len(ascii_uppercase) * int(found[2] or 0)


MORE: Mapping[Problem, tuple[str, ...]] = {"retrieval": (FAIRNESS, "coverage@10"), "ranking": ("auc", "logloss")}
"""Metrics that are compared beside the accuracy, where every run has them."""


def with_differences(results: Runs, tell: Tell = quiet) -> list[RunResult]:
    """The results, each with its differences from the reference; as they were where runs cannot be compared."""
    if len(results) < 2 or not_comparable(results) is not None:
        return list(results)
    base = reference_run(results)
    problem = base.run.spec.problem
    wanted = dict.fromkeys([results[0].accuracy, *MORE[problem]])  # accuracy first, each once
    names = [
        name for name in wanted
        if (problem == "retrieval" or name in RESAMPLED) and all(one.metric(name) is not None for one in results)
    ]  # fmt: skip
    tick, found = tell("compare runs"), []
    try:
        for place, one in enumerate(results):
            each = {} if one is base else {name: compare(base.evaluation, one.evaluation, name) for name in names}
            found.append(replace(one, reference=base.key, against=each))
            tick(place + 1, len(results))
    except UserError:  # evaluations that were given by hand may hold other users
        return list(results)
    return found


def reference_run(results: Runs) -> RunResult:
    """The most accurate baseline; the first run where there is none."""
    return most_accurate([one for one in results if is_baseline(one)] or results[:1])


def most_accurate(results: Runs) -> RunResult:
    """By the metric that the page calls accuracy; of equal ones the first."""
    return max(results, key=worth)


def worth(one: RunResult) -> float:
    """Its accuracy: more is better."""
    value = one.metric(one.accuracy)
    return -float("inf") if value is None else -value if one.accuracy == "logloss" else value


def is_baseline(one: RunResult) -> bool:
    """Whether it counts instead of learning, or is linear in the fields."""
    model = one.run.spec.model
    return isinstance(model, BaselineSpec) or (isinstance(model, RankingModel) and isinstance(model.ranker, LR))


def p_words(p: float) -> str:
    """`p < 0.001`, `p = 0.03`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
