"""The Triton kernels against their references, in the interpreter (`test_kernels.py` runs it so) or on CUDA.

Values and gradients, at sizes that are no multiples of a block, in fp32 and in bf16.
"""

import os
from importlib import import_module

import pytest
import torch
import triton.language as tl
from torch import Tensor

from fullrank.ops import column_attention, kernels, log_sum_exp, silu_attention
from fullrank.ops.kernels import NAMES, TOLERANCE, errors_of

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETING else "cuda")
DTYPES = [torch.float32, torch.bfloat16]
SIZES = {
    "triton_log_sum_exp": [((16,), (1, 1)), ((16,), (67, 141)), ((32,), (130, 5)), ((16,), (3, 300))],
    "triton_column_attention": [((16, 16), (1, 1, 1)), ((16, 32), (2, 1, 70)), ((32, 16), (2, 1, 33))],
    "triton_silu_attention": [((16, 16), (1, 1, 1)), ((16, 32), (1, 2, 70)), ((32, 16), (2, 1, 33))],
}
"""Op -> (blocks of the widths, sizes) of its trial."""
CASES = [(name, *case) for name in NAMES for case in SIZES[name]]

pytestmark = pytest.mark.skipif(
    not INTERPRETING and not torch.cuda.is_available(), reason="needs TRITON_INTERPRET=1 or a CUDA device"
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "blocks", "sizes"), CASES)
def test_values_and_gradients_are_those_of_the_reference(
    name: str, blocks: tuple, sizes: tuple, dtype: torch.dtype
) -> None:
    found = kernels.trial(name)(DEVICE, dtype, blocks, sizes)
    assert found and all(error <= TOLERANCE[dtype] for error in found.values()), found


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key (or item) that is left out, in the kernel alone: the op is not trusted, and says why."""
    module = import_module(f"fullrank.ops.{name}")
    whole = getattr(module, name)

    def without(x: Tensor, w: Tensor, *more):
        return whole(x, torch.cat([w[..., :-1, :], torch.zeros_like(w[..., -1:, :])], -2), *more)

    monkeypatch.setattr(module, name, without)
    blocks, sizes = SIZES[name][-1]
    found = kernels.trial(name)(DEVICE, torch.float32, blocks, sizes)
    assert max(found.values()) > 20 * TOLERANCE[torch.float32]
    kernels.trusted.__wrapped__.cache_clear()
    assert not kernels.trusted(name, DEVICE, torch.float32, blocks)
    kernels.trusted.__wrapped__.cache_clear()


def test_large_scores_do_not_overflow() -> None:
    module = import_module("fullrank.ops.triton_log_sum_exp")
    x = torch.tensor([[1e4], [-1e4]], device=DEVICE)
    w = torch.tensor([[1.0], [-1.0], [0.5]], device=DEVICE)
    assert module.triton_log_sum_exp(x, w).tolist() == [1e4, 1e4]


def test_autocast_and_the_dtypes_of_gradients() -> None:
    module = import_module("fullrank.ops.triton_log_sum_exp")
    x, w = torch.randn(20, 6, device=DEVICE, requires_grad=True), torch.randn(9, 6, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out = module.triton_log_sum_exp(x, w)
    torch.testing.assert_close(out, (x @ w.T).logsumexp(-1), rtol=0.03, atol=0.03)
    dx, dw = torch.autograd.grad(out.square().sum(), (x, w))
    assert out.dtype == dx.dtype == dw.dtype == torch.float32 and x.requires_grad
    (alone,) = torch.autograd.grad(module.triton_log_sum_exp(x, w.detach()).sum(), x)
    assert alone.shape == x.shape


def test_second_derivatives_are_refused_not_wrong() -> None:
    module = import_module("fullrank.ops.triton_silu_attention")
    q, k, v = torch.randn(3, 1, 1, 4, 3, device=DEVICE).requires_grad_().unbind(0)
    out = module.triton_silu_attention(q, k, v, torch.ones(1, 1, 1, 1, device=DEVICE), torch.float32)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_the_ops_call_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel is chosen the op gives what its own code gives, and takes its own code for what no kernel has."""
    asked = []
    for op in (log_sum_exp, kernels):
        monkeypatch.setattr(op, "chosen", lambda name, *_, **__: asked.append(name) or True)
    x, w = (torch.randn(n, 7, device=DEVICE).bfloat16() for n in (21, 40))
    q, k, v = torch.randn(3, 2, 2, 21, 7, device=DEVICE).unbind(0)
    valid = torch.arange(21, device=DEVICE) < torch.tensor([[21], [9]], device=DEVICE)
    n = torch.ones(1, 1, 1, 1, device=DEVICE)
    assert kernels.kernel("triton_log_sum_exp") is kernels.kernel("triton_log_sum_exp")
    near = errors_of(
        lambda a, b: (log_sum_exp.log_sum_exp(a, b),), lambda a, b: (log_sum_exp.log_sum_exp_reference(a, b),), [x, w]
    )
    ours = column_attention.column_attention(q, k, v, valid, causal=True)
    wanted = column_attention.blocked_column_attention(q, k, v, valid, True)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    silu, _, _ = silu_attention.silu_attention(q, k, v, n)
    assert max(near.values()) < TOLERANCE[torch.bfloat16] and asked == [*NAMES]
    column_attention.column_attention(q, k, v, valid, causal=True, dropout=0.5)
    counted = silu_attention.silu_attention(q, k, v, n, counted=valid)
    biased = silu_attention.silu_attention(q, k, v, n, bias=lambda queries, keys: torch.zeros(1, device=DEVICE))
    log_sum_exp.log_sum_exp(x[:0], w)
    assert asked == [*NAMES], "a case without a kernel asked for one"
    torch.testing.assert_close(silu, counted[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(silu, biased[0], rtol=1e-4, atol=1e-5)


def test_dtypes_of_products() -> None:
    wanted = tl.float32 if INTERPRETING else tl.bfloat16
    assert kernels.triton_dtype(torch.bfloat16) == wanted and kernels.triton_dtype(torch.float32) == tl.float32
