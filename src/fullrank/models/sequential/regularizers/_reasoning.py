"""The states of a reasoner as penalties read them: all of a row in one dimension, or the two views apart."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.data.batch import Batch
from fullrank.models.contracts import ReasoningStates, Step


def require_reasoner(model: Any, penalty: str) -> Any:
    """The model's reasoner; `UserError` where it has none."""
    reasoner = model.reasoner
    if reasoner is None:
        raise UserError(
            f"the penalty {penalty} reads the steps of a reasoner, and this model has none: "
            "set model.reasoner=plr (or rearec, lares), or drop the penalty",
            code="no-reasoner",
        )
    return reasoner


def reasoning_states(step: Step) -> ReasoningStates:
    """The states of the step's reasoner."""
    found = step.states.reasoning
    assert found is not None  # `require_reasoner` ran when the model was built
    return found


def flat_states(found: ReasoningStates, *, start: bool) -> Float[Tensor, "B n D"]:
    """All states of each row: n = S P, and h_0 before them on request."""
    steps = found.steps.flatten(1, 2)
    return torch.cat([found.start[:, None], steps], 1) if start else steps


def states_by_view(found: ReasoningStates, batch: Batch) -> tuple[Float[Tensor, "n B D"], Float[Tensor, "n B D"]]:
    """The states of the first and of the second view, by step and stream."""
    first, second = flat_states(found, start=False).float().chunk(2)
    assert batch.views == 2 and len(first) == len(second)
    return first.transpose(0, 1), second.transpose(0, 1)
