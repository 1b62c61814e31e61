"""Results of the runs on a page: metrics, diagnosis and training log of each, and paired differences of every run.

Differences are from the best baseline, on the same users or impressions
(`evaluation.compare`). A baseline learns nothing by gradient descent
(`models/sequential/baselines`) or is linear in the fields (`lr`). Where none is among the
runs, the first run stands in its place, and the page says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from fullrank.run.experiment import Experiment


@dataclass(frozen=True)
class RunResult:
    """Everything that a page shows of a run, of either problem."""

    key: str
    """Letter of the run on the page."""
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
    def spec(self) -> Experiment:
        return self.run.spec

    @property
    def manifest(self) -> JsonObject:
        return self.run.manifest

    @property
    def catalog(self) -> Any:
        return self.run.catalog

    @property
    def selected(self) -> str:
        """The metric by which the best epoch was chosen."""
        return self.spec.evaluation.selection

    @property
    def epochs(self) -> list[JsonObject]:
        """Rows of the log at the ends of epochs."""
        return [row for row in self.log if row.get("event") == "epoch"]

    @property
    def layers(self) -> int | None:
        """Number of blocks of the encoder; None for a model without them."""
        model = self.spec.model
        return getattr(model.encoder, "layers", None) if isinstance(model, Recommender) else None

    @property
    def label(self) -> str:
        """First cell of the run's row in a table."""
        return f"{self.key} {self.name}"

    @property
    def seconds(self) -> float | None:
        """Seconds of training with its validation, by the log; None where it has none."""
        names = ("seconds", "validation_seconds")
        seconds = [
            float(row[name])
            for row in self.log
            if row.get("event") in ("epoch", "fit")
            for name in names
            if isinstance(row.get(name), int | float)
        ]
        return sum(seconds) if seconds else None

    def metric(self, name: str) -> float | None:
        """Value of a metric; None where it was not computed, or does not exist."""
        value = self.evaluation.metrics.get(name)
        return None if value is None or value != value else value

    def interval(self, name: str) -> tuple[float, float] | None:
        """Lower and upper end of a metric's interval; None where none was computed."""
        pair = self.evaluation.interval.get(name)
        return pair if pair is not None and pair[0] == pair[0] else None


Runs = Sequence[RunResult]
"""The runs on a page, in its order."""


def accuracy_word(results: Runs) -> str:
    """Name of the metric that all runs call accuracy, or the word `accuracy`."""
    metrics = {run.accuracy for run in results}
    return metrics.pop() if len(metrics) == 1 else "accuracy"


METRIC_WORDS = {
    "fair": "long-tail share",
    "coverage": "catalogue coverage",
    "lift": "popularity lift",
    "gini": "Gini index",
    "ece": "calibration error",
    "pcoc": "predicted / clicked",
}
"""Word of a metric whose name says little to those who have not read the guide."""


def metric_header(name: str) -> TableCell | str:
    """Header of a metric's column: its word with its name below, or its name alone."""
    base = name.partition("@")[0].rstrip("0123456789.")
    return TableCell(METRIC_WORDS[base], name) if base in METRIC_WORDS else name


def metric_cell(run: RunResult, name: str) -> TableCell | None:
    """A metric's value with its interval below; None where there is no value."""
    value, pair = run.metric(name), run.interval(name)
    if value is None:
        return None
    return TableCell(f"{value:.4f}", "" if pair is None else f"{pair[0]:.4f}–{pair[1]:.4f}")


def item_title(run: RunResult, item: int) -> str:
    """An item's title, or its id where the catalogue has none."""
    titles, ids = run.catalog.titles, run.catalog.ids
    return readable((None if titles is None else titles[item]) or str(ids[item]))


def not_comparable(results: Runs) -> str | None:
    """Why the metrics of runs of one problem cannot be compared; None where they can.

    Ranking models need the same impressions; recommenders one accuracy metric, and protocols that
    agree in everything that changes a metric.
    """
    if results[0].spec.problem == "ranking":
        for run in results[1:]:
            for name in ("fingerprint", "rows"):
                if run.evaluation.protocol.get(name) != results[0].evaluation.protocol.get(name):
                    return f"runs {results[0].key} and {run.key} were evaluated on different impressions"
        return None
    if len({run.accuracy for run in results}) > 1:
        metrics = ", ".join(sorted({run.accuracy for run in results}))
        return f"the runs were selected by different metrics ({metrics}), and not every run has the first one's"
    first, *others = (compared_protocol(run.evaluation.protocol) for run in results)
    for run, other in zip(results[1:], others, strict=True):
        if other != first:
            return (
                f"runs {results[0].key} and {run.key} were evaluated differently: "
                f"{protocol_difference(first, other)}{setting_to_align(first, other)}"
            )
    return None


def run_names(paths: Sequence[Path]) -> list[str]:
    """Name of each run folder, or its path where several have one name.

    Raises `UserError` for a repeated folder.
    """
    folders = [path.resolve() for path in paths]
    check_once(map(str, folders), "the run", "give each once", code="given-twice")
    names = [folder.name for folder in folders]
    return [readable(name if names.count(name) == 1 else str(path)) for name, path in zip(names, paths, strict=True)]


def readable(text: str) -> str:
    """Text that a page and a picture can show: what cannot be printed is replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def run_key(number: int) -> str:
    """The letter of a run by its number: A ... Z, A1 ... Z1, ..."""
    turn, letter = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(turn) if turn else "")


def run_number(label: str) -> int | None:
    """Number, from 0, of the run whose letter a label begins with; None for other labels."""
    letters = re.match(r"([A-Z])([1-9]\d*)?( |$)", label)
    return None if letters is None else ascii_uppercase.index(letters[1]) + len(ascii_uppercase) * int(letters[2] or 0)


MORE: Mapping[Problem, tuple[str, ...]] = {"retrieval": (FAIRNESS, "coverage@10"), "ranking": ("auc", "logloss")}
"""Metrics that are compared beside the accuracy, where every run has them."""


def with_differences(results: Runs, tell: Tell = quiet) -> list[RunResult]:
    """Add the differences from the reference, where the runs can be compared."""
    if len(results) < 2 or not_comparable(results) is not None:
        return list(results)
    base = reference_run(results)
    problem = base.spec.problem
    wanted = dict.fromkeys([results[0].accuracy, *MORE[problem]])  # accuracy first, each once
    names = [
        name
        for name in wanted
        if (problem == "retrieval" or name in RESAMPLED) and all(run.metric(name) is not None for run in results)
    ]
    tick, compared = tell("compare runs"), []
    try:
        for number, run in enumerate(results):
            differences = (
                {} if run is base else {name: compare(base.evaluation, run.evaluation, name) for name in names}
            )
            compared.append(replace(run, reference=base.key, against=differences))
            tick(number + 1, len(results))
    except UserError:  # evaluations that the caller passed may hold other users
        return list(results)
    return compared


def reference_run(results: Runs) -> RunResult:
    """The most accurate baseline, or the first run where there is none."""
    return most_accurate([run for run in results if is_baseline(run)] or results[:1])


def most_accurate(results: Runs) -> RunResult:
    """The run of the best accuracy (the page's metric); of equal ones the first."""
    return max(results, key=worth)


def worth(run: RunResult) -> float:
    """The accuracy of a run, its sign turned where smaller is better; -inf where there is none."""
    value = run.metric(run.accuracy)
    return -float("inf") if value is None else -value if run.accuracy == "logloss" else value


def is_baseline(run: RunResult) -> bool:
    """Whether a run's model counts instead of learning, or is linear in the fields."""
    model = run.spec.model
    return isinstance(model, BaselineSpec) or (isinstance(model, RankingModel) and isinstance(model.ranker, LR))


def p_words(p: float) -> str:
    """A p value in words: `p < 0.001`, `p = 0.03`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
