"""Per-token feed-forward networks of RankMixer and RankElastor: each token has weights of its own.

The room's contract: a Spec whose ``build(tokens, width)`` gives a module with ``forward(x) -> (tokens, aux)``, where
`aux` holds scalars to be added to the loss, by name. The residual and its norm belong to the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class FeedForward(Protocol):
    def __call__(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T D"], Mapping[str, Tensor]]: ...
