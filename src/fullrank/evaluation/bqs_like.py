"""bqs_like@k: is one run better than a reference for popular, middling and niche targets alike? A stand-in, not BQS.

The Balanced Quality Score (Coppolillo et al., ACM TIST 2024; SPRINT, Table 8) compares quality in three classes of
popularity with a reference model, which stands at 0.5. Its formula is in none of the papers that this library follows.
Ours is 1 / (1 + exp(-sum over head, mid and tail of the difference in mean NDCG@k)), each user in the band of their
target (`slices.bands`). It has the same reference point and counts a niche user more than the mean does; its numbers
are not those of BQS and may not be reported as such.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from fullrank.core.errors import UserError
from fullrank.evaluation.result import EvaluationResult
from fullrank.evaluation.slices import LABELS
from fullrank.metrics.names import PAIRED, Name, split_name


def quality(metric: str) -> Name | None:
    """The metric whose differences `bqs_like@k` reads, NDCG@k; None for every other metric."""
    if metric.strip().partition("@")[0] != PAIRED:
        return None
    return Name("ndcg", split_name(metric)[1])


def bands_of(side: EvaluationResult) -> Int[np.ndarray, "U"]:
    """Each user's band: 0 head, 1 mid, 2 tail."""
    if "target" not in side.per_user.groups:
        raise UserError(f"{PAIRED} needs the popularity of the targets: evaluate with slices=true")
    return side.per_user.groups["target"]


def columns(
    gap: Float[np.ndarray, "U"], band: Int[np.ndarray, "U"]
) -> tuple[Float[np.ndarray, "U"], Float[np.ndarray, "U"]]:
    """Two columns whose mean is the summed difference of the bands: each user's part of it, and each user's influence.

    A part changes sign with the user's difference, as a permutation test needs. An influence varies around the sum as
    the user does around the band's mean, as an interval needs (how many users a band has is chance too).
    """
    counts = np.bincount(band, minlength=len(LABELS["target"]))
    means = np.bincount(band, gap, len(counts)) / np.maximum(counts, 1)
    weight = len(gap) / counts[band]
    return gap * weight, means.sum() + (gap - means[band]) * weight


def score(total: float) -> float:
    """The logistic of a summed difference."""
    return float(1 / (1 + np.exp(-total)))
