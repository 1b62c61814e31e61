"""Evaluation of a model on a prepared store: metrics with standard errors, intervals and slices, and their protocol.

    evaluate(model, store, "test", Evaluation()).to_json()
    EVALUATE[experiment.problem](model, store, "test", experiment.evaluation)
    compare(a, b, "ndcg@10")        # the same users, paired; different protocols are refused
    oracle_ceilings(model, store, "test"), accuracy_by_steps(model, store, "test")      # of a model that reasons

Several processes share the users: each calls `measure(..., shard=(rank, world))`, then `merge` puts
the parts together; the result is the one that a single process gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fullrank.core.registry import Problem
from fullrank.evaluation.compare import Comparison, compare
from fullrank.evaluation.ranking import evaluate_ranking
from fullrank.evaluation.reasoning_steps import OracleCeiling, StepCurvePoint, accuracy_by_steps, oracle_ceilings
from fullrank.evaluation.result import EvaluationResult, PerImpression, PerUser, merge
from fullrank.evaluation.retrieval import evaluate, measure
from fullrank.evaluation.spec import Evaluation

__all__ = [
    "EVALUATE",
    "Comparison",
    "Evaluation",
    "EvaluationResult",
    "OracleCeiling",
    "PerImpression",
    "PerUser",
    "StepCurvePoint",
    "accuracy_by_steps",
    "compare",
    "evaluate",
    "evaluate_ranking",
    "measure",
    "merge",
    "oracle_ceilings",
]


EVALUATE: Mapping[Problem, Callable[..., EvaluationResult]] = {"retrieval": evaluate, "ranking": evaluate_ranking}
"""Problem -> a function that evaluates: (model, store, split, spec, progress=) -> metrics.

It measures all users, or all impressions, of a split (`validation` or `test`) of a store. Spec,
store and model are of one problem; `progress` is called with (rows done, in all).
"""
