"""Attention under autocast on a CPU: in fp32, from what it is given."""

import torch

from fullrank.ops.fused_attention import fused_attention


def test_under_autocast_it_is_that_of_fp32() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 3, 2, 5, 4).bfloat16()
    for allowed in (None, torch.eye(5).bool(), torch.randn(5, 5)):
        with torch.autocast("cpu", torch.bfloat16):
            found = fused_attention(*qkv, allowed, 0.0)
        assert torch.equal(found, fused_attention(*qkv.float(), allowed, 0.0))
