"""PLR: several isolated streams of latent steps, weighed by a gate (PLR, Eqs. 3-6, 9 and 10).

Stream m opens at h_(0,m) = h_0 + tau_m with a learned trigger tau_m (Eq. 3). Its step t is a token
that starts as h_(t-1,m) + r_t, with r shared by the streams, and sees the history, its own earlier
steps and itself: h_(t,m) is what the encoder makes of it, f(h_(t-1,m), r_t) (Eq. 2), with
`residual` plus h_(t-1,m) (Eq. 4). z_m is the mean of h_1,m .. h_S,m (not of h_0), and z_rea = sum_m
g_m z_m with g = softmax(W h_0 + b). The loss reads z_rea alone; the answer is h_0 + z_rea. Its
penalties are `reasoning_contrast` (Eq. 8) and `kl_diversity` (Eq. 7), and our own `stream_loss`.
With one stream the gate is 1, with one step z = h_1.

Differs: Eqs. 4 and 5 are of one attention, whose residual goes around the whole step and which has
no norm; a step here is a cached token through the encoder's own blocks, as in ReaRec and as in the
paper's text and FLOPs, and has the residual of Eq. 4 on request alone. With it a state grows with
every step, and the next one reads it behind the encoder's input norm (or its blocks' own). A token
gets no item position and no sqrt(d) (`rearec.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import Parts, PositiveFactor, not_with
from fullrank.core.spec import later
from fullrank.models import ReasoningStates
from fullrank.models.sequential.reasoning import ReasonerSpec, StepwiseReasoner
from fullrank.ops.starting_values import STD, small, start_small


class PLR(ReasonerSpec):
    """Parallel streams of steps."""

    kind: Literal["plr"] = "plr"
    steps: Parts = 2
    """Steps of each stream."""
    streams: Parts = 2
    """Streams."""
    gate: Annotated[Literal["learned", "uniform"] | None, not_with("streams", 1)] = None
    """Weights of the streams, made of h_0 or all the same; default learned, and without a choice for one stream."""
    trigger_std: PositiveFactor = later(STD)
    """Standard deviation with which the triggers tau_m start; the paper names none. The numbers of a state behind a
    norm are of size 1: 0.02 opens two streams 3 % of a state's length apart, 1 further than a state is long. Under
    `model.initial=width` it is multiplied by sqrt(512 / dim), as every start is."""
    residual: bool = later(False)
    """Add h_(t-1,m) to what the encoder makes of it (Eq. 4), so that where streams differ survives every step."""

    def build(self, encoder: nn.Module, dim: int, max_length: int) -> PLRReasoner:
        return PLRReasoner(encoder, dim, self)


class PLRReasoner(StepwiseReasoner):
    def __init__(self, encoder: nn.Module, dim: int, spec: PLR):
        super().__init__(encoder, dim, steps=spec.steps, streams=spec.streams, residual=spec.residual)
        # not 0: streams that start equal get equal gradients and never part
        self.triggers = small(spec.streams, dim, std=spec.trigger_std)
        learned = spec.streams > 1 and spec.gate != "uniform"
        self.gate = nn.Linear(dim, spec.streams) if learned else None
        start_small(self)

    def openings(self, start: Float[Tensor, "B D"]) -> Float[Tensor, "B P D"]:
        return start[:, None] + self.triggers

    def weigh(self, start: Float[Tensor, "B D"], streams: int) -> Float[Tensor, "B P"]:
        if self.gate is None:
            return start.new_full((start.shape[0], streams), 1 / streams)
        return self.gate(start)[:, :streams].softmax(1)

    def trained(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        return (states.gate[..., None] * states.steps.mean(1)).sum(1)

    def answer(self, states: ReasoningStates) -> Float[Tensor, "B D"]:
        return states.start + self.trained(states)
