"""Paired differences of every run from the best baseline, on the same users or impressions (`evaluation.compare`).

A baseline learns nothing by gradient descent (`models/sequential/baselines`) or is linear in the fields (`lr`). Where
none is among the runs, the first run stands in its place: the page then says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.report.results import RunResult, Runs, not_comparable
from fullrank.core.errors import UserError
from fullrank.core.log import Tell
from fullrank.core.registry import Problem
from fullrank.evaluation import compare
from fullrank.evaluation.statistics import RESAMPLED
from fullrank.models.ranking.lr import LR
from fullrank.models.ranking.model import RankingModel
from fullrank.models.sequential.baselines import BaselineSpec

MORE: Mapping[Problem, tuple[str, ...]] = {"retrieval": (FAIRNESS, "coverage@10"), "ranking": ("auc", "logloss")}
"""Metrics that are compared beside the accuracy, where every run has them."""


def with_differences(results: Runs, tell: Tell | None = None) -> list[RunResult]:
    """The results, each with its differences from the reference; as they were where runs cannot be compared."""
    if len(results) < 2 or not_comparable(results) is not None:
        return list(results)
    base = reference_run(results)
    names = [name for name in _metrics(results) if all(one.metric(name) is not None for one in results)]
    tick = None if tell is None else tell("compare runs")
    found = []
    try:
        for place, one in enumerate(results):
            each = {} if one is base else {name: compare(base.evaluation, one.evaluation, name) for name in names}
            found.append(replace(one, reference=base.key, against=each))
            if tick is not None:
                tick(place + 1, len(results))
    except UserError:  # evaluations that were given by hand may hold other users
        return list(results)
    return found


def _metrics(results: Runs) -> list[str]:
    """Accuracy first, then the others, each once."""
    problem = results[0].run.spec.problem
    names = list(dict.fromkeys([results[0].accuracy, *MORE[problem]]))
    return [name for name in names if problem == "retrieval" or name in RESAMPLED]


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
