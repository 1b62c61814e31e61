"""The sampled protocol: each target is ranked among n negatives drawn for its user.

Sampled metrics are not estimates of the full ones and may order models differently (Krichene and Rendle 2020); they are
here to repeat published numbers. Draws are with replacement, from the items that are not the user's targets and (seen
policy `exclude`) not in the history; draw j of user u is a function of (seed, u, j) alone. Ties go to the target: its
place is 1 + the number of negatives that score strictly higher, plus the user's other targets placed before it. A
model that scores all items alike therefore looks perfect.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.core.progress import Progress
from fullrank.data.batch import Model
from fullrank.data.histories import Histories
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.batches import BLOCK, pair_scores, score_batches
from fullrank.ops.splitmix import uniform

ROUNDS = 200
"""Redraws of a forbidden negative before giving up."""


def sampled_hits(
    model: Model,
    histories: Histories,
    truth: Jagged,
    popularity: Int[np.ndarray, "V"],
    spec: Evaluation,
    deepest: int,
    device: torch.device | str,
    progress: Progress | None = None,
) -> Bool[np.ndarray, "U K"]:
    """Which of the first `deepest` places of each user's candidates hold a target."""
    hits = np.zeros((len(histories), deepest), dtype=bool)
    weights = popularity if spec.negatives_from == "popularity" else np.ones_like(popularity)
    block = min(spec.block or BLOCK, model.num_items)
    runs = score_batches(
        model,
        histories,
        block=block,
        batch_size=spec.batch_size,
        device=device,
        progress=progress,
        budget=spec.reasoning,
    )
    for at, answer in runs:
        wanted = truth.take(at)
        own, targets, forbidden = wanted.row_of(), wanted.flat(), wanted.keys(len(popularity))
        if spec.seen == "exclude":
            forbidden = np.concatenate([forbidden, histories.items.take(at).keys(len(popularity))])
        users = at if histories.users is None else histories.users[at]
        drawn = negatives(users, spec.negatives or 100, weights, np.unique(forbidden), spec.seed)
        pairs = np.concatenate([np.repeat(np.arange(len(at)), drawn.shape[1]), own])
        scores = pair_scores(answer, pairs, np.concatenate([drawn.ravel(), targets]), block=block)
        others = scores[: drawn.size].reshape(drawn.shape)
        place = target_places(scores[drawn.size :], own, others)
        inside = place < deepest
        hits[at[own[inside]], place[inside]] = True
    return hits


def target_places(
    scores: Float[np.ndarray, "N"], rows: Int[np.ndarray, "N"], negatives: Float[np.ndarray, "U n"]
) -> Int[np.ndarray, "N"]:
    """The place (from 0) of each target in its user's candidates, ties to the targets. `rows` ascends."""
    return placed((negatives[rows] > scores[:, None]).sum(1), scores, rows)


def placed(
    above: Int[np.ndarray, "N"], scores: Float[np.ndarray, "N"], rows: Int[np.ndarray, "N"]
) -> Int[np.ndarray, "N"]:
    """The same, where it is known how many negatives stand above each target."""
    order = np.lexsort((-scores, rows))
    first = np.searchsorted(rows, rows)  # where the user's targets begin
    place = np.empty_like(above)
    place[order] = above[order] + np.arange(len(rows)) - first
    return place


def negatives(
    users: Int[np.ndarray, "U"],
    count: int,
    weights: Int[np.ndarray, "V"],
    forbidden: Int[np.ndarray, "P"],
    seed: int,
) -> Int[np.ndarray, "U n"]:
    """Items drawn in proportion to `weights`, never one whose row * V + item is in `forbidden` (sorted).

    `users` are the ids that randomness is a function of. Raises `UserError` where a user has (almost) no item left.
    """
    size = len(weights)
    rows = np.repeat(np.arange(len(users)), count)
    place = np.repeat(np.asarray(users, dtype=np.uint64), count), np.tile(np.arange(count, dtype=np.uint64), len(users))
    ends = np.cumsum(weights)
    found = np.empty(len(rows), dtype=np.int64)
    left = np.arange(len(rows))
    for again in range(ROUNDS):
        drawn = uniform(seed, place[0][left], place[1][left], np.uint64(again))
        found[left] = np.searchsorted(ends, np.floor(drawn * ends[-1]).astype(np.int64), side="right")
        left = left[_contains(forbidden, rows[left] * size + found[left])]
        if not len(left):
            return found.reshape(len(users), count)
    short = len(np.unique(rows[left]))
    raise UserError(f"{short} users have too few items left to draw negatives from: use protocol 'full'")


def _contains(table: Int[np.ndarray, "P"], keys: Int[np.ndarray, "N"]) -> Bool[np.ndarray, "N"]:
    at = np.searchsorted(table, keys).clip(max=max(len(table) - 1, 0))
    return table[at] == keys if len(table) else np.zeros(len(keys), dtype=bool)
