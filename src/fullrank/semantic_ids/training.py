"""What a learner may learn from: enough vectors for its codebooks, and not more than it was told."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError


def require_vectors(x: Float[Tensor, "N D"], size: int, name: str) -> None:
    """Raises `UserError` where there are fewer vectors than codes of a level: some could never be learned."""
    if len(x) < size:
        smaller = 1 << (max(len(x) // 4, 1).bit_length() - 1)
        raise UserError(
            f"{name} has {size:,} codes in a level and only {len(x):,} vectors to learn them from; set "
            f"learner.size={smaller}"
        )


def sample_rows(x: Float[Tensor, "N D"], points: int, generator: torch.Generator) -> Float[Tensor, "M D"]:
    """At most so many rows, drawn without repetition, in their order."""
    if len(x) <= points:
        return x
    return x[torch.randperm(len(x), generator=generator)[:points].sort().values]
