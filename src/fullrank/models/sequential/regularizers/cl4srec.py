"""CL4SRec: two augmented views of a history know each other among the batch (Xie et al., ICDE 2022, arXiv:2010.14395).

Of each history two views are made, each by one of three operators that is drawn at random:

    crop       the floor(crop n) events from a random place on, at least one
    mask       floor(mask n) events become one learned vector
    reorder    floor(reorder n) events from a random place on are shuffled

With z the answers to the 2B views of a batch and s_ij = z_i . z_j / temperature, the term
is the mean over all views of -log softmax_j(s_ij) at the other view of i's history, j
over the views but i itself.

Differs: other histories of the same user are no negatives. What is contrasted is the vector
that the model would search with, for any task and encoder. `normalise` takes cosines for the
paper's inner products. The time of a masked event stays, shuffled events leave their times
where they were. Operators and places are a function of seed, step and row. Negatives are those
of this process's micro-batch: nothing is gathered, so shards give the mean of their own terms.
With one row the term is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.constraints import DropoutRate, PositiveFactor, Share, some_of
from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch
from fullrank.models import Step
from fullrank.models.sequential.items import Items, ItemsView, unit
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.models.sequential.regularizers import ContrastTemperature, PenaltySpec, SpecPenalty
from fullrank.ops.starting_values import small

APART = 0xC14_5EC0
"""Added to the seed: sets these draws apart from those of negatives, covered places and noise."""
OPERATORS = ("crop", "mask", "reorder")
"""Operators, by the numbers that a drawn one has."""


class CL4SRec(PenaltySpec):
    """Contrast of cropped, masked and reordered histories."""

    kind: Literal["cl4srec"] = "cl4srec"
    weight: PositiveFactor = 0.1
    """lambda: factor of the term."""
    crop: Annotated[DropoutRate, some_of("mask", "reorder", code="share-out-of-range")] = 0.6
    """eta: share of the events that a crop keeps; 0 leaves the operator out."""
    mask: Share = 0.3
    """gamma: share of the events that are masked; 0 leaves the operator out."""
    reorder: Share = 0.6
    """beta: share of the events that are shuffled; 0 leaves the operator out."""
    temperature: ContrastTemperature = 1.0
    """Divides the scores."""
    normalise: bool = False
    """Contrast cosines in place of inner products."""

    def build(self) -> CL4SRecPenalty:
        return CL4SRecPenalty(self)


class CL4SRecPenalty(SpecPenalty[CL4SRec]):
    """Runs the encoder once more, on both views together, inside the model's own forward pass."""

    featureless = "it masks and shuffles items, whose features would stay where they were"

    def __init__(self, spec: CL4SRec):
        super().__init__(spec)
        self.masked: Tensor | None = None

    def attach(self, model: Any) -> None:
        self.masked = small(model.dim) if self.spec.mask else None

    def forward(self, step: Step) -> Float[Tensor, ""]:
        histories = known(step.batch.first_view())
        views = augmented(histories, self.spec)
        x, inputs = step.model.task.inference_inputs(Masked(step.model.items, self.masked), views)
        z = step.model.task.readout(step.model.encoder(x, inputs), inputs).flatten(1).float()
        z = unit(z) if self.spec.normalise else z
        return self.spec.weight * contrast(z, histories.users, self.spec.temperature)


def known(batch: Batch) -> Batch:
    """The rows without their last event, which the task predicts; a row of one event keeps it."""
    width = max(1, batch.items.shape[1] - 1)
    times = None if batch.times is None else batch.times[:, :width]
    lengths = (batch.lengths - 1).clamp_min(1)
    return replace(batch, items=batch.items[:, :width], lengths=lengths, times=times, wanted=None)


def augmented(batch: Batch, spec: CL4SRec) -> Batch:
    """The first views of all rows, then the second ones. A masked event is item -1."""
    width, device = batch.items.shape[1], batch.items.device
    choice = torch.tensor([i for i, name in enumerate(OPERATORS) if getattr(spec, name)], device=device)
    # for each view: which operator, where it begins, and a number for each position; views take
    # turns, so that a row's own draws do not depend on how long the others are
    draws = uniform_draws(batch.seed + APART, batch.step, batch.row_ids, 2 * (width + 2)).unflatten(1, (width + 2, 2))
    draws = draws.movedim(2, 0).flatten(0, 1)
    both = replace(batch.repeated(2), views=1)
    operator = choice[(draws[:, 0] * len(choice)).long()]
    at, length = torch.arange(width, device=device), both.lengths.double()

    def stretch(share: float, least: int) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
        """Where a stretch of this share of each row begins, and its number of events."""
        count = (share * length).long().clamp_min(least)
        return (draws[:, 1] * (both.lengths - count + 1)).long(), count

    start, cropped_length = stretch(spec.crop, 1)
    cropped = (at + start[:, None]).clamp_max(width - 1)
    first, count = (n[:, None] for n in stretch(spec.reorder, 0))
    within = (at >= first) & (at < first + count)
    # sorted by their position, events inside the stretch by a draw that lies in it: they stay
    # between those around it
    shuffled = torch.where(within, first + draws[:, 2:] * count, at.double()).argsort(dim=1, stable=True)
    valid = at < both.lengths[:, None]
    # rank of each event's draw in its row; padding comes last
    rank = draws[:, 2:].masked_fill(~valid, 2.0).argsort(1).argsort(1)
    hidden = (rank < (spec.mask * length).long()[:, None]) & (operator == 1)[:, None]

    source = torch.where((operator == 0)[:, None], cropped, torch.where((operator == 2)[:, None], shuffled, at))
    times = both.times
    if times is not None:
        times = torch.where((operator == 0)[:, None], times.gather(1, cropped), times)
    items = both.items.gather(1, source).masked_fill(hidden, -1)
    return replace(both, items=items, times=times, lengths=torch.where(operator == 0, cropped_length, both.lengths))


def contrast(z: Float[Tensor, "n D"], users: Int[Tensor, "B"] | None, temperature: float) -> Float[Tensor, ""]:
    """Each of n = 2B views against all others, of which the one B rows away is its partner."""
    rows = len(z) // 2
    partner = torch.arange(len(z), device=z.device).roll(rows)
    user = torch.arange(rows, device=z.device) if users is None else users
    left_out = (user.repeat(2)[:, None] == user.repeat(2)).scatter(1, partner[:, None], False)
    return F.cross_entropy((z @ z.T / temperature).masked_fill(left_out, float("-inf")), partner)


class Masked(ItemsView):
    """Items of which number -1 is a masked one."""

    def __init__(self, items: Items, masked: Float[Tensor, "e"] | None):
        super().__init__(items)
        self.masked = masked

    def embed(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self._covered(self.items.embed(ids.clamp_min(0)), ids < 0)

    def code_vectors(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T K D"]:
        assert isinstance(self.items, SemanticItems)
        return self._covered(self.items.code_vectors(ids.clamp_min(0)), (ids < 0)[..., None])

    def _covered(self, vectors: Tensor, hidden: Tensor) -> Tensor:
        return vectors if self.masked is None else torch.where(hidden[..., None], self.masked, vectors)
