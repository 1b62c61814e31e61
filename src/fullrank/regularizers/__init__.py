"""Penalties on a training step.

The room's contract: a Spec whose ``build()`` gives a `Penalty`, a module (its buffers are saved with the weights).
A penalty that finds nothing to read raises; it never passes in silence. One that reads more than the `Step` holds by
itself is `Attached`: it names what modules must note for it (`batch.Taps`) and sees the model once, when that is built.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.batch import Step


class Penalty(Protocol):
    def __call__(self, step: Step) -> Float[Tensor, ""]: ...


@runtime_checkable
class Attached(Protocol):
    needs: frozenset[str]
    """What modules must note in every training step (`columns`)."""

    def attach(self, model: nn.Module) -> None:
        """Find the blocks to read and make the buffers that belong to them. Raises `UserError` where there is none."""
        ...
