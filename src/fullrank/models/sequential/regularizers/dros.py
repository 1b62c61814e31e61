"""DROS: distributionally robust optimisation for shifting item distributions (Yang et al., SIGIR 2023).

For e one of the squared errors (1 - sigma(s+))^2 of the targets and sigma(s-)^2 of the negatives,
the term adds weight beta log(sum w exp(e / beta) / sum w) with w = (training share of the
item)^power: the worst errors count most.

Differs: the form that SPRINT's authors ran. Errors are of probabilities and of sampled negatives,
because the original's squares of raw scores over all items explode; each side has its own sum and a
factor beta. Negatives that the loss does not count are left out, an item without training events
counts as one, groups of queries add up. A loss without sampled negatives (exact softmax) cannot be
served and is refused. The sums run over this process's micro-batch: nothing is gathered, so shards
give the mean of their own terms.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import PositiveFactor, Temperature
from fullrank.core.errors import UserError
from fullrank.models import Queries, Record, Requirement, Step
from fullrank.models.sequential.regularizers import PenaltySpec, SpecPenalty


class DROS(PenaltySpec):
    """Distributionally robust penalty on the scores of targets and sampled negatives."""

    kind: Literal["dros"] = "dros"
    weight: PositiveFactor = 0.1
    """Factor of the term (alpha of the paper)."""
    temperature: Temperature = 0.5
    """beta_0 of the paper: towards 0 the worst error alone counts, large values give the mean error."""
    power: float = Field(0.05, ge=0, le=100)
    """Exponent on the items' training shares; 0 weighs all items alike."""

    def build(self) -> DROSPenalty:
        return DROSPenalty(self)


NEGATIVES = Requirement(
    lambda model: model.loss.sampled,
    "the penalty dros reads the scores of sampled negatives, and this loss draws none (an exact softmax such as "
    "cross_entropy never does); use model.loss=bce, gbce or sampled_softmax, or drop the penalty",
    code="loss-without-negatives",
)


class DROSPenalty(SpecPenalty[DROS]):
    reads_every_item = False
    requires = (NEGATIVES,)

    def forward(self, step: Step) -> Float[Tensor, ""]:
        parts = [part for q in step.queries for part in self._parts(q, step.records[q.name])]
        return self.spec.weight * torch.stack(parts).sum()

    def _parts(self, q: Queries, record: Record) -> tuple[Tensor, Tensor]:
        """The soft maximum of the targets' errors, and that of the negatives'."""
        positive, negative, ids = record.positive, record.negative, record.negative_ids
        # a loss that says it is sampled, and is not
        if positive is None or negative is None or ids is None:
            raise UserError(NEGATIVES.sentence, code=NEGATIVES.code)
        counted = torch.ones_like(ids, dtype=torch.bool) if record.kept is None else record.kept
        missed = self._worst((-positive).sigmoid().square(), q.table.log_q(q.targets))
        raised = self._worst(negative.sigmoid().square()[counted], q.table.log_q(ids[counted]))
        return missed, raised

    def _worst(self, error: Float[Tensor, "n"], log_q: Float[Tensor, "n"]) -> Float[Tensor, ""]:
        """The soft maximum of the errors; 0 of none."""
        if not len(error):
            return error.sum()
        share, temperature = self.spec.power * log_q, self.spec.temperature
        return temperature * (torch.logsumexp(share + error / temperature, 0) - torch.logsumexp(share, 0))
