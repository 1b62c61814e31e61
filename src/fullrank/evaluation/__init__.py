"""A model and a prepared store in, honest numbers out: metrics, errors, intervals, slices, and their protocol.

    evaluate(model, store, "test", Evaluation()).to_json()
    compare(a, b, "ndcg@10")        # the same users, paired; different protocols are refused
    oracle_step(model, store, "test"), frontier(model, store, "test")       # of a model that reasons

Several processes share the users: each calls `measure(..., shard=(rank, world))`, then `merge` puts the parts
together; the result is the one that a single process gives.
"""

from fullrank.evaluation.compare import Comparison, compare
from fullrank.evaluation.frontier import Point, frontier
from fullrank.evaluation.measure import evaluate, measure
from fullrank.evaluation.oracle import Ceiling, oracle_step
from fullrank.evaluation.result import Evaluated, PerUser, merge
from fullrank.evaluation.spec import Evaluation

__all__ = [
    "Ceiling", "Comparison", "Evaluated", "Evaluation", "PerUser", "Point", "compare", "evaluate", "frontier",
    "measure", "merge", "oracle_step",
]  # fmt: skip
