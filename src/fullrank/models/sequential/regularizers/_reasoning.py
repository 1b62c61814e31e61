"""The states of a reasoner as penalties read them: all of a row in one dimension, or the two views apart."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models.contracts import ReasoningStates
from fullrank.models.sequential.requirements import Requirement

REASONER = Requirement(
    lambda model: model.reasoner is not None,
    "the penalty {part} reads the steps of a reasoner, and this model has none: set model.reasoner=plr (or rearec, "
    "lares), or drop the penalty",
    code="no-reasoner",
)


def flat_states(found: ReasoningStates, *, start: bool) -> Float[Tensor, "B n D"]:
    """All states of each row: n = S P, and h_0 before them on request."""
    steps = found.steps.flatten(1, 2)
    return torch.cat([found.start[:, None], steps], 1) if start else steps


def states_by_view(found: ReasoningStates, batch: Batch) -> tuple[Float[Tensor, "n B D"], Float[Tensor, "n B D"]]:
    """The states of the first and of the second view, by step and stream."""
    first, second = flat_states(found, start=False).float().chunk(2)
    assert batch.views == 2 and len(first) == len(second)
    return first.transpose(0, 1), second.transpose(0, 1)
