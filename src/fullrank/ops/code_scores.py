"""Scores of items from the scores of their codes: s[b, i] = sum_k levels[b, rows[i, k]], without a [B, n, K] tensor.

One item is the sum of K rows of a table [N, B], all users side by side, which torch's embedding bag adds in registers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def code_scores(levels: Float[Tensor, "N B"], rows: Int[Tensor, "n K"]) -> Float[Tensor, "n B"]:
    """Sums of the rows of `levels` that each item's `rows` name (int32 or int64), in the type of `levels`.

    A sum over K in a fixed order: an item's score does not depend on the items or the users beside it.
    """
    return F.embedding_bag(rows, levels, mode="sum")


def code_scores_reference(levels: Float[Tensor, "N B"], rows: Int[Tensor, "n K"]) -> Float[Tensor, "n B"]:
    """The reference, which makes everything that it adds."""
    return torch.stack([levels[row] for row in rows.T.long()]).sum(0)
