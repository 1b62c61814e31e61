"""Penalties on a training step.

The room's contract: a Spec whose ``build()`` gives a `Penalty`, a module (its buffers are saved with the weights).
A penalty that finds nothing to read raises; it never passes in silence. One that reads more than the `Step` holds by
itself is `Attached`: it names what modules must note for it (`batch.Taps`) and sees the model once, when that is built.
Some needs are the model's own: `second_view` has every row read twice in one forward pass, under other dropout, and
with it `loss_of_both_views` (their mean) or `loss_of_first_view` says what the task's loss reads. One that also trains
other vectors on the task's targets is `Asking`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.data.batch import Queries, States, Step


class Penalty(Protocol):
    """With an attribute ``searches_items = True`` it reads item vectors as what the first queries search; it is refused
    for a task whose queries search codes."""

    def __call__(self, step: Step) -> Float[Tensor, ""]: ...


@runtime_checkable
class Attached(Protocol):
    needs: frozenset[str]
    """What modules must note in every training step (`columns`), or what else the step must hold (`second_view`).

    With an attribute `after_steps`, a second view is not needed before that optimizer step.
    """

    def attach(self, model: nn.Module) -> None:
        """Find the blocks to read and make the buffers that belong to them. Raises `UserError` where there is none."""
        ...


@runtime_checkable
class Asking(Protocol):
    def ask(self, queries: tuple[Queries, ...], states: States) -> tuple[Queries, ...]:
        """More groups of queries for the model's loss, made of the task's; vectors are not normalised yet."""
        ...
