"""Penalties on a training step.

The room's contract: a Spec whose ``build()`` gives a `Penalty`, a module (its buffers are saved with the weights).
A penalty that finds nothing to read raises; it never passes in silence. One that reads more than the `Step` holds by
itself is `Attached`: it says what it `needs` and sees the model once, when that is built. One that also trains other
vectors on the task's targets is `Asking`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.data.batch import Captures, Queries, States, Step


@dataclass(frozen=True)
class Needs:
    """What a penalty needs of every training step; ``a | b`` is what two of them need."""

    columns: bool = False
    """How much attention each key received (`batch.AttentionColumns`)."""
    columns_after_dropout: bool = False
    """The same of the weights after dropout."""
    second_view: bool = False
    """Every row read twice in one forward pass, under other dropout."""
    loss_of: Literal["all", "first_view", "both_views"] = "all"
    """What the task's loss reads: every view that there is, without a wish (`all`) or of necessity (`both_views`, their
    mean), or the first alone."""

    def __or__(self, other: Needs) -> Needs:
        """Raises `UserError` where one step cannot serve both."""
        wishes = {needs.loss_of for needs in (self, other)} - {"all"}
        if len(wishes) > 1:
            raise UserError(
                "one penalty wants the loss of both views and another that of the first; "
                "set loss_views=first on reasoning_contrast",
                code="penalties-disagree",
            )
        joint = Needs(
            self.columns or other.columns,
            self.columns_after_dropout or other.columns_after_dropout,
            self.second_view or other.second_view,
            next(iter(wishes), "all"),
        )
        if joint.columns and joint.columns_after_dropout:
            raise UserError(
                "one penalty reads attention weights before dropout and another those after it; drop one of the two",
                code="penalties-disagree",
            )
        return joint

    def captures(self) -> Captures | None:
        """Empty captures for one step; None where modules need not keep anything."""
        wanted = self.columns or self.columns_after_dropout
        return Captures(columns=[], after_dropout=self.columns_after_dropout) if wanted else None


class Penalty(Protocol):
    """With an attribute ``searches_items = True`` it reads item vectors as what the first queries search; it is refused
    for a task whose queries search codes."""

    def __call__(self, step: Step) -> Float[Tensor, ""]: ...


@runtime_checkable
class Attached(Protocol):
    needs: Needs
    """With an attribute `after_steps`, a second view is not needed before that optimizer step."""

    def attach(self, model: nn.Module) -> None:
        """Find the blocks to read and make the buffers that belong to them. Raises `UserError` where there is none."""
        ...


@runtime_checkable
class Asking(Protocol):
    def ask(self, queries: tuple[Queries, ...], states: States) -> tuple[Queries, ...]:
        """More groups of queries for the model's loss, made of the task's; vectors are not normalised yet."""
        ...
