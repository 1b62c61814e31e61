"""An answer in codes: an item's score is the sum of the scores of its codes, one from each level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.ops.code_scores import code_scores


@dataclass(frozen=True)
class CodeScorer:
    """Satisfies `batch.Scorer`, for existing items alone. A block takes users x items of memory, whatever K is."""

    levels: Float[Tensor, "N B"]
    """Scores of every code of every level, one level below the other; users side by side. Larger is better."""
    sizes: tuple[int, ...]
    """Codes of each level; their sum is N."""
    rows: Int[Tensor, "V K"]
    """The rows of each item's codes."""

    @property
    def size(self) -> int:
        return len(self.rows)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        return code_scores(self.levels, self.rows[low:high]).T


def log_probabilities(logits: Sequence[Float[Tensor, "B _"]]) -> Float[Tensor, "N B"]:
    """`CodeScorer.levels` of items scored by the mean log-probability of their codes (RPG, Eq. 6)."""
    return torch.cat([level.float().log_softmax(-1) for level in logits], 1).T.contiguous() / len(logits)
