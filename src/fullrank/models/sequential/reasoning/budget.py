"""The inference budget: how many steps and streams a reasoner takes to answer (PLR, Sec. 3.3 and 6.4).

A reasoner answers after any number of steps; what is not set here is as trained. The budget is an argument of each
answer and changes no model, so one model answers under many budgets at a time. It is no part of the protocol that two
results must share: two budgets of one run are exactly what one wants to compare.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from fullrank.core.constraints import MOST_PARTS, ListLength, Parts, not_with, only_with
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.models.contracts import Model


@runtime_checkable
class _Trained(Protocol):
    """What a budget has to know of a reasoner."""

    steps: int
    streams: int


class Budget(Spec):
    """Reasoning at inference. Refused for a model without a reasoner where anything is set."""

    steps: int | None = Field(None, ge=0, le=MOST_PARTS)
    """Reasoning steps; 0 answers by the encoder alone, null takes as many as in training."""
    streams: Parts | None = None
    """Parallel streams, the first ones of those trained; null takes all."""
    adaptive: Annotated[ListLength | None, not_with("steps", 0)] = None
    """Reasoning stops when so many first items of a user's list stay the same; null takes every step."""
    patience: Annotated[Parts | None, only_with("adaptive")] = None
    """Steps in a row in which these items have to stay the same; null is 1."""

    def steps_of(self, reasoner: _Trained) -> int:
        """Steps that the reasoner may take."""
        return reasoner.steps if self.steps is None else self.steps

    def streams_of(self, reasoner: _Trained) -> int:
        """Streams that it may use. Raises `UserError` for more than were trained."""
        if self.streams is not None and self.streams > reasoner.streams:
            raise UserError(
                f"this model was trained with {reasoner.streams} streams: {self.streams} cannot be asked for; train "
                "one with more (model.reasoner.streams)",
                code="too-many-streams",
                public=True,
            )
        return self.streams or reasoner.streams


AS_TRAINED = Budget()
"""Every step in every stream."""


def check_budget(model: Model, budget: Budget) -> None:
    """Raise `UserError` for a budget that a model cannot keep: any without a reasoner, more streams than trained."""
    reasoner = model.reasoner
    if reasoner is not None:
        budget.streams_of(reasoner)
    elif budget is not AS_TRAINED and budget != AS_TRAINED:  # comparing settings takes longer than reading them
        given = ", ".join(f"{key}={value}" for key, value in budget.dump().items() if value is not None)
        raise UserError(
            f"this model does not reason, so reasoning.{given} has no effect: leave it out, or train a recipe "
            "with a reasoner (`fullrank list recipes`)",
            code="no-reasoner",
            public=True,
        )


def described(model: Model, budget: Budget) -> dict[str, Any] | None:
    """What an answer depends on, for a result's protocol; None for a model that does not reason."""
    reasoner = model.reasoner
    if reasoner is None:
        return None
    found = {"steps": budget.steps_of(reasoner), "streams": budget.streams or reasoner.streams}
    if budget.adaptive is not None:
        found |= {"adaptive": budget.adaptive, "patience": budget.patience or 1}
    return found
