"""The chunked log-sum-exp against its reference: values and gradients, at odd sizes, for any upstream gradient."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fullrank.ops import attention_log_sum_exp, kernels
from fullrank.ops import log_sum_exp as module
from fullrank.ops.log_sum_exp import log_sum_exp, log_sum_exp_reference
from tests.ops.alike import assert_alike, values_and_gradients

SIZES = [(1, 1, 1), (1, 7, 3), (17, 1, 2), (33, 29, 5), (50, 101, 8), (16, 40, 4)]


def case(m: int, v: int, d: int, scale: float = 1.0) -> tuple:
    generator = torch.Generator().manual_seed(m + v)
    x = torch.randn(m, d, generator=generator) * scale
    w = torch.randn(v, d, generator=generator) * scale
    return x.requires_grad_(), w.requires_grad_()


def upstreams(m: int) -> dict:
    one = torch.zeros(m)
    one[m // 2] = 2.0
    return {"ones": torch.ones(m), "same": torch.full((m,), -0.3), "mixed": torch.linspace(-1, 2, m), "one": one}


def check(x: Tensor, w: Tensor, upstream: Tensor, tolerance: float = 1e-5, **settings) -> None:
    fast, slow = log_sum_exp(x, w, **settings), log_sum_exp_reference(x, w)
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    found, wanted = (torch.autograd.grad(out, (x, w), upstream) for out in (fast, slow))
    torch.testing.assert_close(found, wanted, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("chunk", [1, 500, 10**7])
@pytest.mark.parametrize("size", SIZES)
def test_equals_its_reference(size: tuple, chunk: int) -> None:
    """A chunk holds 16 rows at least, so the sizes have whole chunks, a rest, and fewer rows than one chunk."""
    x, w = case(*size)
    for upstream in upstreams(size[0]).values():
        check(x, w, upstream, chunk_elements=chunk)


def test_large_scores_do_not_overflow() -> None:
    x, w = case(20, 30, 4, scale=20.0)
    check(x, w, torch.linspace(0, 1, 20), 1e-4)
    assert log_sum_exp(torch.full((1, 1), 1e4), torch.tensor([[1.0], [-1.0]])).item() == 1e4


def test_double_inputs() -> None:
    x, w = (t.detach().double().requires_grad_() for t in case(33, 29, 5))
    for upstream in upstreams(33).values():
        check(x, w, upstream)


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision(autocast: bool, attention: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bf16, everything that is summed in fp32, gradients in the dtype of their input."""
    monkeypatch.setattr(module, "attends", lambda device, dtype: attention and dtype == torch.bfloat16)
    x, w = case(50, 101, 8)
    a, b = (x, w) if autocast else (t.detach().bfloat16().requires_grad_() for t in (x, w))
    for upstream in upstreams(50).values():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            fast = log_sum_exp(a, b)
        slow = log_sum_exp_reference(a.float(), b.float())
        assert fast.dtype == torch.float32
        torch.testing.assert_close(fast, slow, rtol=0.02, atol=0.02)
        found, wanted = (torch.autograd.grad(out, (a, b), upstream) for out in (fast, slow))
        for f, g in zip(found, wanted, strict=True):
            assert f.dtype == a.dtype and (f - g).norm() < 0.02 * g.norm() + 0.01


def test_attention_rounds_its_inputs_alone() -> None:
    """Of inputs that bf16 holds, the sum is exact to fp32, and gradients are rounded once or twice."""
    x, w = (t.detach().bfloat16().float().requires_grad_() for t in case(300, 1100, 13, scale=1.5))
    fast, slow = attention_log_sum_exp.attention_log_sum_exp(x, w), log_sum_exp_reference(x, w)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    upstream = torch.linspace(-1, 2, 300)
    for out, wanted in zip(*(torch.autograd.grad(y, (x, w), upstream) for y in (fast, slow)), strict=True):
        assert (out - wanted).norm() < 2**-7 * wanted.norm()


def test_attention_is_taken_where_bf16_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, half = torch.device("cpu"), torch.bfloat16
    kernels.trusted.__wrapped__.cache_clear()
    for amx in (True, False):
        monkeypatch.setattr(attention_log_sum_exp, "multiplies_bf16", lambda device, amx=amx: amx)
        assert attention_log_sum_exp.attends(cpu, half) == amx
    monkeypatch.setattr(attention_log_sum_exp, "multiplies_bf16", lambda device: True)
    assert not attention_log_sum_exp.attends(cpu, torch.float32)
    whole = attention_log_sum_exp._attention  # a query's share that is not lowered by its log-sum-exp
    monkeypatch.setattr(attention_log_sum_exp, "_attention", lambda q, k, v, scale, attn_mask=None: whole(q, k, v))
    kernels.trusted.__wrapped__.cache_clear()
    assert not attention_log_sum_exp.attends(cpu, half), "a fault is seen"
    kernels.trusted.__wrapped__.cache_clear()


def test_one_input_alone_and_repeated_backward() -> None:
    x, w = case(33, 29, 5)
    mixed = torch.linspace(-1, 2, 33)
    for a, b in ((x, w.detach()), (x.detach(), w)):
        assert_alike(log_sum_exp, log_sum_exp_reference, a, b, rtol=1e-5, atol=1e-5)
    out = log_sum_exp(x, w)
    first = torch.autograd.grad(out, x, torch.ones(33), retain_graph=True)[0]
    torch.autograd.grad(out, x, mixed, retain_graph=True)
    assert torch.equal(first, torch.autograd.grad(out, x, torch.ones(33))[0]), "a backward pass changed what it saved"


def test_no_rows() -> None:
    inputs = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    out, _, of_table = values_and_gradients(log_sum_exp, *inputs)
    assert out.shape == (0,) and not of_table.any()


def test_second_derivative_is_refused_not_wrong() -> None:
    x, w = case(5, 6, 2)
    for rows in (1, 5):
        (first,) = torch.autograd.grad(log_sum_exp(x[:rows], w).pow(2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))])
        return result


@pytest.mark.parametrize("kind", ["ones", "mixed"])
def test_the_scores_never_exist_at_once(kind: str) -> None:
    m, v = 400, 300
    x, w = case(m, v, 4)
    with Largest() as seen:
        log_sum_exp(x, w, chunk_elements=20 * v).backward(upstreams(m)[kind])
    assert 0 < seen.elements <= 20 * v
    with Largest() as slow:
        log_sum_exp_reference(x, w).backward(upstreams(m)[kind])
    assert slow.elements >= m * v, "the instrument sees what it should"


def test_nothing_is_differentiated_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plain = module.chunked_pass
    monkeypatch.setattr(
        module, "chunked_pass", lambda x, w, u, rows, wanted: asked.append(wanted) or plain(x, w, u, rows, wanted)
    )
    x, w = case(5, 6, 2)
    with torch.no_grad():
        log_sum_exp(x, w)
    log_sum_exp(x.detach(), w.detach())
    log_sum_exp(x, w)
    assert asked == [False, False, True]
