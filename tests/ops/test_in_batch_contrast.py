"""The fused in-batch contrast against its reference: values, gradients, rows of one user, one row, wide scores."""

import pytest
import torch
import torch.nn.functional as F

from fullrank.ops.in_batch_contrast import (
    in_batch_contrast,
    in_batch_contrast_reference,
    in_batch_triplet,
    in_batch_triplet_reference,
)
from tests.ops.alike import assert_alike, leaves, values_and_gradients
from tiny import close, drawn


@pytest.mark.parametrize("users", [None, [4, 1, 4, 4, 2, 1, 7], [3] * 7])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("temperature", "unit"), [(1.0, True), (0.03, True), (0.5, False)])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_equals_the_reference(users: list | None, both: bool, temperature: float, unit: bool, rows: int) -> None:
    pair = drawn(2, 3, rows, 5)
    a, b = (F.normalize(pair, dim=-1) if unit else pair).unbind()
    who = None if users is None else torch.tensor(users[:rows])
    settings = {"rtol": 1e-4, "atol": 1e-5, "temperature": temperature, "both": both}
    inputs = a.clone().requires_grad_(), b.clone().requires_grad_(), who
    assert_alike(in_batch_contrast, in_batch_contrast_reference, *inputs, **settings)


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 0, 4), (0, 3, 4)])
def test_nobody_to_be_told_from(shape: tuple) -> None:
    for found in values_and_gradients(in_batch_contrast, *leaves(shape, shape), temperature=1.0, both=True):
        assert (found.abs() < 1e-6).all()


@pytest.mark.parametrize(("rows", "dim"), [(1, 3), (2, 1), (5, 7), (13, 4)])
@pytest.mark.parametrize("margin", [0.0, 0.2, 1.5])
def test_triplet_parity(rows: int, dim: int, margin: float) -> None:
    pair = leaves((rows, dim), (rows, dim))
    assert_alike(in_batch_triplet, in_batch_triplet_reference, *pair, margin=margin, rtol=2e-5, atol=2e-5)


def test_triplet_by_hand() -> None:
    a = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert in_batch_triplet(a, a, 0.2) == 0, "partners in place, others at a right angle"
    assert close(in_batch_triplet(a, a.flip(0), 0.2), torch.tensor(0.2)), "as far from the partner as from the other"
    assert in_batch_triplet(a[:1], a[:1], 0.2) == 0
