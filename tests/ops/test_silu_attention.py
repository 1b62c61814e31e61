"""The blocked SiLU attention against its reference: values, gradients, sums, dropout, and what it keeps in memory."""

from functools import partial

import pytest
import torch
from torch import Tensor

from fullrank.ops import attention
from fullrank.ops.silu_attention import silu_attention, silu_attention_reference
from tests.ops.alike import assert_alike, attention_case, kept_floats, leaves
from tiny import close

SIZES = [(1, 1, 1, 1, 1), (2, 3, 7, 5, 3), (3, 1, 13, 2, 4), (1, 2, 33, 3, 3), (2, 2, 64, 4, 1)]
"""B, H, T, width of queries and keys, width of values."""


def case(b: int, h: int, t: int, e: int, f: int) -> dict:
    q, k, v, valid = attention_case(b, h, t, e, f)
    (table,) = leaves((b, 1, t, t))
    return {"q": q, "k": k, "v": v, "table": table, "valid": valid}


def divisor(t: int, causal: bool) -> Tensor:
    return torch.arange(1.0, t + 1)[None, None, :, None] if causal else torch.full((1, 1, 1, 1), 7.0)


def fast(q: Tensor, k: Tensor, v: Tensor, table: Tensor, valid: Tensor, *, causal: bool, biased: bool, **more) -> tuple:
    bias = (lambda queries, keys: table[:, :, queries, :keys]) if biased else None
    allowed = None if causal else valid[:, None, None, :]
    return silu_attention(q, k, v, divisor(q.shape[2], causal), allowed, bias=bias, counted=valid, **more)


def slow(q: Tensor, k: Tensor, v: Tensor, table: Tensor, valid: Tensor, *, causal: bool, biased: bool) -> tuple:
    t = q.shape[2]
    full = torch.ones(t, t, dtype=torch.bool)
    allowed = full.tril()[None, None] if causal else valid[:, None, None, :] & full
    return silu_attention_reference(
        q, k, v, divisor(t, causal), allowed, bias=table if biased else None, counted=valid
    )  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("block", [1, 5, 16, 128])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_the_reference(sizes: tuple, block: int, causal: bool, biased: bool) -> None:
    blocked = partial(fast, block=block)
    assert_alike(blocked, slow, *case(*sizes).values(), causal=causal, biased=biased, rtol=1e-4, atol=1e-4)


def test_without_sums() -> None:
    q, k, v, *_ = case(2, 2, 9, 3, 3).values()
    one = torch.ones(1, 1, 1, 1)
    y, columns, rows = silu_attention(q, k, v, one, block=4)
    assert columns is None and rows is None and close(y, silu_attention(q, k, v, one)[0])


def test_dropout_is_on_the_mixing_alone_and_repeats_in_the_backward_pass() -> None:
    """The sums are those without it; E[y] is y; and the gradient is that of the very weights that were kept."""
    given = case(1, 2, 24, 3, 3)
    settings = {"causal": True, "biased": True, "block": 7}
    plain_y, *plain_sums = fast(**given, **settings)
    torch.manual_seed(0)
    y, *sums = fast(**given, **settings, dropout=0.5)
    assert all(map(close, sums, plain_sums)) and not close(y, plain_y)
    (found,) = torch.autograd.grad(y.sum(), given["v"])
    torch.manual_seed(0)
    again, *_ = fast(**given, **settings, dropout=0.5)
    assert torch.equal(y, again)
    # y is linear in v, so the gradient with the kept weights gives y back
    assert close((found * given["v"]).sum(), y.sum(), 1e-4)
    many = torch.stack([fast(**given, **settings, dropout=0.5)[0].detach() for _ in range(400)])
    assert (many.mean(0) - plain_y).abs().max() < 6 * (many.std(0) / 400**0.5).max()


def saved(block: int) -> int:
    """Floats that a forward pass keeps for its backward pass."""
    given = case(1, 2, 96, 4, 4)
    return kept_floats(lambda: fast(**given, causal=True, biased=False, block=block))


def test_several_blocks_keep_no_matrix() -> None:
    assert saved(96) > 96 * 96 * 2
    assert saved(16) < 96 * 96


def test_one_block_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_, **__) -> None:
        raise AssertionError("a single block needs no second computation")

    monkeypatch.setattr(attention, "checkpoint", refused)
    given = case(2, 2, 20, 3, 3)
    fast(**given, causal=True, biased=True, block=20)
    with torch.no_grad():
        fast(**given, causal=True, biased=True, block=6)
    with pytest.raises(AssertionError, match="second"):
        fast(**given, causal=True, biased=True, block=19)
