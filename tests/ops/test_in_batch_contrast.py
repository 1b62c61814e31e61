"""The fused in-batch contrast against its reference: values, gradients, rows of one user, one row, wide scores."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fullrank.ops.in_batch_contrast import in_batch_contrast, in_batch_contrast_reference

USERS = [None, [4, 1, 4, 4, 2, 1, 7], [3] * 7]


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("temperature", "unit"), [(1.0, True), (0.03, True), (0.5, False)])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_equals_the_reference(users: list[int] | None, both: bool, temperature: float, unit: bool, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    pair = [torch.randn(3, rows, 5, generator=generator) for _ in range(2)]
    a, b = ((F.normalize(x, dim=-1) if unit else x).requires_grad_() for x in pair)
    who = None if users is None else torch.tensor(users[:rows])
    fast = 3 * in_batch_contrast(a, b, who, temperature=temperature, both=both)
    slow = 3 * in_batch_contrast_reference(a, b, who, temperature=temperature, both=both)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    for x, y in zip(torch.autograd.grad(fast, (a, b)), torch.autograd.grad(slow, (a, b)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_nobody_to_be_told_from() -> None:
    for shape in ((2, 1, 4), (2, 0, 4), (0, 3, 4)):
        a, b = torch.randn(*shape).requires_grad_(), torch.randn(*shape).requires_grad_()
        value = in_batch_contrast(a, b, temperature=1.0, both=True)
        value.backward()
        assert a.grad is not None and abs(float(value.detach())) < 1e-6
        assert (a.grad.abs() < 1e-6).all()
