"""Noise on codes against the reference, its rates, and what it is a function of."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.items.perturb import Noise, perturb, perturb_reference
from tiny import histories, padded

SIZES = [(1, 1, (2,)), (3, 5, (23,)), (2, 7, (4, 9, 3)), (4, 1, (1, 1))]
"""B, T, digits of each codebook."""


def codes(b: int, t: int, sizes: tuple) -> Tensor:
    generator = torch.Generator().manual_seed(b + t)
    return torch.stack([torch.randint(0, size, (b, t), generator=generator) for size in sizes], -1)


def noise(b: int, mask: float = 0.2, substitute: float = 0.3, **place: int) -> Noise:
    return Noise(mask, substitute, torch.arange(50, 50 + b), **place)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rates", [(0.2, 0.3), (0.0, 1.0), (1.0, 0.0)])
def test_parity(sizes: tuple, rates: tuple) -> None:
    given, some = codes(*sizes), noise(sizes[0], *rates)
    found, kept = perturb(given, sizes[2], some)
    wanted, left = perturb_reference(given, sizes[2], some)
    assert torch.equal(kept, left) and torch.equal(found[kept], wanted[left])
    assert found.min() >= 0 and (found < torch.tensor(sizes[2])).all()
    if rates == (0.0, 1.0) and min(sizes[2]) > 1:
        assert (found != given).all() and kept.all()
    if rates == (1.0, 0.0):
        assert not kept.any()


def test_rates_and_even_replacement() -> None:
    """Each digit is hit on its own, and every other digit of its codebook is as likely."""
    given = torch.full((40, 50, 8), 3)
    found, kept = perturb(given, (6,) * 8, noise(40, 0.1, 0.3))
    assert abs((~kept).double().mean() - 0.1) < 0.01
    changed = kept & (found != given)
    assert abs(changed.double().mean() - 0.3) < 0.01
    shares = torch.bincount(found[changed], minlength=6).double() / changed.sum()
    assert shares[3] == 0 and ((shares[[0, 1, 2, 4, 5]] - 0.2).abs() < 0.02).all()
    whole = (~kept).double().mean(-1)
    assert ((whole > 0) & (whole < 1)).any(), "the digits of an item are not hit together"


def test_noise_is_a_function_of_its_place() -> None:
    given, some = codes(3, 6, (9, 9)), noise(3, seed=4, step=7)
    first = perturb(given, (9, 9), some)
    assert all(torch.equal(a, b) for a, b in zip(first, perturb(given, (9, 9), some), strict=True))
    for other in (replace(some, seed=5), replace(some, step=8), replace(some, rows=some.rows + 1)):
        assert not all(torch.equal(a, b) for a, b in zip(first, perturb(given, (9, 9), other), strict=True))
    shorter = perturb(given[1:, :4], (9, 9), replace(some, rows=some.rows[1:]))
    assert all(torch.equal(a[1:, :4], b) for a, b in zip(first, shorter, strict=True)), "others' lengths have a say"
    batch = padded(histories([4, 6]), step=2)
    assert Noise.on(batch, 0.1, 0.1).step == 2 and torch.equal(Noise.on(batch, 0.1, 0.1).rows, batch.rows)
