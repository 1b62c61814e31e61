"""Penalties on a training step.

The room's contract: a Spec whose ``build()`` gives a `Penalty`, a module (its buffers are saved with the weights).
A penalty that finds nothing to read raises; it never passes in silence.
"""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from fullrank.batch import Step


class Penalty(Protocol):
    def __call__(self, step: Step) -> Float[Tensor, ""]: ...
