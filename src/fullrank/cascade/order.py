"""Candidates in the ranker's order, or in a blend of the ranker's and the retriever's."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from fullrank.cascade.features import PairFeatures
from fullrank.core.errors import UserError
from fullrank.inference.predict import predict_batch
from fullrank.models.ranking.model import RankingModule

BATCH = 1 << 14
"""Pairs given to the ranker at once; a ranker's evaluation takes as many."""
PAIRS = 1 << 17
"""Most pairs (user, candidate) alive at once."""
TINY = 1e-12
"""Probabilities are kept so far from 0 and 1 where logits are blended."""


def probabilities(
    model: RankingModule, pairs: PairFeatures, ids: Int[np.ndarray, "B C"], device: torch.device | str = "cpu"
) -> Float[np.ndarray, "B C"]:
    """The click probability of each user's candidates; -inf in empty places (id -1)."""
    users, places = np.nonzero(ids >= 0)
    found = np.full(ids.shape, -np.inf)
    for low in range(0, len(users), BATCH):
        some = slice(low, low + BATCH)
        at = users[some], places[some]
        found[at] = predict_batch(model, pairs.batch(at[0], ids[at]), device)
    return found


def blend_scores(
    ranker: Float[np.ndarray, "B C"], retriever: Float[np.ndarray, "B C"], share: float
) -> Float[np.ndarray, "B C"]:
    """What the order goes by: the probabilities, or (1 - share) z(logit) + share z(retriever's score).

    z is standardised over the user's candidates (mean 0, deviation 1), because the two scales have nothing in common.
    Empty places are -inf in both and stay so.
    """
    if share == 0:
        return ranker
    there = ranker > -np.inf
    kept = np.where(there, ranker, 0.5).clip(TINY, 1 - TINY)
    logits = np.log(kept) - np.log1p(-kept)
    mixed = (1 - share) * _standardised(logits, there) + share * _standardised(retriever, there)
    return np.where(there, mixed, -np.inf)


def best_candidates(
    scores: Float[np.ndarray, "B C"], ids: Int[np.ndarray, "B C"], k: int
) -> tuple[Int[np.ndarray, "B K"], Float[np.ndarray, "B K"]]:
    """The k best candidates of each user and their scores; equal scores keep the retriever's order."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


def blocks(users: int, candidates: int) -> list[tuple[int, int]]:
    """Ranges of users whose candidates are at most `PAIRS`."""
    size = max(PAIRS // candidates, 1)
    return [(low, min(low + size, users)) for low in range(0, users, size)]


def check_candidates(k: int, candidates: int, blend: float) -> None:
    """Raise `UserError` for a list longer than the candidates, and for a share that is none."""
    if candidates < 1 or k > candidates:
        raise UserError(f"k={k} items cannot be chosen from candidates={candidates}: raise candidates, or lower k")
    if not 0 <= blend <= 1:
        raise UserError(f"blend={blend} is not between 0 (the ranker's order) and 1 (the retriever's)")


def _standardised(scores: Float[np.ndarray, "B C"], there: Bool[np.ndarray, "B C"]) -> Float[np.ndarray, "B C"]:
    kept = np.where(there, scores, 0.0).astype(np.float64)
    count = np.maximum(there.sum(1, keepdims=True), 1)
    away = np.where(there, kept - kept.sum(1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((away**2).sum(1, keepdims=True) / count)
    return away / np.where(deviation > 0, deviation, 1.0)
