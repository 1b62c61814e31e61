"""KL diversity: a reasoner's steps and streams predict different items (PLR, Eq. 7; ReaRec's ERL, arXiv:2503.22675).

With p_i = softmax over items of state i's scores, KL = mean over ordered pairs i != j of KL(p_i ||
p_j) among a row's S P states, and over the rows; the term is weight sign KL.

Differs: sign is -1, so that the term is least where states differ most. PLR's Eq. 11 adds +weight
KL, which pulls states together against its own text (Sec. 3.2.1: to keep them from collapsing);
ReaRec, of the same authors, subtracts. p_j carries no gradient (`reference`), as in ReaRec. A row's
mean counts up to `maximum`, because the norms of items could drive it up without end; a row above
it gives no gradient, and a line says so where nearly all are. The softmax is over items drawn anew
in every step, the same for all rows and shards. The mean is over the rows of this process's
micro-batch: nothing is gathered, so shards give the mean of their terms.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_FACTOR, MOST_LIST, PositiveFactor, Temperature
from fullrank.core.log import logger
from fullrank.core.random import uniform_draws
from fullrank.models import Step
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.regularizers import REASONER, PenaltySpec, SpecPenalty, flat_states
from fullrank.ops.pairwise_kl import pairwise_kl

log = logger(__name__)

PLACE = 7_340_033
"""Sets these draws apart from those of negatives."""
STEPS_BETWEEN = 50
"""Training steps from one look at the term to the next: a look waits for the device."""
NEARLY_ALL = 0.95
"""Share of `maximum` that the mean over the rows reaches where nearly all of them are above it."""


class KLDiversity(PenaltySpec):
    """Divergence between the predictions of a reasoner's states."""

    kind: Literal["kl_diversity"] = "kl_diversity"
    weight: PositiveFactor = 0.1
    """Factor of the term (lambda)."""
    sign: Literal[-1, 1] = -1
    """-1 drives states apart, +1 together (PLR's Eq. 11 taken literally)."""
    reference: Literal["detached", "attached"] = "detached"
    """Whether gradients flow through the second distribution of a pair."""
    start: bool = False
    """Count the encoder's own state h_0 among the states (ERL)."""
    maximum: float = Field(10.0, ge=0.1, le=MOST_FACTOR)
    """Largest mean divergence of a row that counts, in nats."""
    items: int | None = Field(1024, ge=2, le=MOST_LIST)
    """Items that predictions are compared on, drawn uniformly without replacement; null compares on all of them."""
    temperature: Temperature | None = None
    """Divides the scores; null is the temperature of the model's scoring."""

    def build(self) -> KLDiversityPenalty:
        return KLDiversityPenalty(self)


class KLDiversityPenalty(SpecPenalty[KLDiversity]):
    requires = (REASONER,)

    def __init__(self, spec: KLDiversity):
        super().__init__(spec)
        self._warned = False

    def forward(self, step: Step) -> Float[Tensor, ""]:
        spec, q = self.spec, step.queries[0]
        states = flat_states(step.reasoning, start=spec.start).float()
        if step.first_view_only:
            states = states[: len(states) // step.batch.views]
        if step.model.cosine:
            states = unit(states)
        table = q.table.all() if spec.items is None else q.table.embed(self._drawn(step, q.table.size))
        states = states / (spec.temperature or q.temperature)
        attached = spec.reference == "attached"
        divergence = pairwise_kl(states, table.float(), maximum=spec.maximum, attached=attached)
        if self.training and not self._warned and step.batch.step % STEPS_BETWEEN == STEPS_BETWEEN - 1:
            self._warned = float(divergence.detach()) > NEARLY_ALL * spec.maximum
            if self._warned:
                log.warning(
                    "kl_diversity gives no gradient: the divergence of nearly every row is above "
                    f"maximum={spec.maximum:g} nats; raise it, or leave the penalty out"
                )
        return spec.sign * spec.weight * divergence

    def _drawn(self, step: Step, size: int) -> Tensor:
        """Item ids, a function of seed and step alone."""
        assert self.spec.items is not None
        key = torch.full((1,), PLACE, device=step.batch.items.device)
        draws = uniform_draws(step.batch.seed, step.batch.step, key, size)[0]
        return draws.topk(min(self.spec.items, size)).indices
