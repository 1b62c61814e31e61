"""ReSN equals the quotient of the score matrix, which lies between 0 and its largest squared singular value."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fullrank.models import Step
from fullrank.models.sequential.regularizers import user_vectors
from fullrank.models.sequential.regularizers.resn import ReSN, quotient
from parts import Scoring, model_with
from tiny import close, drawn, histories, padded


def plain(u, v) -> Tensor:
    scores = u @ v.T
    r = scores.sum(0)
    return (scores @ r).square().sum() / (r.square().sum() + 1e-8)


def step(scoring) -> Step:
    return model_with(scoring=scoring).eval().step(padded(histories([5, 7, 2])))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 1000))
def test_equals_the_score_matrix_and_is_bounded(rows, items, dim, seed) -> None:
    u, v = drawn(rows, dim, seed=seed), drawn(items, dim, seed=seed + 1)
    found = float(quotient(u, v))
    assert found == pytest.approx(float(plain(u.double(), v.double())), rel=1e-3, abs=1e-5)
    assert -1e-6 <= found <= float(torch.linalg.matrix_norm((u @ v.T).double(), 2)) ** 2 * (1 + 1e-4) + 1e-6


@pytest.mark.parametrize("scoring", [Scoring(), Scoring(similarity="cosine", temperature=0.2)])
def test_reads_the_scores_that_the_loss_sees(scoring) -> None:
    found = step(scoring)
    (q,) = found.queries
    wanted = quotient(user_vectors(found) / scoring.temperature, q.table.all())
    assert close(ReSN(weight=1.0).build()(found), wanted) and bool(wanted > 0)


def test_gradients_flow_through_the_direction() -> None:
    u, v = drawn(4, 3, seed=1).double(), drawn(7, 3, seed=2).double()
    ours, theirs = (torch.autograd.functional.jacobian(f, (u, v)) for f in (quotient, plain))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-4)


def test_is_finite_without_any_score() -> None:
    u = torch.zeros(3, 2, requires_grad=True)
    quotient(u, torch.zeros(4, 2)).backward()
    assert u.grad is not None and u.grad.isfinite().all()
