"""Numbers that depend on their place alone: as a reference in plain Python, even, and independent of each other."""

from __future__ import annotations

import torch

from fullrank.ops.place_random import uniform

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """splitmix64's finaliser on unsigned integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow(seed: int, step: int, row: int, draw: int) -> float:
    golden = 0x9E3779B97F4A7C15
    place = mix((seed * golden + step) & MASK)
    key = mix(place ^ ((row * 0xBF58476D1CE4E5B9) & MASK))
    return (mix((key + (draw + 1) * golden) & MASK) >> 11) * 2.0**-53


def test_equals_its_reference() -> None:
    rows = torch.tensor([0, 1, 5, 123_456_789, 2**62, -3])
    found = uniform(7, 42, rows, 5)
    wanted = [[slow(7, 42, r, d) for d in range(5)] for r in rows.tolist()]
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.tensor(wanted, dtype=torch.float64))


def test_a_row_does_not_depend_on_the_others() -> None:
    rows = torch.arange(100)
    whole = uniform(1, 2, rows, 9)
    assert torch.equal(uniform(1, 2, rows[37:38], 9), whole[37:38])
    assert torch.equal(uniform(1, 2, rows.flip(0), 9), whole.flip(0))
    assert torch.equal(uniform(1, 2, rows, 4), whole[:, :4]), "fewer draws are the first of many"


def test_even_and_uncorrelated() -> None:
    """Every decile of 400,000 numbers within 5 standard errors; no correlation along rows, draws, steps or seeds."""
    x = uniform(0, 0, torch.arange(4000), 100)
    assert float(x.min()) >= 0 and float(x.max()) < 1
    shares = torch.histc(x.float(), 10, 0, 1) / x.numel()
    assert (shares - 0.1).abs().max() < 5 * (0.09 / x.numel()) ** 0.5
    pairs = [
        (x[:-1], x[1:]),
        (x[:, :-1], x[:, 1:]),
        (x, uniform(0, 1, torch.arange(4000), 100)),
        (x, uniform(1, 0, torch.arange(4000), 100)),
    ]
    for a, b in pairs:
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 5 / a.numel() ** 0.5


def test_places_differ() -> None:
    """Neighbouring seeds, steps and rows do not repeat one another's numbers."""
    seen = torch.cat([uniform(s, k, torch.arange(50), 3).flatten() for s in range(5) for k in range(5)])
    assert len(seen.unique()) == len(seen)


def test_any_seed() -> None:
    """A seed beyond 63 bits is folded, not an overflow."""
    rows = torch.arange(3)
    assert torch.equal(uniform(2**63 + 5, 1, rows, 2), uniform(5, 1, rows, 2))
    assert not torch.equal(uniform(2**62, 1, rows, 2), uniform(0, 1, rows, 2))


def test_nothing_asked() -> None:
    assert uniform(0, 0, torch.arange(0), 3).shape == (0, 3)
    assert uniform(0, 0, torch.arange(3), 0).shape == (3, 0)
