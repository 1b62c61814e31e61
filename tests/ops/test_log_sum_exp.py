"""The chunked log-sum-exp against its reference: values and gradients, at odd sizes, for any upstream gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fullrank.ops import log_sum_exp as module
from fullrank.ops.log_sum_exp import log_sum_exp, log_sum_exp_reference

SIZES = [(1, 1, 1), (1, 7, 3), (17, 1, 2), (33, 29, 5), (50, 101, 8), (16, 40, 4)]


def case(m: int, v: int, d: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m + v)
    x = torch.randn(m, d, generator=generator) * scale
    w = torch.randn(v, d, generator=generator) * scale
    return x.requires_grad_(), w.requires_grad_()


def upstreams(m: int) -> dict[str, Tensor]:
    one = torch.zeros(m)
    one[m // 2] = 2.0
    return {"ones": torch.ones(m), "same": torch.full((m,), -0.3), "mixed": torch.linspace(-1, 2, m), "one": one}


def check(function, x: Tensor, w: Tensor, upstream: Tensor, tolerance: float = 1e-5) -> None:  # noqa: ANN001
    fast = function(x, w)
    slow = log_sum_exp_reference(x, w)
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    found = torch.autograd.grad(fast, (x, w), upstream)
    wanted = torch.autograd.grad(slow, (x, w), upstream)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("chunk", [1, 500, 10**7])
@pytest.mark.parametrize("size", SIZES)
def test_equals_its_reference(size: tuple[int, int, int], chunk: int) -> None:
    """A chunk holds 16 rows at least, so the sizes have whole chunks, a rest, and fewer rows than one chunk."""
    x, w = case(*size)
    for upstream in upstreams(size[0]).values():
        check(lambda a, b: log_sum_exp(a, b, chunk_elements=chunk), x, w, upstream)


def test_large_scores_do_not_overflow() -> None:
    x, w = case(20, 30, 4, scale=20.0)
    check(log_sum_exp, x, w, torch.linspace(0, 1, 20), 1e-4)
    assert log_sum_exp(torch.full((1, 1), 1e4), torch.tensor([[1.0], [-1.0]])).item() == 1e4


def test_double_and_half_inputs() -> None:
    x, w = (t.detach().double().requires_grad_() for t in case(33, 29, 5))
    for upstream in upstreams(33).values():
        check(log_sum_exp, x, w, upstream)
    a, b = (t.detach().bfloat16().requires_grad_() for t in case(33, 29, 5))
    for upstream in upstreams(33).values():
        found = torch.autograd.grad(log_sum_exp(a, b), (a, b), upstream)
        wanted = torch.autograd.grad(log_sum_exp_reference(a.float(), b.float()), (a, b), upstream)
        for f, g in zip(found, wanted, strict=True):
            assert f.dtype == torch.bfloat16
            assert (f - g).norm() < 0.03 * g.norm() + 0.01


def test_autocast() -> None:
    """Products in bf16, everything that is summed in fp32, gradients in the dtype of their input."""
    x, w = case(50, 101, 8)
    for upstream in upstreams(50).values():
        with torch.autocast("cpu", torch.bfloat16):
            fast = log_sum_exp(x, w)
        assert fast.dtype == torch.float32
        slow = log_sum_exp_reference(x, w)
        torch.testing.assert_close(fast, slow, rtol=0.02, atol=0.02)
        found = torch.autograd.grad(fast, (x, w), upstream)
        wanted = torch.autograd.grad(slow, (x, w), upstream)
        for f, g in zip(found, wanted, strict=True):
            assert f.dtype == torch.float32
            assert (f - g).norm() < 0.02 * g.norm() + 0.01


def test_one_input_alone_and_repeated_backward() -> None:
    x, w = case(33, 29, 5)
    mixed = torch.linspace(-1, 2, 33)
    for a, b in ((x, w.detach()), (x.detach(), w)):
        wanted = a if a.requires_grad else b
        (found,) = torch.autograd.grad(log_sum_exp(a, b), wanted, mixed)
        (slow,) = torch.autograd.grad(log_sum_exp_reference(a, b), wanted, mixed)
        torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-4)
    out = log_sum_exp(x, w)
    first = torch.autograd.grad(out, x, torch.ones(33), retain_graph=True)[0]
    torch.autograd.grad(out, x, mixed, retain_graph=True)
    assert torch.equal(first, torch.autograd.grad(out, x, torch.ones(33))[0]), "a backward pass changed what it saved"


def test_no_rows() -> None:
    x, w = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    out = log_sum_exp(x, w)
    assert out.shape == (0,)
    out.sum().backward()
    assert w.grad is not None and not w.grad.any()


def test_second_derivative_is_refused_not_wrong() -> None:
    x, w = case(5, 6, 2)
    for rows in (1, 5):
        (first,) = torch.autograd.grad(log_sum_exp(x[:rows], w).pow(2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
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


def test_planted_faults_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass that scales for every upstream gradient, and a chunk that is left out."""
    x, w = case(33, 29, 5)

    def scaled(a: Tensor, b: Tensor) -> Tensor:
        out = log_sum_exp(a, b)
        return out + (out.mean() - out).detach() * 0 + (out.mean() - out) - (out.mean() - out).detach()

    check(scaled, x, w, torch.ones(33))
    with pytest.raises(AssertionError):
        check(scaled, x, w, torch.linspace(-1, 2, 33))
    with pytest.raises(AssertionError):
        check(lambda a, b: log_sum_exp(a, b[:-1]), x, w, torch.ones(33))
