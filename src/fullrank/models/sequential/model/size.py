"""Size of a recommender and cost of training it for an epoch, counted from its first batches.

FLOPs are two for each multiplication with its addition in a matrix product, forward, attention over
the padded square that is computed; the backward pass counts as twice the forward pass. Parts: item
vectors, encoder, scores of the loss. Norms, softmax, activations, look-ups and sums of looked-up
vectors (tokens of text, codes) are not counted. Items whose vectors are computed count each one
that a step reads once, negatives as they are drawn. A part that cannot be counted (`uncounted`)
makes the whole unknown. `published_flops` and `published_epoch` count as SRT's runs were counted:
another unit, which does not belong into one ladder with ours.

Differs: a recomputation in the backward pass (scores in chunks, attention in blocks) is not
counted, nor the target's own score beside sampled negatives, which is no matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.data.batch import Batch
from fullrank.data.events.loader import Batches
from fullrank.data.events.store import Store
from fullrank.models import Flops, States
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.models.sequential.encoders.transformer import TransformerEncoder
from fullrank.models.sequential.items import ItemIndex, Items
from fullrank.models.sequential.items.event_features import FieldVectors
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropyLoss
from fullrank.models.sequential.objectives.negatives import Negatives, draw
from fullrank.models.sequential.objectives.tasks.next_item import NextItemTask

BATCHES = 64
"""Batches of the first epoch whose shapes stand for all."""
BACKWARD = 2
"""Cost of the backward pass, as a multiple of the forward pass."""


@dataclass(frozen=True)
class SequenceSize:
    """Size and cost of a model, as the rows of a sweep have them."""

    non_embedding: int
    """Parameters without the tables of the items; position vectors are among them."""
    flops: Flops
    """FLOPs of an epoch, forward and backward, by part."""
    interactions: int
    """Training events of the store."""
    published: int | None = None
    """FLOPs of an epoch as SRT's runs were counted (`published_epoch`)."""

    @property
    def flops_per_epoch(self) -> int | None:
        known = [part for part in self.flops.values() if part is not None]
        return sum(known) if len(known) == len(self.flops) else None

    def dump(self) -> dict[str, Any]:
        return {
            "non_embedding_parameters": self.non_embedding,
            "flops_per_epoch": self.flops_per_epoch,
            "flops_by_part": dict(self.flops),
            "flops_per_epoch_thop": self.published,
            "interactions": self.interactions,
        }


def sequence_size(model: RecommenderModel, loader: Batches, store: Store) -> SequenceSize:
    """Count the parameters of a model and the cost of an epoch of these batches."""
    steps = loader.steps_per_epoch
    numbers = np.unique(np.linspace(0, steps - 1, min(steps, BATCHES)).astype(int))
    row_flops = cache(model.encoder.flops)
    passes = [batch_flops(model, loader.batch(int(k)), row_flops) for k in numbers]
    scale = (1 + BACKWARD) * steps / len(passes)
    total: Flops = {}
    for part in passes[0]:
        counts = [forward[part] for forward in passes]
        total[part] = None if None in counts else round(scale * sum(v or 0 for v in counts))
    events = int((store.bounds[:, 0] - store.offsets[:-1]).sum())
    return SequenceSize(non_embedding(model), total, events, published_epoch(model, events))


def non_embedding(model: RecommenderModel) -> int:
    """Parameters of a model without the tables of its items (ids, features, tokens of text, codes) and of features.

    SPRINT's Figure 1 has them across; position vectors and linear maps of items are counted.
    """
    tables = sum(
        w.numel()
        for part in (*model.items.modules(), *model.task.modules())
        if isinstance(part, nn.Embedding | SemanticItems | FieldVectors)
        for w in part.parameters(recurse=False)
    )
    return sum(p.numel() for p in model.parameters()) - tables


def batch_flops(model: RecommenderModel, batch: Any, row_flops: Callable[[int, int], Flops] | None = None) -> Flops:
    """FLOPs of the forward pass of one training batch, by part.

    `row_flops` gives those of the encoder for a row, by its length and its answer's (by
    default `model.encoder.flops`).
    """
    counted = _CountedItems(model.items)
    x, inputs = model.task.training_inputs(counted, batch)
    rows, length, dim = x.shape
    parts: Flops = {"items": _item_flops(model, counted, x, inputs, batch)}
    encoder = (row_flops or model.encoder.flops)(length, inputs.answer)
    parts |= {part: None if flops is None else rows * flops for part, flops in encoder.items()}
    if model.features is not None:
        parts["features"] = model.features.flops(batch.items[:, 1:].numel())
    queries, sampled = model.task.counts(batch), _sampled(model)
    scored: int | None = None
    if sampled is not None:
        scored = sum(queries.values()) * sampled.count
    elif isinstance(model.loss, CrossEntropyLoss):
        sizes = (model.num_items,) * len(queries)  # vectors that each group of queries is compared with
        if model.task.generates and isinstance(model.items, SemanticItems):
            sizes = model.items.sizes  # the codes of its level
        scored = sum(count * size for count, size in zip(queries.values(), sizes, strict=True))
    parts["scores"] = None if scored is None or _computes_more(model) else 2 * scored * dim
    return parts


class _CountedItems(Items):
    """Items that count the vectors that a step computes, and give zeros instead."""

    def __init__(self, items: Items):
        super().__init__()
        self.size, self.popularity = items.size, items.popularity
        with torch.no_grad():
            self.zeros = torch.zeros_like(items.embed(torch.zeros(1, dtype=torch.long))[0])
        self.seen = torch.zeros(items.size, dtype=torch.bool)
        self.computed_whole = 0
        self.levels = len(items.sizes) if isinstance(items, SemanticItems) else 0

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        self.seen[ids] = True
        return self.zeros.expand(*ids.shape, -1)

    def code_vectors(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n K D"]:
        return self.embed(ids)[..., None, :].expand(*ids.shape, self.levels, -1)

    def all(self) -> Float[Tensor, "V D"]:
        self.computed_whole += self.size
        return self.zeros.expand(self.size, -1)

    @property
    def count(self) -> int:
        return int(self.seen.sum()) + self.computed_whole


def _item_flops(model: RecommenderModel, counted: _CountedItems, x: Tensor, inputs: Batch, batch: Batch) -> int | None:
    """FLOPs of the item vectors of a step; the items of histories are counted already."""
    cost, sampled = getattr(model.items, "flops", None), _sampled(model)
    if cost is None or not cost(1):
        return None if cost is None else 0
    if not model.items.computed or _computes_more(model):
        return None
    if sampled is not None:
        for q in model.task.queries(States(x), inputs, batch, ItemIndex(counted, normalise=False)):
            counted.embed(q.targets)
            counted.embed(draw(sampled, q, batch))
    elif isinstance(model.loss, CrossEntropyLoss):
        counted.all()
    else:
        return None
    return int(cost(counted.count))


def _sampled(model: RecommenderModel) -> Negatives | None:
    """The sampled negatives of a model's loss; None without such."""
    return getattr(getattr(model.loss, "spec", None), "negatives", None)


def _computes_more(model: RecommenderModel) -> bool:
    """Whether a step computes more from its states than the scores of its queries."""
    inputs_map = None if model.features is None else model.features.map  # reads inputs, not states
    layers = any(isinstance(m, nn.Linear) and m is not inputs_map for m in model.task.modules())
    return layers or len(model.penalties) > 0


def published_flops(layers: int, heads: int, dim: int, negatives: int, *, batch: int = 128, length: int = 50) -> int:
    """FLOPs of a batch of SRT's model as the profiler of its runs (thop) gives them, exactly.

    Multiply-adds of linear layers (in blocks whose feed-forward is as wide as the model, and in the
    adapter of every item of the histories and every candidate), four for each number that a
    LayerNorm reads, 3 length - 1 for each row of a softmax. Neither products of the attention nor
    look-ups; forward alone.
    """
    tokens = batch * length
    linear = tokens * layers * 6 * dim**2 + (tokens + batch * (1 + negatives)) * 2 * dim**2
    norms, softmax = (1 + 2 * layers) * tokens * 4 * dim, layers * heads * tokens * (3 * length - 1)
    return linear + norms + softmax


def published_epoch(model: RecommenderModel, interactions: int) -> int | None:
    """FLOPs of an epoch as `published_flops` counts them: a row of `max_length` and its candidates for each event.

    None for models of another shape than SRT's: computed items whose cost is known,
    blocks of softmax attention with LayerNorm, the next item as the task, and negatives
    that are sampled for each query.
    """
    sampled, encoder, cost = _sampled(model), model.encoder, getattr(model.items, "flops", None)
    if sampled is None or cost is None or _computes_more(model) or model.features is not None:
        return None
    if not isinstance(encoder, TransformerEncoder) or not isinstance(model.task, NextItemTask):
        return None
    if not model.items.computed or sampled.share != "query":
        return None
    norms = [m for m in encoder.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
    mixers: list[Any] = [block.attention for block in encoder.blocks]
    if not all(isinstance(m, SoftmaxAttention) for m in mixers):
        return None
    if not all(isinstance(m, nn.LayerNorm) and m.elementwise_affine for m in norms):
        return None
    length = model.max_length
    linear = sum(m.weight.numel() for m in encoder.modules() if isinstance(m, nn.Linear))
    read = 4 * sum(m.normalized_shape[0] for m in norms)
    softmax = sum(m.heads for m in mixers) * length * (3 * length - 1)
    return interactions * (length * (linear + read) + softmax + int(cost(length + 1 + sampled.count)) // 2)
