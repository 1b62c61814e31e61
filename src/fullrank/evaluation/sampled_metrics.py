"""Sampled metrics beside the full ones, and the gap between them (SRT, SIGIR 2024, Sec. 4.1 and its code).

Each target is ranked among n items drawn evenly, with replacement, and shared by users of `SHARED_BY` neighbouring
rows; neither the target nor the history is taken out of them. A target's place is 1 + the number of draws that score
strictly higher, plus the user's other targets before it. Draw j of a group of users is a function of (seed, group, j)
alone: not of batches, blocks or processes. It flatters, and a model that scores all items alike looks perfect: so it
stands beside the full metrics, and never in their place.

Differs: SRT's code shares a draw among the users of an evaluation batch, whichever these are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.core.progress import Progress
from fullrank.data.batch import Model, Scorer
from fullrank.data.histories import Histories
from fullrank.evaluation.sampled import placed
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.batches import BLOCK, answers, pair_scores
from fullrank.inference.exact import scorer
from fullrank.metrics import MetricInputs
from fullrank.metrics.names import ACCURACY
from fullrank.ops.splitmix import uniform

SHARED_BY = 128
"""Rows of users that share a draw: SRT's evaluation batch."""


def sampled_beside(
    model: Model,
    histories: Histories,
    truth: Jagged,
    spec: Evaluation,
    device: torch.device | str,
    progress: Progress | None = None,
) -> dict[str, Float[np.ndarray, "U"]]:
    """The accuracy metrics of `spec`, each user's targets ranked among `spec.sampled` shared negatives."""
    names = [n for n in spec.names() if n.base in ACCURACY]
    hits = np.zeros((len(histories), max((n.k for n in names), default=1)), dtype=bool)
    block = min(spec.block or BLOCK, model.num_items)
    runs = answers(
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
        own, targets = wanted.row_of(), wanted.flat()
        users = at if histories.users is None else histories.users[at]
        scores = pair_scores(answer, own, targets, block=block)
        above = outscored(answer, scores, own, users, spec.sampled or 0, spec.seed, block=block)
        place = placed(above, scores, own)
        inside = place < hits.shape[1]
        hits[at[own[inside]], place[inside]] = True
    table = MetricInputs(hits, truth.lengths)
    return {str(n): n(table) for n in names}


def outscored(
    answer: Scorer,
    scores: Float[np.ndarray, "N"],
    rows: Int[np.ndarray, "N"],
    users: Int[np.ndarray, "B"],
    count: int,
    seed: int,
    *,
    block: int,
) -> Int[np.ndarray, "N"]:
    """How many of its user's negatives score strictly higher than each target. `rows` says whose target each is."""
    groups, group = np.unique(users // SHARED_BY, return_inverse=True)
    drawn = np.sort(shared(groups, count, answer.size, seed), axis=1)
    score, found = scorer(answer, block), np.zeros(len(rows), dtype=np.int64)
    for low in range(0, answer.size, block):
        high = min(low + block, answer.size)
        times = torch.from_numpy(_times(drawn, low, high))
        scored = score(low, high)
        bar = torch.from_numpy(scores).to(scored.device)
        for some in np.array_split(np.arange(len(rows)), max(1, len(rows) // 1024)):
            higher: Tensor = scored[torch.from_numpy(rows[some])].float() > bar[some, None]
            found[some] += (higher.cpu() * times[torch.from_numpy(group[rows[some]])]).sum(1).numpy()
    return found


def shared(groups: Int[np.ndarray, "G"], count: int, items: int, seed: int) -> Int[np.ndarray, "G n"]:
    """The draws of each group."""
    places = np.repeat(groups, count), np.tile(np.arange(count), len(groups))
    drawn = (uniform(seed, places[0], places[1].astype(np.uint64)) * items).astype(np.int64)
    return drawn.reshape(len(groups), count)


def told(spec: Evaluation, items: int) -> dict[str, Any]:
    """What the protocol says of it; nothing where it is not asked for. A `note` where negatives outnumber the items."""
    if spec.sampled is None:
        return {}
    draws = {"negatives": spec.sampled, "from": "uniform", "shared_by": SHARED_BY, "seed": spec.seed}
    found = {**draws, "ties": "target first: place = 1 + negatives scored higher", "removed": "nothing"}
    if spec.sampled >= items:
        found["note"] = (
            f"{spec.sampled:,} negatives were drawn with replacement from {items:,} items, so items count more than "
            "once and the full metrics say the same better; set evaluation.sampled to fewer than the items, or to null"
        )
    return {"sampled": found}


def gaps(full: dict[str, float], sampled: dict[str, Float[np.ndarray, "U"]]) -> dict[str, dict[str, float]]:
    """Metric -> the mean over all items, among the sampled ones, and the difference."""
    means = {name: float(values.mean()) for name, values in sampled.items()}
    return {n: {"full": full[n], "sampled": mean, "gap": mean - full[n]} for n, mean in means.items()}


def _times(drawn: Int[np.ndarray, "G n"], low: int, high: int) -> Int[np.ndarray, "G k"]:
    """How often each group drew each item of a block. `drawn` rises in each row."""
    found = np.zeros((len(drawn), high - low), dtype=np.int64)
    for row, items in zip(found, drawn, strict=True):
        first, last = np.searchsorted(items, [low, high])
        row += np.bincount(items[first:last] - low, minlength=high - low)
    return found
