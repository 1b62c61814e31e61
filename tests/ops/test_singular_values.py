"""Ranks of known spectra; the followed singular value converges, and has the exact gradient there."""

import numpy as np
import pytest
import torch

from fullrank.ops.singular_values import (
    PowerIteration,
    collapse_share,
    entropy_rank,
    largest_singular_value,
    stable_rank,
    token_rank,
)
from tiny import drawn


@pytest.mark.parametrize("k", [1, 3, 7])
def test_equal_singular_values_use_every_direction(k: int) -> None:
    sigma = torch.full((k,), 2.5)
    assert entropy_rank(sigma) == pytest.approx(k) and stable_rank(sigma) == pytest.approx(k)
    assert collapse_share(sigma) == pytest.approx(1 / k)


def test_a_single_direction_is_rank_one() -> None:
    sigma = torch.tensor([4.0, 0.0, 0.0])
    assert entropy_rank(sigma) == 1 and stable_rank(sigma) == 1 and collapse_share(sigma) == 1


def test_a_zero_matrix_has_no_direction() -> None:
    sigma = torch.zeros(2, 3)
    for figure in (entropy_rank, stable_rank, collapse_share):
        assert figure(sigma).tolist() == [0, 0]


def test_the_definitions() -> None:
    sigma = torch.tensor([3.0, 2.0, 1.0])
    p = np.array([3, 2, 1]) / 6
    assert entropy_rank(sigma) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert stable_rank(sigma) == pytest.approx(14 / 9) and collapse_share(sigma) == pytest.approx(9 / 14)


def test_tokens_of_each_sample_alone() -> None:
    tokens = drawn(3, 5, 4)
    lengths = torch.tensor([5, 2, 0])
    found = token_rank(tokens, torch.arange(5) < lengths[:, None])
    for row, length in enumerate(lengths.tolist()):
        sigma = np.linalg.svd(tokens[row, :length].double().numpy(), compute_uv=False)
        p = sigma / max(sigma.sum(), 1e-300)
        assert found[row] == pytest.approx(np.exp(-(p * np.log(p)).sum()) if length else 0)


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
