"""Token mixings of RankMixer and RankElastor: information crosses from token to token.

The room's contract: a Spec whose ``build(tokens, width)`` gives a module with ``forward(x) -> (mixed, normalised)``:
the mixed tokens before the last norm, which diagnostics read (as RankElastor's code does), and behind it, which goes
on. A property `divides` says that the width must divide by the number of tokens.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Mixing(Protocol):
    def __call__(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]: ...
