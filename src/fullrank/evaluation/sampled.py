"""Sampled metrics: each target ranked among n negatives, drawn for its user or shared by neighbouring users.

Sampled metrics are not estimates of the full ones and may order models differently (Krichene and
Rendle 2020); they are here to repeat published numbers.

- `sampled_hits`, the sampled protocol (`Evaluation.protocol`): negatives of each user, drawn with replacement
  from the items that are not the user's targets and (seen policy `exclude`) not in the history. Draw j of user
  u is a function of (seed, u, j) alone.
- `shared_negative_metrics` (`Evaluation.sampled`): reported with the full metrics and their gap (SRT, SIGIR
  2024, Sec. 4.1 and its code). Negatives are drawn evenly with replacement and shared by the users of
  `SHARED_BY` neighbouring rows; neither the target nor the history is taken out of them. Draw j of a group of
  users is a function of (seed, group, j) alone. Differs: SRT's code shares a draw among the users of an
  evaluation batch, whichever these are.

Ties go to the target: its place is 1 + the number of negatives that score strictly higher, plus the
user's other targets placed before it. A model that scores all items alike therefore looks perfect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.core.memory import require_memory
from fullrank.core.random import uniform_at
from fullrank.data.histories import EvalSet
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.batches import BLOCK, pair_scores
from fullrank.inference.exact import block_scorer
from fullrank.metrics import ItemCounts, MetricInputs, UserValues
from fullrank.metrics.names import ACCURACY
from fullrank.models import Scorer

DRAW_BYTES = 48
"""Memory of a negative while it is drawn and scored: its numbers, its item and its score."""
ROUNDS = 200
"""Redraws of a forbidden negative before giving up."""
SHARED_BY = 128
"""Rows of users that share a draw: SRT's evaluation batch."""

Batches = Iterable[tuple[Int[np.ndarray, "B"], Scorer]]
"""Batches of users: their positions in the set, and the scorer of items for them."""
Places = Callable[[Scorer, np.ndarray, Jagged], np.ndarray]
"""(scorer of a batch, positions of its users in the set, their targets) -> the place, from 0, of each target."""


def sampled_hits(batches: Batches, users: EvalSet, popularity: ItemCounts, spec: Evaluation) -> Bool[np.ndarray, "U k"]:
    """Hits among the first places of each user's candidates, under the sampled protocol."""
    weights = popularity if spec.negatives_from == "popularity" else np.ones_like(popularity)

    def places(scorer: Scorer, at: Int[np.ndarray, "B"], truth: Jagged) -> Int[np.ndarray, "N"]:
        owner, targets, forbidden = truth.row_of(), truth.flat(), truth.keys(len(popularity))
        if spec.seen == "exclude":
            forbidden = np.concatenate([forbidden, users.histories.items.take(at).keys(len(popularity))])
        drawn = negatives(users.users[at], spec.negatives or 100, weights, forbidden, spec.seed)
        pairs = np.concatenate([np.repeat(np.arange(len(at)), drawn.shape[1]), owner])
        scores = pair_scores(scorer, pairs, np.concatenate([drawn.ravel(), targets]), block=block_of(spec, scorer.size))
        others = scores[: drawn.size].reshape(drawn.shape)
        return target_places(scores[drawn.size :], owner, others)

    return _hits(batches, users, min(max(n.k for n in spec.names()), len(popularity)), places)


def shared_negative_metrics(batches: Batches, users: EvalSet, spec: Evaluation) -> dict[str, UserValues]:
    """The accuracy metrics of `spec`, each user's targets ranked among `spec.sampled` shared negatives."""
    names = [n for n in spec.names() if n.base in ACCURACY]

    def places(scorer: Scorer, at: Int[np.ndarray, "B"], truth: Jagged) -> Int[np.ndarray, "N"]:
        owner, block = truth.row_of(), block_of(spec, scorer.size)
        scores = pair_scores(scorer, owner, truth.flat(), block=block)
        above = count_higher(scorer, scores, owner, users.users[at], spec.sampled or 0, spec.seed, block=block)
        return _ranks_among(above, scores, owner)

    hits = _hits(batches, users, max((n.k for n in names), default=1), places)
    table = MetricInputs(hits, users.truth.lengths)
    return {str(n): n(table) for n in names}


def shared_negative_protocol(spec: Evaluation, items: int) -> JsonObject:
    """Protocol of shared negatives; empty without any. It has a `note` where they outnumber the items."""
    if spec.sampled is None:
        return {}
    draws = {"negatives": spec.sampled, "from": "uniform", "shared_by": SHARED_BY, "seed": spec.seed}
    facts = {**draws, "ties": "target first: place = 1 + negatives scored higher", "removed": "nothing"}
    if spec.sampled >= items:
        facts["note"] = (
            f"{spec.sampled:,} negatives were drawn with replacement from {items:,} items, so items count more than "
            "once and the full metrics say the same better; set evaluation.sampled to fewer than the items, or to null"
        )
    return {"sampled": facts}


def sampled_gaps(full: dict[str, float], sampled: dict[str, UserValues]) -> dict[str, dict[str, float]]:
    """Metric -> the mean over all items, among the sampled ones, and the difference."""
    means = {name: float(values.mean()) for name, values in sampled.items()}
    return {n: {"full": full[n], "sampled": mean, "gap": mean - full[n]} for n, mean in means.items()}


def negatives(
    users: Int[np.ndarray, "U"],
    count: int,
    weights: ItemCounts,
    forbidden: Int[np.ndarray, "p"],
    seed: int,
) -> Int[np.ndarray, "U n"]:
    """Items drawn in proportion to `weights`, never one whose row * V + item is in `forbidden`.

    `users` are the ids that randomness is a function of. Raises `UserError` where a user
    has (almost) no item left.
    """
    size = len(weights)
    _require_memory(len(users), count)
    rows = np.repeat(np.arange(len(users)), count)
    keys = np.repeat(np.asarray(users, dtype=np.uint64), count), np.tile(np.arange(count, dtype=np.uint64), len(users))
    ends = np.cumsum(weights)
    items = np.empty(len(rows), dtype=np.int64)
    left = np.arange(len(rows))
    for attempt in range(ROUNDS):
        drawn = uniform_at(seed, keys[0][left], keys[1][left], np.uint64(attempt))
        items[left] = np.searchsorted(ends, np.floor(drawn * ends[-1]).astype(np.int64), side="right")
        left = left[np.isin(rows[left] * size + items[left], forbidden)]
        if not len(left):
            return items.reshape(len(users), count)
    short = len(np.unique(rows[left]))
    raise UserError(
        f"{short} users have too few items left to draw negatives from: use protocol 'full'", code="too-few-negatives"
    )


def shared_negatives(groups: Int[np.ndarray, "G"], count: int, items: int, seed: int) -> Int[np.ndarray, "G n"]:
    """The draws of each group of users."""
    _require_memory(len(groups), count)
    places = np.repeat(groups, count), np.tile(np.arange(count), len(groups))
    drawn = (uniform_at(seed, places[0], places[1].astype(np.uint64)) * items).astype(np.int64)
    return drawn.reshape(len(groups), count)


def _require_memory(users: int, count: int) -> None:
    what = f"drawing {count:,} negatives for {users:,} users at once"
    require_memory(DRAW_BYTES * users * count, what, "ask for fewer negatives, or set batch_size")


def target_places(
    scores: Float[np.ndarray, "N"], rows: Int[np.ndarray, "N"], negatives: Float[np.ndarray, "U n"]
) -> Int[np.ndarray, "N"]:
    """The place (from 0) of each target among its user's negatives, ties to the targets. `rows` ascends."""
    return _ranks_among((negatives[rows] > scores[:, None]).sum(1), scores, rows)


def count_higher(
    scorer: Scorer,
    scores: Float[np.ndarray, "N"],
    rows: Int[np.ndarray, "N"],
    users: Int[np.ndarray, "B"],
    count: int,
    seed: int,
    *,
    block: int,
) -> Int[np.ndarray, "N"]:
    """Number of shared negatives that score strictly higher than each target; `rows` are the targets' users.

    Items are scored block by block; an item counts as often as it was drawn.
    """
    groups, group = np.unique(users // SHARED_BY, return_inverse=True)
    drawn = np.sort(shared_negatives(groups, count, scorer.size, seed), axis=1)
    score, above = block_scorer(scorer, block), np.zeros(len(rows), dtype=np.int64)
    for low in range(0, scorer.size, block):
        high = min(low + block, scorer.size)
        times = torch.from_numpy(_times_drawn(drawn, low, high))
        block_scores = score(low, high)
        target_scores = torch.from_numpy(scores).to(block_scores.device)
        for chunk in np.array_split(np.arange(len(rows)), max(1, len(rows) // 1024)):  # bounds the [N, block] table
            higher: Tensor = block_scores[torch.from_numpy(rows[chunk])].float() > target_scores[chunk, None]
            above[chunk] += (higher.cpu() * times[torch.from_numpy(group[rows[chunk]])]).sum(1).numpy()
    return above


def _hits(batches: Batches, users: EvalSet, k: int, places: Places) -> Bool[np.ndarray, "U k"]:
    """Hits among the first k places of each user, batch by batch."""
    hits = np.zeros((len(users), k), dtype=bool)
    for at, scorer in batches:
        truth = users.truth.take(at)
        ranks = places(scorer, at, truth)
        inside = ranks < k
        hits[at[truth.row_of()[inside]], ranks[inside]] = True
    return hits


def block_of(spec: Evaluation, items: int) -> int:
    """Items that are scored at once."""
    return min(spec.block or BLOCK, items)


def _ranks_among(
    above: Int[np.ndarray, "N"], scores: Float[np.ndarray, "N"], rows: Int[np.ndarray, "N"]
) -> Int[np.ndarray, "N"]:
    """The place of each target, from the number of negatives above it and the scores
    of the user's other targets."""
    # In order of (user, score), a target's place among its user's is its position
    # less that of their first.
    order = np.lexsort((-scores, rows))
    first = np.searchsorted(rows, rows)
    ranks = np.empty_like(above)
    ranks[order] = above[order] + np.arange(len(rows)) - first
    return ranks


def _times_drawn(drawn: Int[np.ndarray, "G n"], low: int, high: int) -> Int[np.ndarray, "G k"]:
    """Number of times that each group drew each item of a block. `drawn` rises in each row."""
    times = np.zeros((len(drawn), high - low), dtype=np.int64)
    for row, items in zip(times, drawn, strict=True):
        first, last = np.searchsorted(items, [low, high])
        row += np.bincount(items[first:last] - low, minlength=high - low)
    return times
