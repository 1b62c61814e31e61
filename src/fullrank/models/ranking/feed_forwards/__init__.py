"""Per-token feed-forward networks of RankMixer and RankElastor: each token has weights of its own.

The room's contract: a `FeedForwardSpec` whose ``build(tokens, width)`` gives a `FeedForward`. The
residual and its norm belong to the network. Its FLOPs are counted on shapes, as the ranker's
`ffn_0`, `ffn_1`, ..., so it has nothing to write for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.registry import Room
from fullrank.core.spec import Spec

TokensAndTerms = tuple[Float[Tensor, "B T D"], Mapping[str, Tensor]]
"""The tokens, and scalars to be added to the loss, by name."""


class FeedForward(nn.Module, ABC):
    """Tokens -> tokens, each by itself."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B T D"]) -> TokensAndTerms:
        """The tokens behind the network, and what it adds to the loss."""

    def start_near_identity(self, blocks: int) -> None:
        """Change the starting values so that a stack of so many blocks passes what it
        is given (`Blocks.initial`)."""
        raise UserError(
            f"{type(self).__name__} has no starting values near the identity: leave initial at xavier",
            code="no-identity-path",
        )


class FeedForwardSpec(Spec):
    """Base of every per-token network."""

    @abstractmethod
    def build(self, tokens: int, width: int) -> FeedForward: ...


AnyFeedForward = Annotated[FeedForwardSpec, Room("rankers.feed_forwards")]
"""A setting that takes any per-token network."""
