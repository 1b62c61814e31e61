"""Click metrics against brute force: all pairs, group by group, bin by bin; and what merging and weighting promise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullrank.metrics.ctr import auc, dense_ranks, ece, gauc, losses, reliability_curve, weighted_auc


def pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    """Every (clicked, not clicked) pair: 1 in order, one half tied."""
    gaps = np.subtract.outer(scores[labels == 1], scores[labels == 0])
    return float((np.sign(gaps) + 1).mean() / 2) if gaps.size else math.nan


def draw(rows: int, seed: int, levels: int = 7) -> tuple:
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.4).astype(float)
    scores = (rng.integers(levels, size=rows) + labels * rng.integers(0, 2, rows)) / (levels + 1)
    return scores, labels, rng.integers(5, size=rows)


@given(st.integers(1, 60), st.integers(0, 1000))
def test_auc_is_that_of_all_pairs(rows: int, seed: int) -> None:
    scores, labels, _ = draw(rows, seed)
    assert auc(scores, labels) == pytest.approx(pairs(scores, labels), nan_ok=True)


@given(st.integers(2, 40), st.integers(0, 1000))
def test_a_weight_is_a_number_of_copies(rows: int, seed: int) -> None:
    scores, labels, _ = draw(rows, seed)
    weights = np.random.default_rng(seed).integers(0, 4, rows)
    copied = pairs(np.repeat(scores, weights), np.repeat(labels, weights))
    assert weighted_auc(dense_ranks(scores), labels, weights.astype(float)) == pytest.approx(copied, nan_ok=True)


@given(st.integers(1, 80), st.integers(0, 1000))
def test_gauc_is_the_weighted_mean_over_groups(rows: int, seed: int) -> None:
    scores, labels, groups = draw(rows, seed)
    found = gauc(scores, labels, groups)
    each = [(pairs(scores[groups == g], labels[groups == g]), (groups == g).sum()) for g in np.unique(groups)]
    kept = [(value, size) for value, size in each if not math.isnan(value)]
    assert found.groups == len(kept) and found.left_out == len(each) - len(kept)
    mean = sum(v * n for v, n in kept) / sum(n for _, n in kept) if kept else math.nan
    assert found.value == pytest.approx(mean, nan_ok=True)


def test_logloss() -> None:
    p, y = np.array([0.2, 0.9, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    assert losses(p, y)[:2] == pytest.approx([-math.log(0.8), -math.log(0.9)])
    assert losses(p, y)[2] == pytest.approx(-math.log(1e-15)) and losses(p, y)[3] == 0


def test_reliability() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = (rng.random(20_000) < p).astype(float)
    curve = reliability_curve(p, y, 10)
    assert [one.rows for one in curve] == [2000] * 10
    for one, low in zip(curve, np.sort(p)[::2000], strict=True):
        inside = (p >= low) & (p < low + 0.2)
        assert inside.any() and low <= one.probability
    assert ece(curve) < 0.015, "these probabilities are true"
    assert ece(reliability_curve(p**2, y, 10)) > 0.1
    ties = reliability_curve(np.repeat([0.1, 0.5], [90, 10]), np.zeros(100), 10)
    assert [(one.rows, round(one.probability, 3)) for one in ties] == [(90, 0.1), (10, 0.5)]


def test_bins_of_single_precision_are_averaged_in_double() -> None:
    p = np.array([0.1, 0.3, 0.7], np.float32)
    (one,) = reliability_curve(p, np.array([0, 1, 1], np.float32), 1)
    assert one.probability == p.astype(float).mean() != float(p.mean())
