"""The chunked divergence against its reference: values, gradients, the clamp, one distribution, identical ones."""

from functools import partial

import pytest
import torch

from fullrank.ops.pairwise_kl import pairwise_kl, pairwise_kl_reference
from tests.ops.alike import assert_alike, leaves


@pytest.mark.parametrize("size", [(1, 2, 3, 5), (7, 4, 6, 13), (5, 3, 2, 1), (4, 1, 6, 9), (0, 4, 6, 9)])
@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("maximum", [10.0, 1.0, 0.0])
@pytest.mark.parametrize("chunk", [1, 200, 10**6])
def test_equals_the_reference(size: tuple, attached: bool, maximum: float, chunk: int) -> None:
    rows, count, dim, items = size
    x, w = leaves((rows, count, dim), (items, dim), dtype=torch.float64)
    fast = partial(pairwise_kl, chunk_elements=chunk)
    if rows:
        assert_alike(fast, pairwise_kl_reference, x, w, maximum=maximum, attached=attached)
    else:
        assert fast(x, w, maximum=maximum, attached=attached) == 0


def test_the_same_distributions_do_not_differ() -> None:
    x, w = torch.randn(3, 1, 4).expand(-1, 5, -1), torch.randn(9, 4)
    assert abs(float(pairwise_kl(x, w, maximum=10.0, attached=True))) < 1e-5


def test_gram_identity() -> None:
    """The sum over pairs is n tr G - sum G with G = P log P^T."""
    x, w = torch.randn(1, 4, 6, dtype=torch.float64), torch.randn(9, 6, dtype=torch.float64)
    log_p = (x[0] @ w.T).log_softmax(-1)
    gram = log_p.exp() @ log_p.T
    value = (4 * gram.trace() - gram.sum()) / 12
    torch.testing.assert_close(pairwise_kl(x, w, maximum=1e9, attached=False), value)
