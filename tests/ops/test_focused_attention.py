"""The two fused kernels and the blocks against the reference: values, gradients, sums, dropout, memory, precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.ops import focused_attention as room
from fullrank.ops.focused_attention import (
    RowNorm,
    focused_attention,
    focused_attention_noting,
    focused_attention_reference,
    focused_weights,
)  # fmt: skip
from tiny import close

SIZES = [(1, 1, 1, 1, 1), (2, 3, 7, 5, 3), (3, 1, 13, 2, 4), (1, 2, 33, 3, 3)]
"""B, H, T, width of each query, width of values."""
SIGNED: tuple[RowNorm, ...] = (None, "l1", "rms")
"""Rows that are zero where both maps agree."""
NORMS: tuple[RowNorm, ...] = (*SIGNED, "softmax", "relu_l1")
FACTORS = (1.0, 0.7)


def case(b: int, h: int, t: int, e: int, f: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(t)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    lengths = torch.arange(t, 0, -max(1, t // b))[:b]
    return {"q": draw(b, h, t, 2 * e), "k": draw(b, h, t, 2 * e), "v": draw(b, h, t, f),
            "valid": torch.arange(t) < lengths[:, None]}  # fmt: skip


def allowed_of(given: dict[str, Any], causal: bool) -> Tensor:
    t = given["q"].shape[2]
    full = torch.ones(t, t, dtype=torch.bool)
    return full.tril()[None, None] if causal else given["valid"][:, None, None, :] & full


def leaves(given: dict[str, Any]) -> list[Tensor]:
    return [given[name] for name in ("q", "k", "v")]


def counted(given: dict[str, Any], y: Tensor) -> Tensor:
    return y.masked_select(given["valid"][:, None, :, None])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("causal", [True, False])
def test_parity(sizes: tuple[int, ...], norm: RowNorm, causal: bool) -> None:
    given = case(*sizes)
    qkv = leaves(given)
    allowed = allowed_of(given, causal)
    y, (columns, rows) = focused_attention_reference(*qkv, FACTORS, allowed, norm=norm, counted=given["valid"])  # type: ignore[misc]
    wanted = torch.autograd.grad(counted(given, y).pow(2).sum(), qkv, retain_graph=True)
    pulled = torch.autograd.grad(counted(given, y).pow(2).sum() + columns.pow(2).sum() + rows.pow(3).sum(), qkv)
    for block in (128, 5, 1):
        mask = None if causal else allowed
        found = focused_attention(*qkv, FACTORS, mask, norm=norm, block=block)  # type: ignore[misc]
        assert close(counted(given, found), counted(given, y), 1e-4)
        for a, b in zip(torch.autograd.grad(counted(given, found).pow(2).sum(), qkv), wanted, strict=True):
            assert close(a, b, 1e-3)
        z, (c, r) = focused_attention_noting(  # type: ignore[misc]
            *qkv, FACTORS, given["valid"], causal=causal, norm=norm, block=block
        )
        assert close(counted(given, z), counted(given, y), 1e-4) and close(c, columns, 1e-4) and close(r, rows, 1e-4)
        whole = counted(given, z).pow(2).sum() + c.pow(2).sum() + r.pow(3).sum()
        for a, b in zip(torch.autograd.grad(whole, qkv), pulled, strict=True):
            assert close(a, b, 2e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_dropout_is_on_the_difference(norm: RowNorm, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mask for both maps: where they agree a signed row mixes nothing, with dropout as without."""
    given = case(2, 2, 9, 3, 4)
    q, k, v = leaves(given)
    same_q, same_k = (torch.cat([x[..., :3], x[..., :3]], -1) for x in (q, k))
    if norm in SIGNED:
        assert not focused_attention(same_q, same_k, v, (1.0, 1.0), norm=norm, dropout=0.5).any()
    masks: list[Tensor] = []

    def dropped(a: Tensor, p: float) -> Tensor:
        masks.append((torch.rand_like(a) > p) / (1 - p))
        return a * masks[-1]

    monkeypatch.setattr(F, "dropout", dropped)
    y = focused_attention(q, k, v, FACTORS, norm=norm, dropout=0.4)
    (mask,) = masks
    assert close(y, (focused_weights(q, k, FACTORS, allowed_of(given, True), norm) * mask) @ v, 1e-4)
    several = focused_attention(q, k, v, FACTORS, norm=norm, dropout=0.4, block=4)
    assert len(masks) == 4 and several.shape == y.shape


def saved(**how: Any) -> int:
    """Numbers kept for the backward pass in tensors of more than T x 10 per head."""
    given, kept = case(1, 1, 96, 4, 4), []

    def keep(x: Tensor) -> Tensor:
        kept.append(x.numel() if x.numel() >= 960 else 0)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        focused_attention(*leaves(given), FACTORS, **how)  # type: ignore[misc]
    return sum(kept)


def test_several_blocks_keep_no_matrix() -> None:
    assert saved(norm="l1", block=96) > 96 * 96 * 2
    assert saved(norm="l1", block=16) < 96 * 96


def test_the_fused_path_makes_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("the weights are made")

    monkeypatch.setattr(room, "_maps", refused)
    given = case(2, 2, 9, 3, 4)
    focused_attention(*leaves(given), FACTORS)  # type: ignore[misc]
    focused_attention_noting(*leaves(given), FACTORS, given["valid"], causal=True)  # type: ignore[misc]
    for how in (*({"norm": norm} for norm in NORMS[1:]), {"dropout": 0.1}):
        with pytest.raises(AssertionError, match="made"):
            focused_attention(*leaves(given), FACTORS, **how)  # type: ignore[misc, arg-type]


def test_half_precision_subtracts_in_full() -> None:
    """In bf16 the maps are rounded and their difference is not: it comes in fp32."""
    given = case(2, 2, 20, 4, 4)
    q, k, v = (x.bfloat16() for x in leaves(given))
    exact = focused_attention(*leaves(given), FACTORS)  # type: ignore[misc]
    for norm in NORMS:
        y = focused_attention(q, k, v, FACTORS, norm=norm)
        assert y.dtype == torch.float32 and y.isfinite().all()
    assert (focused_attention(q, k, v, FACTORS) - exact).abs().max() < 0.05


def test_rows_near_zero() -> None:
    """Where both maps agree a signed row stays zero, and its gradient is finite."""
    given = case(2, 1, 6, 3, 2)
    q, k, v = leaves(given)
    allowed = allowed_of(given, True)
    for norm in SIGNED:
        a = focused_weights(torch.cat([q[..., :3]] * 2, -1), torch.cat([k[..., :3]] * 2, -1), (1.0, 1.0), allowed, norm)
        assert not a.any()
        assert all(g.isfinite().all() for g in torch.autograd.grad(a.pow(2).sum(), [q, k]))
    sums = focused_weights(q, k, FACTORS, allowed, "l1").abs().sum(-1)
    assert (sums <= 1).all() and close(sums, torch.ones_like(sums), 1e-3)
    wide = focused_weights(q, k, FACTORS, allowed, "rms").square().sum(-1) / torch.arange(1, 7)
    assert close(wide, torch.ones_like(wide), 1e-2)


def agreeing(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Queries and keys whose two maps are the same."""
    q, k, _ = leaves(given)
    return torch.cat([q[..., :3]] * 2, -1), torch.cat([k[..., :3]] * 2, -1)


@pytest.mark.parametrize("norm", ["softmax", "relu_l1"])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (4.0, 4.0), (0.5, 2.0), (2.0, 0.5)])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_are_distributions(norm: RowNorm, factors: tuple[float, float], causal: bool) -> None:
    """Positive rows that sum to one over the keys that may be seen, whatever the factors: Table 4 shows such rows."""
    given = case(2, 2, 9, 3, 4)
    q, k, _ = leaves(given)
    allowed = allowed_of(given, causal)
    a = focused_weights(q, k, factors, allowed, norm)
    assert (a >= 0).all() and close(a.sum(-1), torch.ones_like(a[..., 0]), 1e-5)
    assert not a.masked_select(~allowed).any()
    if norm == "softmax":
        least = a.masked_fill(~allowed, torch.inf).amin(-1)
        assert (a.amax(-1) / least <= torch.tensor(sum(factors)).exp() + 1e-4).all(), "inner maps lie in [0, 1]"


def test_softmax_of_equal_maps_is_the_mean() -> None:
    given = case(2, 1, 6, 3, 2)
    allowed = allowed_of(given, True)
    a = focused_weights(*agreeing(given), (1.0, 1.0), allowed, "softmax")
    assert close(a, (allowed / allowed.sum(-1, keepdim=True)).expand_as(a), 1e-5)


def test_relu_keeps_what_the_first_map_prefers() -> None:
    """The positive part over its sum, as it reads; where the maps agree, the first one."""
    given = case(2, 1, 6, 3, 2)
    q, k, _ = leaves(given)
    allowed = allowed_of(given, True)
    difference = focused_weights(q, k, FACTORS, allowed)
    a = focused_weights(q, k, FACTORS, allowed, "relu_l1")
    some = difference.relu().sum(-1) > 0.05  # far above eps
    assert some.any() and close(a[some], (difference.relu() / difference.relu().sum(-1, keepdim=True))[some], 1e-3)
    doubled, twice = agreeing(given)
    first = focused_weights(doubled, twice, (1.0, 1e-12), allowed)
    a = focused_weights(doubled, twice, (1.0, 1.0), allowed, "relu_l1")
    assert close(a, first, 1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(a.pow(2).sum(), [q, k]))


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_differences(norm: RowNorm) -> None:
    """Finite differences in fp64; the first event's row is constant, and at a kink of relu_l1."""
    given = case(2, 1, 5, 2, 2)
    qkv = [x.detach().double().requires_grad_() for x in leaves(given)]

    def weights(q: Tensor, k: Tensor) -> Tensor:
        return focused_weights(q, k, (2.0, 2.0), allowed_of(given, True), norm)[..., 1:, :]

    assert torch.autograd.gradcheck(weights, tuple(qkv[:2]), eps=1e-7, atol=1e-4)
