"""How large a recommender is and what training it for an epoch costs, counted on paper from its first batches.

FLOPs are two for each multiplication with its addition in a matrix product, forward, attention over the padded square
that is computed; the backward pass counts as twice the forward pass. Parts: item vectors, encoder, scores of the loss.
Norms, softmax, activations and look-ups are not counted. A part that does not say (`uncounted`) makes the whole
unknown. `published_flops` counts as SRT's runs were counted: another unit, not for one ladder with ours.

Differs: a recomputation in the backward pass (scores in chunks, attention in blocks) is not counted, nor the target's
own score beside sampled negatives, which is no matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from fullrank.data.pack import Store
from fullrank.items.semantic import SemanticItems
from fullrank.items.table import ItemTable
from fullrank.objectives.losses.cross_entropy import CrossEntropyLoss
from fullrank.recommender import RecommenderModel
from fullrank.training.material import Batches

BATCHES = 64
"""Of the first epoch, whose shapes stand for all."""
BACKWARD = 2
"""Times the forward pass."""
Parts = dict[str, int | None]


@dataclass(frozen=True)
class SequenceSize:
    """As it stands in the rows of a sweep."""

    non_embedding: int
    """Parameters without the tables of the items; position vectors are among them."""
    flops: Parts
    """Of an epoch, forward and backward, by part."""
    interactions: int
    """Training events of the store."""

    @property
    def flops_per_epoch(self) -> int | None:
        known = [part for part in self.flops.values() if part is not None]
        return sum(known) if len(known) == len(self.flops) else None

    def dump(self) -> dict[str, Any]:
        return {
            "non_embedding_parameters": self.non_embedding, "flops_per_epoch": self.flops_per_epoch,
            "flops_by_part": dict(self.flops), "interactions": self.interactions,
        }  # fmt: skip


def sequence_size(model: RecommenderModel, loader: Batches, store: Store) -> SequenceSize:
    """The size of a model and the cost of an epoch of these batches."""
    steps = loader.steps_per_epoch
    places = np.unique(np.linspace(0, steps - 1, min(steps, BATCHES)).astype(int))
    found = [batch_flops(model, loader.batch(int(k))) for k in places]
    share = (1 + BACKWARD) * steps / len(found)
    total: Parts = {}
    for part in found[0]:
        some = [one[part] for one in found]
        total[part] = None if None in some else round(share * sum(v or 0 for v in some))
    events = int((store.bounds[:, 0] - store.offsets[:-1]).sum())
    return SequenceSize(non_embedding(model), total, events)


def non_embedding(model: RecommenderModel) -> int:
    """Parameters of a model without the tables of its items (ids, features, tokens of text, codes).

    What SPRINT's Figure 1 has across; position vectors and linear maps of items are counted.
    """
    tables = sum(
        w.numel()
        for part in model.items.modules()
        if isinstance(part, nn.Embedding | SemanticItems)
        for w in part.parameters(recurse=False)
    )
    return sum(p.numel() for p in model.parameters()) - tables


def batch_flops(model: RecommenderModel, batch: Any) -> Parts:
    """The forward pass of one training batch, by part; None for one that does not say."""
    x, _ = model.task.present(model.items, batch)
    rows, length, dim = x.shape
    count = getattr(model.encoder, "flops", None)
    parts: Parts = {"items": 0 if isinstance(model.items, ItemTable) else None}
    parts |= (
        {"encoder": None} if count is None else {k: None if v is None else rows * v for k, v in count(length).items()}
    )
    asked = sum(model.task.counts(batch).values())
    sampled = getattr(getattr(model.loss, "spec", None), "negatives", None)
    against = model.num_items if isinstance(model.loss, CrossEntropyLoss) else None
    against = sampled.count if sampled is not None else against
    whole = any(isinstance(m, nn.Linear) for m in model.task.modules()) or getattr(model.task, "generates", False)
    parts["scores"] = None if against is None or whole or len(model.penalties) else 2 * asked * against * dim
    return parts


def published_flops(layers: int, heads: int, dim: int, negatives: int, *, batch: int = 128, length: int = 50) -> int:
    """FLOPs of a batch of SRT's model as the profiler of its runs (thop) gives them, exactly.

    Multiply-adds of linear layers (in blocks whose feed-forward is as wide as the model, and in the adapter of every
    item of the histories and every candidate), four for each number that a LayerNorm reads, 3 length - 1 for each row
    of a softmax. Neither products of the attention nor look-ups; forward alone.
    """
    tokens = batch * length
    linear = tokens * layers * 6 * dim**2 + (tokens + batch * (1 + negatives)) * 2 * dim**2
    norms, softmax = (1 + 2 * layers) * tokens * 4 * dim, layers * heads * tokens * (3 * length - 1)
    return linear + norms + softmax
