"""Inference as a dial: how long and how wide a reasoner thinks when it answers (PLR, Sec. 3.3 and 6.4).

A reasoner (`fullrank.reasoning`) answers after any number of steps; what is not set here is as trained. The dial is
no part of the protocol that two results must share: two settings of one run are exactly what one wants to compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field, model_validator

from fullrank.errors import UserError
from fullrank.spec import Spec


class Reasoning(Spec):
    """How much a reasoner thinks at inference. Refused for a model without one where anything is set."""

    steps: int | None = Field(None, ge=0)
    """Reasoning steps; 0 answers by the encoder alone, null takes as many as in training."""
    streams: int | None = Field(None, ge=1)
    """Parallel streams, the first ones of those trained; null takes all."""
    adaptive: int | None = Field(None, ge=1)
    """Stop a user's reasoning when their first this many items stay the same; null takes every step."""
    patience: int | None = Field(None, ge=1)
    """Adaptive: steps in a row that must change nothing; null is 1."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Reasoning:
        if self.patience is not None and self.adaptive is None:
            raise ValueError("patience has no effect without adaptive: leave it out or set adaptive=10")
        if self.adaptive is not None and self.steps == 0:
            raise ValueError("adaptive has no effect with steps=0: there is no step to stop after")
        return self


def reasoner_of(model: Any) -> Any | None:
    """A model's reasoner (`fullrank.reasoning.Reasoner`), or None."""
    return getattr(model, "reasoner", None)


def used(model: Any, dial: Reasoning) -> dict[str, Any] | None:
    """What an answer depends on, for a result's protocol; None for a model that does not reason."""
    reasoner = reasoner_of(model)
    if reasoner is None:
        return None
    steps = reasoner.steps if dial.steps is None else dial.steps
    found = {"steps": steps, "streams": dial.streams or reasoner.streams}
    if dial.adaptive is not None:
        found |= {"adaptive": dial.adaptive, "patience": dial.patience or 1}
    return found


@contextmanager
def dialled(model: Any, dial: Reasoning) -> Iterator[None]:
    """While this lasts, the model's answers take the steps and streams that are set.

    Raises `UserError` for a model without a reasoner, and for more streams than were trained.
    """
    reasoner = reasoner_of(model)
    if reasoner is None:
        if dial != Reasoning():
            given = ", ".join(f"{key}={value}" for key, value in dial.dump().items() if value is not None)
            raise UserError(
                f"this model does not reason, so reasoning.{given} has no effect: leave it out, or train a recipe "
                "with a reasoner (`fullrank list recipes`)"
            )
        yield
        return
    if dial.streams is not None and dial.streams > reasoner.streams:
        raise UserError(f"this model was trained with {reasoner.streams} streams: {dial.streams} cannot be asked for")
    with reasoner.limited(steps=dial.steps, streams=dial.streams):
        yield
