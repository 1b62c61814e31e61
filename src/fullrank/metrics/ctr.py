"""Metrics of click probabilities: AUC, LogLoss, AUC within groups, calibration. Exact, and in numpy alone.

AUC is the share of pairs (clicked, not clicked) in the right order, ties counting one half (Mann
and Whitney); it is computed from how many of each class have each distinct score, so rows can be
weighted. LogLoss is the mean of -log p of what happened, p kept above 1e-15. gAUC is the mean of
the AUCs of groups weighted by their impressions (Zhu et al., KDD 2017); groups of a single class
have none and are left out and counted. ECE is the mean gap between probability and click rate over
bins of equally many rows, weighted by rows (Guo et al., ICML 2017, with bins of equal width there,
which click data leave almost empty). PCOC is predicted over observed clicks.

N rows, G groups, K distinct scores, S samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from fullrank.core.constraints import LEAST_PROBABILITY
from fullrank.metrics import RowValues


def auc(scores: RowValues, labels: RowValues) -> float:
    """Area under the ROC curve; NaN where a class has no row."""
    return weighted_auc(dense_ranks(scores), labels, np.ones(len(labels)))


def dense_ranks(scores: Shaped[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
    """The rank of each row's score among the distinct scores, ascending from 0."""
    return np.unique(scores, return_inverse=True)[1]


def weighted_auc(ranks: Int[np.ndarray, "N"], labels: RowValues, weights: RowValues) -> float:
    """The AUC where row n counts `weights[n]` times, from `dense_ranks`: what
    resampling needs, in linear time."""
    # of no rows, bincount makes whole numbers
    clicked, every = (np.bincount(ranks, counted).astype(np.float64) for counted in (weights * labels, weights))
    return _area(clicked, every - clicked)


def losses(probabilities: RowValues, labels: RowValues) -> RowValues:
    """-log p of what happened, row by row; LogLoss is the mean."""
    right = np.where(labels > 0, probabilities, 1 - probabilities)
    return -np.log(np.maximum(right, LEAST_PROBABILITY))


@dataclass(frozen=True)
class Grouped:
    """The mean AUC within groups, and how many groups have one."""

    value: float
    """Mean of the groups' AUCs, weighted by their impressions; NaN where no group has both classes."""
    groups: int
    """Groups with both classes."""
    left_out: int
    """Groups of a single class."""


def gauc(scores: RowValues, labels: RowValues, groups: Int[np.ndarray, "N"]) -> Grouped:
    """The mean of `group_aucs` weighted by impressions, and over how many groups it is."""
    value, sizes = group_aucs(scores, labels, groups)
    mean = float((value * sizes).sum() / sizes.sum()) if len(sizes) else float("nan")
    return Grouped(mean, len(sizes), len(np.unique(groups)) - len(sizes))


def group_aucs(
    scores: RowValues, labels: RowValues, groups: Int[np.ndarray, "N"]
) -> tuple[Float[np.ndarray, "G"], Int[np.ndarray, "G"]]:
    """AUC and impressions of every group with both classes, by ascending group: from the ranks within it."""
    _, group = np.unique(groups, return_inverse=True)
    order = np.lexsort((scores, group))
    group, score, label = group[order], np.asarray(scores)[order], np.asarray(labels, dtype=np.float64)[order]
    sizes = np.bincount(group)
    first = np.cumsum(sizes) - sizes
    rank = _tied_ranks(group, score) - first[group]  # from 1 within the group
    clicked = np.bincount(group, label)
    other = sizes - clicked
    both = (clicked > 0) & (other > 0)
    # Mann and Whitney: the rank sum of clicks, less its least value, counts the
    # pairs in the right order.
    above = np.bincount(group, rank * label) - clicked * (clicked + 1) / 2
    return above[both] / (clicked[both] * other[both]), sizes[both]


@dataclass(frozen=True)
class Bin:
    """A point of the reliability curve."""

    rows: int
    probability: float
    """Mean of what was predicted."""
    rate: float
    """Share of clicks."""


def reliability_curve(probabilities: RowValues, labels: RowValues, bins: int = 20) -> tuple[Bin, ...]:
    """Rows in order of probability, cut into at most `bins` parts of about equal
    size; equal ones stay together."""
    order = np.argsort(probabilities, kind="stable")
    p, y = np.asarray(probabilities, dtype=np.float64)[order], np.asarray(labels, dtype=np.float64)[order]
    cuts = (np.arange(1, bins) * len(p)) // bins  # one between equal probabilities moves to the first of them
    edges = np.unique(np.concatenate([[0], np.searchsorted(p, p[cuts]), [len(p)]])) if len(p) else np.zeros(1, int)
    parts = zip(edges[:-1], edges[1:], strict=True)
    return tuple(Bin(int(b - a), float(p[a:b].mean()), float(y[a:b].mean())) for a, b in parts)


def ece(curve: tuple[Bin, ...]) -> float:
    """Expected calibration error: mean |probability - rate| over the rows."""
    rows = sum(part.rows for part in curve)
    return sum(part.rows * abs(part.probability - part.rate) for part in curve) / max(1, rows)


def _area(clicked: Float[np.ndarray, "K"], other: Float[np.ndarray, "K"]) -> float:
    """The share of pairs in the right order, from the rows of each class at
    each distinct score, ascending."""
    pairs = float(clicked.sum()) * float(other.sum())
    if not pairs:
        return float("nan")
    below = np.cumsum(other) - other
    return float((clicked * (below + other / 2)).sum()) / pairs


def _tied_ranks(group: Int[np.ndarray, "N"], score: RowValues) -> RowValues:
    """Ranks from 1 over all rows, which are in order of (group, score); equals share their mean."""
    new = np.ones(len(score), dtype=bool)
    new[1:] = (score[1:] != score[:-1]) | (group[1:] != group[:-1])
    run = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    length = np.diff(np.append(first, len(score)))
    return (first + (length + 1) / 2)[run]
