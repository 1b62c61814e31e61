"""A reasoner's states as penalties read them: flat, or by view."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.data.batch import Batch, ReasoningStates, Step


def demand_reasoner(model: Any, penalty: str) -> Any:
    """The model's reasoner; `UserError` where it has none."""
    reasoner = getattr(model, "reasoner", None)
    if reasoner is None:
        raise UserError(
            f"the penalty {penalty} reads the steps of a reasoner, and this model has none: "
            "set model.reasoner=plr (or rearec), or drop the penalty"
        )
    return reasoner


def thoughts_of(step: Step) -> ReasoningStates:
    thoughts = step.states.reasoning
    assert thoughts is not None  # `demand_reasoner` was asked when the model was built
    return thoughts


def first_view_alone(step: Step) -> bool:
    """Whether the loss, and what goes with it, reads the first view only."""
    return step.first_view_only


def states_of(thoughts: ReasoningStates, *, start: bool) -> Float[Tensor, "B n D"]:
    """All states of each row: n = S M, and h_0 before them on request."""
    steps = thoughts.steps.flatten(1, 2)
    return torch.cat([thoughts.start[:, None], steps], 1) if start else steps


def views_of(thoughts: ReasoningStates, batch: Batch) -> tuple[Float[Tensor, "n B D"], Float[Tensor, "n B D"]]:
    """The states of the first and of the second view, by step and stream."""
    first, second = states_of(thoughts, start=False).float().chunk(2)
    assert batch.views == 2 and len(first) == len(second)
    return first.transpose(0, 1), second.transpose(0, 1)
