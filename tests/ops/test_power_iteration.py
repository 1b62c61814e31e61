"""The followed singular value: converges, has the exact gradient there, stands still outside of training."""

import pytest
import torch

from fullrank.ops.power_iteration import PowerIteration, largest_singular_value
from tiny import drawn


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (3, 7), (4, 5, 6), (2, 3, 4, 4)])
def test_converges_to_the_largest_singular_value_and_its_gradient(shape: tuple) -> None:
    weight = drawn(*shape).requires_grad_()
    norm = PowerIteration(weight.detach(), warmup=200)
    torch.testing.assert_close(norm(weight), largest_singular_value(weight), rtol=1e-4, atol=1e-5)
    (found,) = torch.autograd.grad(norm(weight).sum(), weight)
    (wanted,) = torch.autograd.grad(largest_singular_value(weight).sum(), weight)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_one_step_a_call_in_training_and_none_outside() -> None:
    weight = drawn(20, 10)
    norm = PowerIteration(weight, warmup=0)
    rough = norm.eval()(weight)
    before = norm.right.clone()
    norm(weight)
    assert torch.equal(norm.right, before)
    values = [float(norm.train()(weight)) for _ in range(15)]
    assert not torch.equal(norm.right, before)
    assert float(rough) <= values[0] < values[-1] and values == sorted(values), "never above, and ever nearer"
    assert abs(values[-1] - float(largest_singular_value(weight))) < 0.01


def test_zero_and_scaled_matrices() -> None:
    assert PowerIteration(torch.zeros(3, 4), warmup=3)(torch.zeros(3, 4)) == 0
    weight = drawn(6, 5)
    norm = PowerIteration(weight, warmup=100)
    torch.testing.assert_close(norm(3 * weight), 3 * norm(weight))
