"""S3-Rec's pre-training beside a cloze: attributes of items, and segments (Zhou et al., CIKM 2020, arXiv:2008.07873).

Four objectives of mutual information. The second, prediction of masked items, is the task `cloze`
with its loss; this penalty adds the others. With h the states of a history with covered places, a
the vectors of all attributes and s(x, y) = x . W y:

    AAP  attributes of the items that are seen:      -sum_a log sigmoid(+-s(h_t, a)), + where item t has a
    MAP  attributes of the items that are covered:   the same at the covered places, with a W of its own
    SP   segments:  -log sigmoid(s(c, g) - s(c, g-)), c the last state of a history whose segment is covered,
         g that of the segment with all other events covered, g- that of another history's segment

An attribute is a value of one of the columns `attributes`; an item without any has none of them. A
segment is of 1 to n // 2 events, its length and place drawn at random. Afterwards a causal model
starts from the run (``--from``).

Weights are those of the authors' code, .2, 1 and .5 beside 1 for the masked items. It adds all four
up over places and rows; here all are divided by the number of covered places, as the loss of the
task is a mean over these.

Differs: g- is the segment of the next row of the batch, not one drawn from all histories, so with
one row SP is 0. The authors put a sigmoid around each score of SP before the difference; here the
difference is of the scores. Places and lengths are a function of seed, step and row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.constraints import Factor, some_of
from fullrank.core.errors import UserError
from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.models import Requirement, Step, last
from fullrank.models.sequential.items.features import coded_column
from fullrank.models.sequential.regularizers import PenaltySpec, SpecPenalty
from fullrank.ops.starting_values import small, start_small

APART = 0x53EC
"""Added to the seed: sets these draws apart from those of covered places, negatives and noise."""


class S3Rec(PenaltySpec):
    """Prediction of attributes and of segments."""

    kind: Literal["s3rec"] = "s3rec"
    attributes: tuple[str, ...] = ("attributes",)
    """Columns of the item table whose values are predicted: single values or lists."""
    associated: Annotated[Factor, some_of("masked", "segment")] = 0.2
    """Factor of AAP; 0 leaves it out."""
    masked: Factor = 1.0
    """Factor of MAP; 0 leaves it out."""
    segment: Factor = 0.5
    """Factor of SP; 0 leaves it out."""

    @model_validator(mode="after")
    def _every_setting_has_effect(self) -> S3Rec:
        if not self.attributes and (self.associated or self.masked):
            raise UserError(
                "s3rec: attributes names no column, so there is nothing to predict of an item; name one, or set "
                "associated=0 and masked=0",
                code="no-feature-columns",
            )
        return self

    def build(self) -> S3RecPenalty:
        return S3RecPenalty(self)


class S3RecPenalty(SpecPenalty[S3Rec]):
    """Runs the encoder once more for segments, on both halves together, inside the model's own forward pass."""

    codes: Tensor
    requires = (
        Requirement(
            lambda model: hasattr(model.task, "covered_inputs"),
            "the penalty s3rec is pre-training on covered histories; set model.task=cloze and "
            "model.encoder.attention.causal=false, and start the model that recommends from that run (--from)",
            code="penalty-needs-cloze",
        ),
    )

    count = 0
    """Number of attributes, those of all columns."""

    def read_items(self, catalog: Catalog) -> None:
        if not (self.spec.associated or self.spec.masked):
            return
        columns = []
        for name in self.spec.attributes:
            column = coded_column(catalog, name)
            codes = torch.as_tensor(column.codes).view(catalog.size, -1)
            # 0 and -1 are no value; the values of all columns are numbered one after the other
            columns.append(torch.where(codes > 0, codes - 1 + self.count, -1))
            self.count += len(column.values)
        if not self.count:
            raise UserError(
                f"s3rec: no item has a value of {', '.join(map(repr, self.spec.attributes))}; name other columns",
                code="no-feature-columns",
            )
        # of the catalogue, so no part of the weights
        self.register_buffer("codes", torch.cat(columns, 1), persistent=False)

    def attach(self, model: Any) -> None:
        spec, dim = self.spec, model.dim
        self.table = small(self.count, dim) if self.count else None
        self.of_seen = nn.Linear(dim, dim) if spec.associated else None
        self.of_covered = nn.Linear(dim, dim) if spec.masked else None
        self.of_context = nn.Linear(dim, dim) if spec.segment else None
        start_small(self)

    def forward(self, step: Step) -> Float[Tensor, ""]:
        assert step.inputs is not None and step.inputs.hidden is not None
        total = torch.zeros((), device=step.batch.items.device)
        for weight, side, places in (
            (self.spec.associated, self.of_seen, step.inputs.valid & ~step.inputs.hidden),
            (self.spec.masked, self.of_covered, step.inputs.hidden),
        ):
            if side is not None:
                total = total + weight * self._attributes(side(step.states.tokens[places]), step.batch.items[places])
        if self.of_context is not None:
            total = total + self.spec.segment * self._segments(step, self.of_context)
        return total / step.inputs.hidden.sum().clamp_min(1)

    def _attributes(self, states: Float[Tensor, "n D"], items: Int[Tensor, "n"]) -> Float[Tensor, ""]:
        """The binary cross-entropies of all attributes, summed over places."""
        assert isinstance(self.table, Tensor)
        scores, attributes = (states @ self.table.T).float(), self.codes[items]
        # -log sigmoid(-s) of every attribute, less s of those that the item has
        present = (scores.gather(1, attributes.clamp_min(0)) * (attributes >= 0)).sum(1)
        return (F.softplus(scores).sum(1) - present).sum()

    def _segments(self, step: Step, side: nn.Module) -> Float[Tensor, ""]:
        """SP, summed over rows: the two halves of a doubled batch are contexts and segments."""
        batch = step.batch.first_view()
        within = segments(batch)
        both = replace(batch.repeated(2), views=1)
        x, inputs = step.model.task.covered_inputs(step.model.items, both, torch.cat([within, ~within & batch.valid]))
        context, segment = last(step.model.encoder(x, inputs).tokens, inputs).float().chunk(2)
        context = side(context).float()
        nearer = (context * (segment - segment.roll(1, 0))).sum(1)
        # alone a row is its own other, and there is nothing to tell apart
        return F.softplus(-nearer).sum() if len(nearer) > 1 else 0.0 * nearer.sum()


def segments(batch: Batch) -> Bool[Tensor, "B T"]:
    """The events of each row's segment; a row of one event is its own."""
    at = torch.arange(batch.items.shape[1], device=batch.items.device)
    long, where = uniform_draws(batch.seed + APART, batch.step, batch.row_ids, 2).unbind(1)
    length = 1 + (long * (batch.lengths // 2).clamp_min(1)).long()
    start = (where * (batch.lengths - length + 1)).long()
    return (at >= start[:, None]) & (at < (start + length)[:, None]) & batch.valid
