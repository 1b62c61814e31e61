"""The two fused kernels and the blocks against the reference: values, gradients, sums, dropout, memory, precision."""

import pytest
import torch
from torch import Tensor

from fullrank.ops import focused_attention as room
from fullrank.ops.focused_attention import (
    RowNorm,
    focused_attention,
    focused_attention_reference,
    focused_attention_with_sums,
    focused_weights,
)  # fmt: skip
from tests.ops.alike import assert_alike, attention_case, kept_floats
from tiny import close

SIZES = [(1, 1, 1, 1, 1), (2, 3, 7, 5, 3), (3, 1, 13, 2, 4), (1, 2, 33, 3, 3)]
"""B, H, T, width of each query, width of values."""
SIGNED = (None, "l1", "rms")
"""Rows that are zero where both maps agree."""
NORMS = (*SIGNED, "softmax", "relu_l1")
EACH = pytest.mark.parametrize("norm", NORMS)
CAUSAL = pytest.mark.parametrize("causal", [True, False])
FACTORS = (1.0, 0.7)


def case(b: int, h: int, t: int, e: int, f: int) -> list:
    """q, k, v, and what is no padding."""
    return attention_case(b, h, t, 2 * e, f)


def allowed_of(valid: Tensor, causal: bool = True) -> Tensor:
    full = torch.ones(valid.shape[1:] * 2, dtype=torch.bool)
    return full.tril()[None, None] if causal else valid[:, None, None, :] & full


@pytest.mark.parametrize("sizes", SIZES)
@EACH
@CAUSAL
@pytest.mark.parametrize("block", [128, 5, 1])
def test_parity(sizes: tuple, norm: RowNorm, causal: bool, block: int) -> None:
    *qkv, valid = case(*sizes)
    allowed = allowed_of(valid, causal)
    mask, settings = None if causal else allowed, {"norm": norm, "block": block}

    def counted(y: Tensor) -> Tensor:
        return y.masked_select(valid[:, None, :, None])

    def reference(*qkv: Tensor) -> tuple:
        y, sums = focused_attention_reference(*qkv, FACTORS, allowed, norm=norm, counted=valid)
        return counted(y), *sums

    def noting(*qkv: Tensor) -> tuple:
        y, sums = focused_attention_with_sums(*qkv, FACTORS, valid, causal=causal, **settings)
        return counted(y), *sums

    assert_alike(noting, reference, *qkv, rtol=1e-4, atol=1e-4)
    assert_alike(
        lambda *qkv: counted(focused_attention(*qkv, FACTORS, mask, **settings)),
        lambda *qkv: reference(*qkv)[0], *qkv, rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def small() -> tuple:
    """q, k, and what may be seen."""
    q, k, _, valid = case(2, 1, 6, 3, 2)
    return q, k, allowed_of(valid)


def agreeing(q: Tensor, k: Tensor) -> list:
    """Queries and keys whose two maps are the same."""
    return [torch.cat([x[..., : x.shape[-1] // 2]] * 2, -1) for x in (q, k)]


@EACH
def test_dropout_is_on_the_difference(norm: RowNorm, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mask for both maps: where they agree a signed row mixes nothing, with dropout as without."""
    q, k, v, valid = case(2, 2, 9, 3, 4)
    if norm in SIGNED:
        assert not focused_attention(*agreeing(q, k), v, (1.0, 1.0), norm=norm, dropout=0.5).any()
    masks = []

    def dropped(a: Tensor, p: float) -> Tensor:
        masks.append((torch.rand_like(a) > p) / (1 - p))
        return a * masks[-1]

    monkeypatch.setattr("fullrank.ops.focused_attention.drop", dropped)
    y = focused_attention(q, k, v, FACTORS, norm=norm, dropout=0.4)
    (mask,) = masks
    assert close(y, (focused_weights(q, k, FACTORS, allowed_of(valid), norm) * mask) @ v, 1e-4)
    several = focused_attention(q, k, v, FACTORS, norm=norm, dropout=0.4, block=4)
    assert len(masks) == 4 and several.shape == y.shape


def test_several_blocks_keep_no_matrix() -> None:
    *qkv, _ = case(1, 1, 96, 4, 4)
    at_once, blocked = (
        kept_floats(lambda block=block: focused_attention(*qkv, FACTORS, norm="l1", block=block)) for block in (96, 16)
    )
    assert at_once > 96 * 96 * 2 and blocked < 96 * 96


def test_the_fused_path_makes_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_) -> None:
        raise AssertionError("the weights are made")

    monkeypatch.setattr(room, "_maps", refused)
    *qkv, valid = case(2, 2, 9, 3, 4)
    focused_attention(*qkv, FACTORS)
    focused_attention_with_sums(*qkv, FACTORS, valid, causal=True)
    for how in (*({"norm": norm} for norm in NORMS[1:]), {"dropout": 0.1}):
        with pytest.raises(AssertionError, match="made"):
            focused_attention(*qkv, FACTORS, **how)


def test_half_precision_subtracts_in_full() -> None:
    """In bf16 the maps are rounded and their difference is not: it comes in fp32."""
    *qkv, _ = case(2, 2, 20, 4, 4)
    exact = focused_attention(*qkv, FACTORS)
    qkv = [x.bfloat16() for x in qkv]
    for norm in NORMS:
        y = focused_attention(*qkv, FACTORS, norm=norm)
        assert y.dtype == torch.float32 and y.isfinite().all()
    assert (focused_attention(*qkv, FACTORS) - exact).abs().max() < 0.05


def test_rows_near_zero() -> None:
    """Where both maps agree a signed row stays zero, and its gradient is finite."""
    q, k, allowed = small()
    for norm in SIGNED:
        a = focused_weights(*agreeing(q, k), (1.0, 1.0), allowed, norm)
        assert not a.any()
        assert all(g.isfinite().all() for g in torch.autograd.grad(a.pow(2).sum(), [q, k]))
    sums = focused_weights(q, k, FACTORS, allowed, "l1").abs().sum(-1)
    assert (sums <= 1).all() and close(sums, torch.ones_like(sums), 1e-3)
    wide = focused_weights(q, k, FACTORS, allowed, "rms").square().sum(-1) / torch.arange(1, 7)
    assert close(wide, torch.ones_like(wide), 1e-2)


@pytest.mark.parametrize("norm", ["softmax", "relu_l1"])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (4.0, 4.0), (0.5, 2.0), (2.0, 0.5)])
@CAUSAL
def test_rows_that_are_distributions(norm: RowNorm, factors: tuple, causal: bool) -> None:
    """Positive rows that sum to one over the keys that may be seen, whatever the factors: Table 4 shows such rows."""
    q, k, _, valid = case(2, 2, 9, 3, 4)
    allowed = allowed_of(valid, causal)
    a = focused_weights(q, k, factors, allowed, norm)
    assert (a >= 0).all() and close(a.sum(-1), torch.ones_like(a[..., 0]), 1e-5)
    assert not a.masked_select(~allowed).any()
    if norm == "softmax":
        least = a.masked_fill(~allowed, torch.inf).amin(-1)
        assert (a.amax(-1) / least <= torch.tensor(sum(factors)).exp() + 1e-4).all(), "inner maps lie in [0, 1]"


def test_softmax_of_equal_maps_is_the_mean() -> None:
    q, k, allowed = small()
    a = focused_weights(*agreeing(q, k), (1.0, 1.0), allowed, "softmax")
    assert close(a, (allowed / allowed.sum(-1, keepdim=True)).expand_as(a), 1e-5)


def test_relu_keeps_what_the_first_map_prefers() -> None:
    """The positive part over its sum, as it reads; where the maps agree, the first one."""
    q, k, allowed = small()
    difference = focused_weights(q, k, FACTORS, allowed)
    a = focused_weights(q, k, FACTORS, allowed, "relu_l1")
    some = difference.relu().sum(-1) > 0.05  # far above eps
    assert some.any() and close(a[some], (difference.relu() / difference.relu().sum(-1, keepdim=True))[some], 1e-3)
    first = focused_weights(*agreeing(q, k), (1.0, 1e-12), allowed)
    a = focused_weights(*agreeing(q, k), (1.0, 1.0), allowed, "relu_l1")
    assert close(a, first, 1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(a.pow(2).sum(), [q, k]))


@EACH
def test_gradients_are_differences(norm: RowNorm) -> None:
    """Finite differences in fp64; the first event's row is constant, and at a kink of relu_l1."""
    q, k, _, valid = case(2, 1, 5, 2, 2)

    def weights(q: Tensor, k: Tensor) -> Tensor:
        return focused_weights(q, k, (2.0, 2.0), allowed_of(valid), norm)[..., 1:, :]

    assert torch.autograd.gradcheck(weights, (q.double(), k.double()), eps=1e-7, atol=1e-4)
