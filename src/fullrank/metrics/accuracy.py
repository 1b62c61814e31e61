"""Did the targets come, and how early: hit, recall, precision, F1, nDCG, reciprocal rank and average
precision at k.

Relevance is 0 or 1. k places, `table.relevant` targets per user; a target can be hit once. All are 0 .. 1 and equal
the measures of the same name in trec_eval (Success, R, P, nDCG, RR, AP with a cut-off; it has no F1 with one).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from fullrank.metrics import MetricInputs


def hit(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """1 where any of the first k places holds a target."""
    found = np.asarray(table.hits[:, :k].any(1))
    return found.astype(np.float64)


def recall(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """The share of the user's targets among the first k places."""
    hits: np.ndarray = table.hits[:, :k].sum(1)
    return hits / table.relevant


def precision(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """The share of the k places that hold a target; an empty place holds none (trec_eval's P)."""
    hits: np.ndarray = table.hits[:, :k].sum(1)
    return hits / k


def f1(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Harmonic mean of precision and recall, 2 P R / (P + R) = 2 hits / (k + targets) (van Rijsbergen 1979); 0 without
    a hit."""
    hits: np.ndarray = table.hits[:, :k].sum(1)
    return 2 * hits / (k + table.relevant)


def ndcg(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Sum over hits of 1 / log2(place + 1), over that sum for the best list of k (Jarvelin, Kekalainen 2002)."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)[np.minimum(table.relevant, k) - 1]
    hits = table.hits[:, :k]
    return hits @ discounts[: hits.shape[1]] / ideal


def mrr(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """1 / place of the first hit within k, else 0."""
    hits = table.hits[:, :k]
    return hits.any(1) / (hits.argmax(1) + 1.0)


def average_precision(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Sum over hits within k of (hits so far / place), over the number of targets."""
    hits = table.hits[:, :k]
    precision = np.cumsum(hits, 1) / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / table.relevant
