"""Progressive reasoning: each step predicts on its own, the earlier the flatter (ReaRec's PRL, arXiv:2503.22675).

Two parts. The model's loss also asks, for t = 0 .. S-1, with the state after t steps at the
scoring's temperature times sharpening^(S-t); their mean is added to the loss on the last state,
each under its own name (`step_0`, ...). And every row is read twice, the second time with N(0,
noise^2) on what enters each step: a noisy state has to find its own clean one among the batch's,
-log softmax_j(noisy_i . clean_j / temperature) at j = i, in the mean over rows and steps. The
authors have one temperature for the scores and this contrast, and so has the default.

Differs: the state after t steps of a reasoner with several streams is their gated sum. Other rows
of the same user are no negatives. The authors start the noise after two epochs: `after_steps`
counts optimizer steps, and before them no row is read twice. The task's loss reads the clean
view. Negatives are those of this process's micro-batch: nothing is gathered, so shards give the
mean of their own terms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import CountFromZero, Factor, PositiveFactor, Temperature, only_with, some_of
from fullrank.models import QueryGroups, Requirement, States, Step
from fullrank.models.sequential.regularizers import REASONER, Needs, PenaltySpec, SpecPenalty, states_by_view
from fullrank.ops.in_batch_contrast import in_batch_contrast


class Progressive(PenaltySpec):
    """Losses of single steps, and contrast against noise."""

    kind: Literal["progressive"] = "progressive"
    step_weight: Annotated[Factor, some_of("contrast_weight")] = 1.0
    """Factor of the mean of the steps' losses."""
    sharpening: Annotated[PositiveFactor, only_with("step_weight")] = 5.0
    """alpha: how many times flatter each earlier step's distribution is."""
    contrast_weight: Factor = 1.0
    """Factor of the contrast."""
    noise: Annotated[PositiveFactor, only_with("contrast_weight")] = 0.01
    """gamma: standard deviation of the noise."""
    # before it followed the scoring, runs wrote its default of then, 1
    temperature: Annotated[Temperature | None, only_with("contrast_weight", unread=(1.0,))] = None
    """Divides the contrast's inner products; null is the temperature of the model's scoring."""
    after_steps: Annotated[CountFromZero, only_with("contrast_weight")] = 0
    """Optimizer steps without contrast at the beginning."""

    def build(self) -> ProgressivePenalty:
        return ProgressivePenalty(self)


NOISE = Requirement(
    lambda model: hasattr(model.reasoner, "input_noise"),
    "progressive: {spec.reasoner.kind} takes no noise; set contrast_weight=0 or use rearec",
    code="reasoner-without-noise",
)


class ProgressivePenalty(SpecPenalty[Progressive]):
    reads_every_item = False

    def __init__(self, spec: Progressive):
        super().__init__(spec)
        self.after_steps = spec.after_steps
        self.requires = (REASONER, NOISE) if spec.contrast_weight else (REASONER,)
        self.needs = Needs(second_view=True, loss_of="first_view") if spec.contrast_weight else Needs()

    def attach(self, model: Any) -> None:
        if self.spec.contrast_weight:
            model.reasoner.input_noise = self.spec.noise

    def extra_queries(self, queries: QueryGroups, states: States) -> QueryGroups:
        reasoning, spec = states.reasoning, self.spec
        if not spec.step_weight or reasoning is None:
            return ()
        count = reasoning.steps.shape[1]
        gated = (reasoning.gate[:, None, :, None] * reasoning.steps).sum(2)
        states_before_last = enumerate((reasoning.start, *gated.unbind(1)[:-1]))
        return tuple(
            replace(
                q,
                name=f"{q.name}_step_{t}",
                vectors=state[q.rows],
                temperature=q.temperature * spec.sharpening ** (count - t),
                weight=spec.step_weight / count,
                counted_as=q.name,
            )
            for t, state in states_before_last
            for q in queries
        )

    def forward(self, step: Step) -> Float[Tensor, ""]:
        if not self.spec.contrast_weight or step.batch.views < 2:
            return torch.zeros((), device=step.batch.items.device)
        clean, noisy = states_by_view(step.reasoning, step.batch)
        users = step.batch.first_view().users
        temperature = self.spec.temperature or step.queries[0].temperature
        contrast = in_batch_contrast(noisy, clean, users, temperature=temperature, both=False)
        return self.spec.contrast_weight * contrast
