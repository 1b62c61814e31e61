"""RankingModel: field embeddings + a ranker, trained to give the probability of a click. Plain PyTorch.

p = sigmoid(logit),  loss = binary cross-entropy + l2 / 2 |rows|^2 + what the ranker adds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.constraints import changed
from fullrank.core.errors import UserError, no_effect
from fullrank.core.registry import Room
from fullrank.core.spec import Spec, later
from fullrank.data.batch import Impressions
from fullrank.models import Flops
from fullrank.models.ranking import ClickModel, Fields, Ranker, RankerOutput, RankerSpec
from fullrank.models.ranking.dcnv2 import DCNv2
from fullrank.models.ranking.embedding import Embedding, FieldEmbedding
from fullrank.models.ranking.sequences import SequenceSpec
from fullrank.models.ranking.sequences.pooled import Pooled


class RankingModel(Spec):
    """A ranking model trained by gradient descent on impressions."""

    # what spec.json has always called it; the problem is `ranking`
    kind: Literal["click"] = "click"
    embedding: Embedding = Embedding()
    """Fields -> vectors."""
    ranker: Annotated[RankerSpec, Room("rankers")] = DCNv2()
    """Vectors -> logit."""
    sequences: Annotated[SequenceSpec, Room("rankers.sequences")] = later(Pooled())
    """Behaviour sequences -> vectors."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> RankingModel:
        if "tokens" not in self.ranker.reads:
            idle = [f"embedding.{name}" for name in ("dim", "dims") if changed(self.embedding, name)]
            idle += [f"sequences={self.sequences.kind_of()}"] * self.sequences.learns
            if idle:
                raise no_effect(idle[0], f"on {self.ranker.kind_of()}, which has one weight per value")
        return self

    def build(self, fields: Fields) -> RankingModule:
        return RankingModule(fields, self)

    @property
    def measured_in_bf16(self) -> bool:
        """Whether such models were measured on a CPU in bf16, as quicker and as good (docs/guide/training.md)."""
        return isinstance(self.ranker, DCNv2)


@dataclass(frozen=True)
class Size:
    """Parameters and FLOPs of a ranking model, counted on shapes before it runs.

    Parameters are those of the look-ups (tables, vectors of numbers, first-order weights) and the
    dense ones, which every impression passes through. FLOPs are those of one impression's forward
    pass: two for each multiplication with its addition in a matrix product. Biases, norms,
    activations, sums, element-wise products and look-ups are not counted, so that lr and fm have
    none; training takes about three times as many. Torch counts them (`ops/model_cost.py`); all
    experts of a mixture are computed and counted.

    Differs: the paper compares seconds per epoch and memory (Figure 4), which depend on the
    machine.
    """

    embedding: int
    """Parameters that are looked up."""
    dense: int
    """All other parameters."""
    flops: Mapping[str, int | None]
    """FLOPs of one impression's forward pass by component."""

    @property
    def total_flops(self) -> int | None:
        """The sum over components; None where a component does not say."""
        parts = [part for part in self.flops.values() if part is not None]
        return sum(parts) if len(parts) == len(self.flops) else None

    def dump(self) -> dict[str, Any]:
        """The entries of a run's manifest and of the rows of a sweep."""
        total = {"flops": self.total_flops, "flops_by_component": dict(self.flops)}
        return {"embedding_parameters": self.embedding, "dense_parameters": self.dense, **total}


class RankingModule(ClickModel):
    """`forward` gives the named terms whose sum is minimised, `output` the logits."""

    def __init__(self, fields: Fields, spec: RankingModel):
        super().__init__()
        if not fields:
            raise UserError(
                "the store has no fields, so there is nothing to rank by: prepare it with at least one",
                code="too-few-fields",
            )
        ranker = spec.ranker
        self.embedding = FieldEmbedding(
            fields, spec.embedding, ranker.reads, ranker.contexts, spec.sequences, ranker.reads_events
        )
        self.ranker = ranker.build(fields, spec.embedding.dim)
        self.l2 = spec.embedding.l2
        self.penalties = frozenset({"l2", "routing"})
        """Names of the terms that are not sums over rows."""

    def forward(self, batch: Impressions) -> dict[str, Float[Tensor, ""]]:
        """Named terms: the loss is the local sum over the global count of rows, so
        shards and micro-batches add up."""
        labels = checked_labels(batch.labels)
        out = self.output(batch)
        loss = F.binary_cross_entropy_with_logits(out.logits.float(), labels.float(), reduction="sum")
        terms = {"bce": loss / max(1, len(labels) if batch.count is None else batch.count), **out.aux}
        return terms | {"l2": self.embedding.penalty(batch)} if self.l2 else terms

    def output(self, batch: Impressions, wanted: frozenset[str] = frozenset()) -> RankerOutput:
        """Logits, and the outputs of the layers that are wanted."""
        out: RankerOutput = self.ranker(self.embedding(batch, wanted))
        return out

    def raw_logits(self, batch: Impressions) -> Float[Tensor, "B"]:
        return self.output(batch).logits

    @property
    def parallel(self) -> list[list[int]]:
        return self.embedding.parallel

    def size(self) -> Size:
        """Parameters by kind, and the FLOPs of one impression."""
        embedding = self.embedding.looked_up()
        dense = sum(p.numel() for p in self.parameters()) - embedding
        # a ranker of another package need not be one of ours
        flops: Flops = {"ranker": None}
        if isinstance(self.ranker, Ranker):
            flops = self.ranker.flops(len(self.embedding.fields), self.embedding.spec.dim)
        return Size(embedding, dense, {**self.embedding.flops(), **flops})

    def row_parameters(self) -> list[nn.Parameter]:
        return self.embedding.row_parameters()


def require_layers(model: ClickModel, what: str, *, code: str) -> RankingModule:
    """A model of field embeddings and a ranker. Raises `UserError` for another, such as boosted trees."""
    if not isinstance(model, RankingModule):
        raise UserError(
            f"{what} needs a ranker with layers, and this run is of boosted trees: take another ranking model "
            "(`fullrank list rankers`)",
            code=code,
        )
    return model


def checked_labels(labels: Tensor | None) -> Float[Tensor, "B"]:
    """The labels of a training batch. Raises `UserError` where there are none, or others than 0 and 1."""
    if labels is None:
        raise UserError(
            "these impressions have no labels: training and evaluation need 0 or 1 for each", code="no-labels"
        )
    wrong = (labels != 0) & (labels != 1)
    if bool(wrong.any()):
        raise UserError(
            f"a label is {float(labels[wrong][0]):g}, allowed are 0 and 1: set label_threshold where you prepare the "
            "store",
            code="invalid-label",
        )
    return labels
