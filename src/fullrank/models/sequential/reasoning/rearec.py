"""ReaRec: the last state is fed back some times, and each time it is read anew (Tang et al. 2025, arXiv:2503.22675).

o_0 is the encoder's state of the last event and o_s its state of a token behind it that starts as
o_(s-1) + r_s, with r_s the vector of step s. ERL answers with the mean of o_0 .. o_S, PRL with
o_S. ERL trains with `kl_diversity`, PRL with `progressive`, which this reasoner leaves to the
penalties of these names.

Differs: rows are padded on the right, so a token stands at the row's length. It gets no
item position and no sqrt(d): r_s takes their place, and the encoder's input norm and
dropout (the same module) follow.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import Parts
from fullrank.models import ReasoningStates
from fullrank.models.sequential.reasoning import ReasonerSpec, StepwiseReasoner


class ReaRec(ReasonerSpec):
    """One stream of steps."""

    kind: Literal["rearec"] = "rearec"
    steps: Parts = 2
    """Steps behind the history."""
    answer: Literal["mean", "last"] = "mean"
    """Of the encoder's state and all steps (ERL), or the last step alone (PRL)."""

    def build(self, encoder: nn.Module, dim: int, max_length: int) -> ReaRecReasoner:
        return ReaRecReasoner(encoder, dim, self)


class ReaRecReasoner(StepwiseReasoner):
    def __init__(self, encoder: nn.Module, dim: int, spec: ReaRec):
        super().__init__(encoder, dim, steps=spec.steps, streams=1)
        self.mean = spec.answer == "mean"

    def openings(self, start: Float[Tensor, "B D"]) -> Float[Tensor, "B P D"]:
        return start[:, None]

    def weigh(self, start: Float[Tensor, "B D"], streams: int) -> Float[Tensor, "B P"]:
        return torch.ones_like(start[:, :1])

    def trained(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        return self.answer(states)

    def answer(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        steps = states.steps[:, :, 0]
        return (states.start + steps.sum(1)) / (1 + steps.shape[1]) if self.mean else steps[:, -1]
