"""Reasoning contrast: a row's states under two dropout masks know each other among the batch (PLR, Eq. 8).

Every row is read and reasoned about twice in one pass. For each step and stream, with s_ij
the cosine of row i's state in one view and row j's in the other, the loss is -log
softmax_j(s_ij / temperature) at j = i, in both directions (summed, no half), in the mean over
rows, steps and streams.

Differs: other rows of the same user are no negatives. The task's loss and `kl_diversity` are the
mean of both views, where the paper does not say; `loss_views=first` takes one. Negatives are those
of this process's micro-batch: nothing is gathered, so shards give the mean of their own terms. With
one row in it the term is 0.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import PositiveFactor
from fullrank.models import Step
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.regularizers import (
    REASONER,
    ContrastTemperature,
    Needs,
    PenaltySpec,
    SpecPenalty,
    states_by_view,
)
from fullrank.ops.in_batch_contrast import in_batch_contrast


class ReasoningContrast(PenaltySpec):
    """Two dropout views of a reasoner's states."""

    kind: Literal["reasoning_contrast"] = "reasoning_contrast"
    weight: PositiveFactor = 1.0
    """Factor of the term."""
    temperature: ContrastTemperature = 1.0
    """Divides the cosines."""
    loss_views: Literal["both", "first"] = "both"
    """Views that the task's loss and `kl_diversity` read."""

    def build(self) -> ReasoningContrastPenalty:
        return ReasoningContrastPenalty(self)


class ReasoningContrastPenalty(SpecPenalty[ReasoningContrast]):
    reads_every_item = False
    requires = (REASONER,)

    def __init__(self, spec: ReasoningContrast):
        super().__init__(spec)
        self.needs = Needs(second_view=True, loss_of="both_views" if spec.loss_views == "both" else "first_view")

    def forward(self, step: Step) -> Float[Tensor, ""]:
        first, second = (unit(x) for x in states_by_view(step.reasoning, step.batch))
        users, temperature = step.batch.first_view().users, self.spec.temperature
        return self.spec.weight * in_batch_contrast(first, second, users, temperature=temperature, both=True)
