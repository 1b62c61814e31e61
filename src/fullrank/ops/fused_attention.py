"""PyTorch's fused attention; on a CPU in fp32 under autocast too: its blocks in bf16 take up to eight times as long."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def fused_attention(
    q: Float[Tensor, "B H T e"],
    k: Float[Tensor, "B H S e"],
    v: Float[Tensor, "B H S f"],
    allowed: Float[Tensor, "..."] | Bool[Tensor, "..."] | None,
    dropout: float,
) -> Float[Tensor, "B H T f"]:
    """softmax(Q K^T / sqrt e) V where `allowed`, or with what it adds to the scores; causal where that is None."""
    if q.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        added = allowed.float() if allowed is not None and allowed.is_floating_point() else allowed
        with torch.autocast("cpu", enabled=False):
            return fused_attention(q.float(), k.float(), v.float(), added, dropout)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None, dropout_p=dropout)
