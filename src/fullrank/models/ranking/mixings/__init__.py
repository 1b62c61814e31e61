"""Token mixings of RankMixer and RankElastor: information crosses from token to token.

The room's contract: a `MixingSpec` whose ``build(tokens, width)`` gives a `Mixing`. Its FLOPs are
counted as the ranker's `mixing_0`, `mixing_1`, ...; nothing has to be written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.registry import Room
from fullrank.core.spec import Spec

Mixed = tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]
"""Tokens before the last norm, and behind it."""


class Mixing(nn.Module, ABC):
    """Tokens -> mixed tokens."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"]) -> Mixed:
        """The mixed tokens before the last norm, which diagnostics read (as RankElastor's code does), and behind it,
        which goes on."""

    def start_near_identity(self) -> None:
        """Make what is added to the tokens small at the start (`Blocks.initial`); without weights there is nothing."""


class MixingSpec(Spec):
    """Base of every token mixing."""

    @property
    def divides(self) -> bool:
        """Whether the width of a token must divide by the number of tokens."""
        return False

    @abstractmethod
    def build(self, tokens: int, width: int) -> Mixing: ...


AnyMixing = Annotated[MixingSpec, Room("rankers.mixings")]
"""A setting that takes any token mixing."""
