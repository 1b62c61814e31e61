"""Alignment of reasoning: trajectories to one target agree, and so do the steps of one trajectory (LARES, Sec. SPT).

Two InfoNCE terms on cosines, each the mean of both directions. `trajectory`: every row is read
and reasoned about twice (other dropout, another T_0), and a row's final state has to find, among
the second views of the batch, that of another row with the same target; of a row whose target
nobody shares, its own. `step`: a row's final state has to find its own state after one step that
is drawn for the whole batch, among those of the other rows, and the other way round. With one
step alone the second term is 0.

Works on any reasoner; that of the paper is `lares` (arXiv:2505.16865).

Differs: the authors take the partner from all of training, here it is drawn from the batch. They
read a history three times, with a depth of its own for the loss on the targets; here twice, and
that loss reads the first view. Rows with the same target are no negatives of each other, which they
are in the authors' code. Negatives are those of this process's micro-batch: nothing is gathered, so
shards give the mean of their own terms. With one row the terms are 0.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.constraints import Factor, some_of
from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch
from fullrank.models import Step
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.regularizers import REASONER, ContrastTemperature, Needs, PenaltySpec, SpecPenalty
from fullrank.ops.in_batch_contrast import in_batch_contrast

PLACE = 13_631_489
"""Sets these draws apart from those of negatives."""


class ReasoningAlignment(PenaltySpec):
    """Contrast of trajectories with the same target, and of the steps of each."""

    kind: Literal["reasoning_alignment"] = "reasoning_alignment"
    trajectory_weight: Annotated[Factor, some_of("step_weight")] = 0.1
    """Factor of the contrast of trajectories (alpha); 0 leaves it out."""
    step_weight: Factor = 0.1
    """Factor of the contrast of steps (gamma); 0 leaves it out."""
    temperature: ContrastTemperature = 0.07
    """Divides the cosines."""

    def build(self) -> ReasoningAlignmentPenalty:
        return ReasoningAlignmentPenalty(self)


class ReasoningAlignmentPenalty(SpecPenalty[ReasoningAlignment]):
    reads_every_item = False
    requires = (REASONER,)

    def __init__(self, spec: ReasoningAlignment):
        super().__init__(spec)
        self.needs = Needs(second_view=True, loss_of="first_view") if spec.trajectory_weight else Needs()

    def forward(self, step: Step) -> Float[Tensor, ""]:
        reasoning, spec = step.reasoning, self.spec
        steps = unit((reasoning.gate[:, None, :, None] * reasoning.steps).sum(2).float())
        rows = len(steps) // step.batch.views
        targets = step.queries[0].sought[:rows]  # of each row's one query
        first, final = steps[:rows], steps[:rows, -1]
        total = torch.zeros((), device=steps.device)
        if spec.trajectory_weight:
            partner = steps[rows:, -1][same_target(targets, step.batch)]
            total = total + spec.trajectory_weight * self._contrast(final, partner, targets)
        if spec.step_weight and steps.shape[1] > 1:
            drawn = int(_draws(step.batch, torch.zeros(1, dtype=torch.long))[0] * steps.shape[1])
            total = total + spec.step_weight * self._contrast(final, first[:, drawn], targets)
        # the graph stays where neither contrast is made
        return total + 0.0 * final.sum()

    def _contrast(self, a: Float[Tensor, "B D"], b: Float[Tensor, "B D"], targets: Int[Tensor, "B"]) -> Tensor:
        return in_batch_contrast(a[None], b[None], targets, temperature=self.spec.temperature, both=True) / 2


def same_target(targets: Int[Tensor, "B"], batch: Batch) -> Int[Tensor, "B"]:
    """For each row another one with the same target, drawn; the row itself where there is none."""
    # rows with one target form a run in the sorted order; a row takes another place of its
    # run, modulo the run's size
    order = targets.sort(stable=True).indices
    sorted_targets = targets[order]
    low = torch.searchsorted(sorted_targets, sorted_targets)
    size = torch.searchsorted(sorted_targets, sorted_targets, right=True) - low
    at = torch.arange(len(order), device=targets.device) - low
    shift = 1 + (_draws(batch, batch.row_ids[: len(targets)])[order] * (size - 1)).long()
    mate = torch.where(size > 1, (at + shift) % size, at)
    partner = torch.empty_like(order)
    partner[order] = order[low + mate]
    return partner


def _draws(batch: Batch, rows: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """A uniform number for each row."""
    return uniform_draws(batch.seed + PLACE, batch.step, rows, 1)[:, 0]
