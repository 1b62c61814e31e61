"""LogDet by hand: its value at known spectra, without full rank, under autocast, and of users."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.models import Step
from fullrank.models.sequential.regularizers import user_vectors
from fullrank.models.sequential.regularizers.logdet import LogDet, divergence
from parts import model_with
from tiny import ITEMS, Flat, close, drawn, histories, padded

DIM, LONGEST = 6, 12


def step(table=None, extra=0) -> Step:
    found = model_with(dim=DIM, max_length=LONGEST).eval().step(padded(histories([5, 7]), extra=extra))
    if table is None:
        return found
    return replace(found, queries=tuple(replace(q, table=Flat(table)) for q in found.queries))


def orthonormal() -> Tensor:
    return torch.linalg.qr(drawn(ITEMS, DIM))[0]


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
def test_by_hand(size) -> None:
    """For orthogonal vectors of length s: D (s^2 - 2 log s)."""
    value = LogDet(weight=1).build()(step(size * orthonormal()))
    assert abs(value.item() - DIM * (size**2 - 2 * math.log(size))) < 1e-4


@pytest.mark.parametrize("rows", [1, 3, DIM, 2 * DIM])
def test_equals_the_definition_in_double(rows) -> None:
    """Also with fewer vectors than dimensions, in value and gradient."""
    z = drawn(rows, DIM).requires_grad_()
    exact = z.detach().double().requires_grad_()
    gram = exact.T @ exact + 1e-6 * torch.eye(DIM, dtype=torch.float64)
    wanted = gram.trace() - torch.logdet(gram)
    value = divergence(z, 1e-6)
    torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    value.backward()
    wanted.backward()
    torch.testing.assert_close(z.grad.double(), exact.grad, rtol=1e-3, atol=1e-3)


def test_small_eigenvalues_survive_autocast() -> None:
    thin = step(orthonormal() * torch.logspace(0, -3, DIM))
    with torch.autocast("cpu", torch.bfloat16):
        rough = LogDet(weight=1, ridge=1e-9).build()(thin)
    torch.testing.assert_close(rough, LogDet(weight=1, ridge=1e-9).build()(thin))


def test_a_user_is_the_sum_of_its_states_over_the_longest_history() -> None:
    """Whatever the padding; and the users' term is added with its own weight."""
    short, padded_more = step(), step(extra=4)
    tokens = short.states.tokens
    wanted = torch.stack([tokens[0, :4].sum(0), tokens[1, :6].sum(0)]) / LONGEST
    assert close(user_vectors(short), wanted) and close(user_vectors(padded_more), wanted)
    items = LogDet().build()(short)
    both = LogDet(user_weight=0.01).build()(short)
    assert close(both, items + 0.01 * divergence(wanted, 1e-6))
