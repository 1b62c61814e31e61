"""The blocked SiLU attention against its reference: values, gradients, sums, dropout, and what it keeps in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fullrank.ops import query_blocks
from fullrank.ops.silu_attention import silu_attention, silu_attention_reference
from tiny import close

SIZES = [(1, 1, 1, 1, 1), (2, 3, 7, 5, 3), (3, 1, 13, 2, 4), (1, 2, 33, 3, 3), (2, 2, 64, 4, 1)]
"""B, H, T, width of queries and keys, width of values."""


def case(b: int, h: int, t: int, e: int, f: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(t)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    lengths = torch.arange(t, 0, -max(1, t // b))[:b]
    return {
        "q": draw(b, h, t, e),
        "k": draw(b, h, t, e),
        "v": draw(b, h, t, f),
        "table": draw(b, 1, t, t),
        "valid": torch.arange(t) < lengths[:, None],
    }


def fast(
    given: dict[str, Any], *, causal: bool, biased: bool, block: int, **more: Any
) -> tuple[Tensor, Tensor, Tensor]:
    table = given["table"]
    bias = (lambda queries, keys: table[:, :, queries, :keys]) if biased else None
    t = given["q"].shape[2]
    if causal:
        divisor, allowed = torch.arange(1.0, t + 1)[None, None, :, None], None
    else:
        divisor, allowed = torch.full((1, 1, 1, 1), 7.0), given["valid"][:, None, None, :]
    return silu_attention(
        given["q"], given["k"], given["v"], divisor, allowed, bias=bias, counted=given["valid"], block=block, **more
    )


def slow(given: dict[str, Any], *, causal: bool, biased: bool) -> tuple[Tensor, Tensor, Tensor]:
    t = given["q"].shape[2]
    full = torch.ones(t, t, dtype=torch.bool)
    allowed = full.tril()[None, None] if causal else given["valid"][:, None, None, :] & full
    divisor = torch.arange(1.0, t + 1)[None, None, :, None] if causal else torch.full((1, 1, 1, 1), 7.0)
    bias = given["table"] if biased else None
    return silu_attention_reference(
        given["q"], given["k"], given["v"], divisor, allowed, bias=bias, counted=given["valid"]
    )  # fmt: skip


def gradients(out: tuple[Tensor, Tensor, Tensor], given: dict[str, Any], biased: bool) -> tuple[Tensor, ...]:
    y, columns, rows = out
    leaves = [given[name] for name in ("q", "k", "v", *(("table",) if biased else ()))]
    return torch.autograd.grad(y.pow(2).sum() + columns.pow(3).sum() + rows.pow(3).sum(), leaves)


def check_parity(function: Callable[..., tuple[Tensor, Tensor, Tensor]], sizes: tuple[int, ...], block: int) -> None:
    given = case(*sizes)
    for causal in (True, False):
        for biased in (True, False):
            found = function(given, causal=causal, biased=biased, block=block)
            wanted = slow(given, causal=causal, biased=biased)
            for a, b in zip(found, wanted, strict=True):
                assert close(a, b, 1e-4)
            for a, b in zip(gradients(found, given, biased), gradients(wanted, given, biased), strict=True):
                assert close(a, b, 1e-3)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("block", [1, 5, 16, 128])
def test_equals_the_reference(sizes: tuple[int, ...], block: int) -> None:
    check_parity(fast, sizes, block)


def test_parity_can_fail() -> None:
    def shifted(given: dict[str, Any], **settings: Any) -> tuple[Tensor, Tensor, Tensor]:
        return fast(given | {"valid": given["valid"].roll(1, 1)}, **settings)

    with pytest.raises(AssertionError):
        check_parity(shifted, (3, 1, 13, 2, 4), 5)


def test_without_sums() -> None:
    given = case(2, 2, 9, 3, 3)
    one = torch.ones(1, 1, 1, 1)
    y, columns, rows = silu_attention(given["q"], given["k"], given["v"], one, block=4)
    assert columns is None and rows is None and close(y, silu_attention(given["q"], given["k"], given["v"], one)[0])


def test_dropout_is_on_the_mixing_alone_and_repeats_in_the_backward_pass() -> None:
    """The sums are those without it; E[y] is y; and the gradient is that of the very weights that were kept."""
    given = case(1, 2, 24, 3, 3)
    settings: dict[str, Any] = {"causal": True, "biased": True, "block": 7}
    plain_y, *plain_sums = fast(given, **settings)
    torch.manual_seed(0)
    y, *sums = fast(given, **settings, dropout=0.5)
    assert all(map(close, sums, plain_sums)) and not close(y, plain_y)
    (found,) = torch.autograd.grad(y.sum(), given["v"])
    torch.manual_seed(0)
    again, *_ = fast(given, **settings, dropout=0.5)
    assert torch.equal(y, again)
    # y is linear in v, so the gradient with the kept weights gives y back
    assert close((found * given["v"]).sum(), y.sum(), 1e-4)
    many = torch.stack([fast(given, **settings, dropout=0.5)[0].detach() for _ in range(400)])
    assert (many.mean(0) - plain_y).abs().max() < 6 * (many.std(0) / 400**0.5).max()


def saved(block: int, t: int = 96) -> int:
    """Floats that a forward pass keeps for its backward pass."""
    given = case(1, 2, t, 4, 4)
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().size() // 4
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        fast(given, causal=True, biased=False, block=block)
    return sum(kept.values())


def test_several_blocks_keep_no_matrix() -> None:
    assert saved(96) > 96 * 96 * 2
    assert saved(16) < 96 * 96


def test_one_block_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a single block needs no second computation")

    monkeypatch.setattr(query_blocks, "checkpoint", refused)
    given = case(2, 2, 20, 3, 3)
    fast(given, causal=True, biased=True, block=20)
    with torch.no_grad():
        fast(given, causal=True, biased=True, block=6)
    with pytest.raises(AssertionError, match="second"):
        fast(given, causal=True, biased=True, block=19)
