"""Attention under autocast on a CPU is in fp32; streams read a shared prefix in place and equal the reference."""

import pytest
import torch

from fullrank.ops.attention import (
    fused_attention,
    stream_mix,
    stream_mix_reference,
    stream_scores,
    stream_scores_reference,
)
from tests.ops.alike import assert_alike, leaves


def test_under_autocast_it_is_that_of_fp32() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(3, 3, 2, 5, 4).bfloat16()
    for allowed in (None, torch.eye(5).bool(), torch.randn(5, 5)):
        with torch.autocast("cpu", torch.bfloat16):
            found = fused_attention(*qkv, allowed, 0.0)
        assert torch.equal(found, fused_attention(*qkv.float(), allowed, 0.0))


@pytest.mark.parametrize("allowed", [None, torch.rand(40, 40) < 0.5 + torch.eye(40), torch.randn(40, 40)])
def test_dropout_leaves_out_weights_and_scales_the_others(allowed: torch.Tensor | None) -> None:
    q, k = leaves((3, 2, 40, 8), (3, 2, 40, 8))
    v = torch.eye(40).expand(3, 2, 40, 40)  # so that what comes out are the weights
    weights, dropped = (fused_attention(q, k, v, allowed, p) for p in (0.0, 0.25))
    kept = dropped != 0
    assert kept[weights > 0].float().mean() == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(dropped, weights * kept / 0.75)
    for ours, plain in zip(
        *(torch.autograd.grad(x.square().sum(), (q, k)) for x in (dropped, weights * kept / 0.75)), strict=True
    ):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


SIZES = [(1, 1, 1, 1, 1, 1), (2, 3, 7, 5, 3, 2), (3, 1, 13, 2, 4, 1), (2, 2, 5, 3, 1, 3), (0, 2, 5, 3, 2, 2)]
"""B, H, T, width, streams, tokens of each stream."""


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size: tuple) -> None:
    b, h, t, e, m, s = size
    q, weights, k, own = leaves((b, h, m, e), (b, h, m, t + s), (b, h, t, e), (b, h, m, s, e))
    assert_alike(stream_scores, stream_scores_reference, q, k, own, rtol=2e-5, atol=2e-5)
    assert_alike(stream_mix, stream_mix_reference, weights, k, own, rtol=2e-5, atol=2e-5)


def test_the_prefix_is_read_in_place() -> None:
    """No tensor as large as the keys of one head is made from a strided projection."""
    qkv = torch.randn(4, 64, 3, 2, 8)
    q, k = torch.randn(4, 2, 2, 8), qkv.permute(2, 0, 3, 1, 4)[1]
    with torch.profiler.profile(profile_memory=True) as profile:
        stream_scores(q, k, torch.randn(4, 2, 2, 1, 8))
    assert max(event.self_cpu_memory_usage for event in profile.events()) < k.numel() * 4 // 2
