"""Ranks of known spectra, of zero, and of single samples."""

import numpy as np
import pytest
import torch

from fullrank.ops.effective_rank import collapse_share, entropy_rank, stable_rank, token_rank
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
