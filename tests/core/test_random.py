"""Numbers that depend on their place alone: pinned bits, equal to plain Python, even, and independent of each other."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from fullrank.core.random import bits_of_rows, uniform_at, uniform_draws, uniform_of_rows

ROWS = np.array([0, 1, 2, 7, 10**6, 2**40])
MANY = np.arange(100_000)
MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """splitmix64's finaliser on unsigned integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference(seed: int, step: int, row: int, draw: int) -> float:
    golden = 0x9E3779B97F4A7C15
    place = mix((seed * golden + step) & MASK)
    key = mix(place ^ ((row * 0xBF58476D1CE4E5B9) & MASK))
    return (mix((key + (draw + 1) * golden) & MASK) >> 11) * 2.0**-53


def test_no_stream_ever_changes() -> None:
    """Values of the first release: subsets, splits, negatives and sampled metrics rest on them."""
    at = ["0x1.5a8688944f9f0p-3", "0x1.3abebbb8df6fdp-1", "0x1.ae35214c8589cp-2",
          "0x1.3eece86b771b0p-2", "0x1.3a7284b089845p-1", "0x1.951e9066348c4p-1"]  # fmt: skip
    assert [x.hex() for x in uniform_at(-3, ROWS, np.arange(6), np.uint64(5)).tolist()] == at
    draws = ["0x1.ac260d5671310p-5", "0x1.d1a990394885cp-3", "0x1.0393d191b8a38p-2",
             "0x1.0152a70dd0054p-1", "0x1.d474554366c2ep-1", "0x1.3e08eab7d2e80p-6"]  # fmt: skip
    assert [x.hex() for x in uniform_draws(-3, 12, torch.from_numpy(ROWS), 1)[:, 0].tolist()] == draws
    of_rows = ["0x1.d2d6af319ae2ep-2", "0x1.7169852efd579p-1", "0x1.4ca60bfa671d9p-1",
               "0x1.d4d3aeba9afe9p-1", "0x1.2d246546a4c90p-5", "0x1.741d5b072d9d7p-1"]  # fmt: skip
    assert [x.hex() for x in uniform_of_rows(7, ROWS).tolist()] == of_rows
    bits = [0x3F7023CE48685D62, 0x7D93D2AE0779AB16, 0x75642EFE96062FD4,
            0x903596B1D0AC3067, 0x7815690C064C89E1, 0x44E69456B6020C72]  # fmt: skip
    assert bits_of_rows(-3, ROWS).tolist() == bits


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (uniform_at(11, MANY, MANY[::-1].copy(), np.uint64(9)), "b0d9db90ab3a513e"),
        (uniform_draws(11, 9, torch.from_numpy(MANY), 3).numpy(), "4d45c3a6febff9e2"),
        (bits_of_rows(11, MANY), "9a066b21bf24325f"),
        (uniform_of_rows(11, MANY), "75403f19d8fa86c3"),
    ],
)
def test_no_bit_of_many_numbers_changes(found: np.ndarray, wanted: str) -> None:
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == wanted


def test_streams_of_numpy_equal_plain_python() -> None:
    golden = 0x9E3779B97F4A7C15
    for seed in (0, 5, -1, 2**63 + 5, 2**70 + 1):
        start = mix((seed + golden) & MASK)
        wanted = [mix((row * golden + start) & MASK) for row in ROWS.tolist()]
        assert bits_of_rows(seed, ROWS).tolist() == wanted
        assert uniform_of_rows(seed, ROWS).tolist() == [(bits >> 11) * 2.0**-53 for bits in wanted]
        state = [seed & MASK] * len(ROWS)
        for part in (ROWS.tolist(), [2**64 - 9] * len(ROWS)):
            state = [mix(((s ^ p) + golden) & MASK) for s, p in zip(state, part, strict=True)]
        found = uniform_at(seed, ROWS, np.uint64(2**64 - 9))
        assert found.tolist() == [(bits >> 11) * 2.0**-53 for bits in state]


def test_draws_equal_plain_python() -> None:
    rows = torch.tensor([0, 1, 5, 123_456_789, 2**62, -3])
    found = uniform_draws(7, 42, rows, 5)
    wanted = [[reference(7, 42, r, d) for d in range(5)] for r in rows.tolist()]
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.tensor(wanted, dtype=torch.float64))


def test_a_row_does_not_depend_on_the_others() -> None:
    rows = torch.arange(100)
    whole = uniform_draws(1, 2, rows, 9)
    assert torch.equal(uniform_draws(1, 2, rows[37:38], 9), whole[37:38])
    assert torch.equal(uniform_draws(1, 2, rows.flip(0), 9), whole.flip(0))
    assert torch.equal(uniform_draws(1, 2, rows, 4), whole[:, :4]), "fewer draws are the first of many"


def test_even_and_uncorrelated() -> None:
    """Every decile of 400,000 numbers within 5 standard errors; no correlation along rows, draws, steps or seeds."""
    x = uniform_draws(0, 0, torch.arange(4000), 100)
    assert float(x.min()) >= 0 and float(x.max()) < 1
    shares = torch.histc(x.float(), 10, 0, 1) / x.numel()
    assert (shares - 0.1).abs().max() < 5 * (0.09 / x.numel()) ** 0.5
    pairs = [
        (x[:-1], x[1:]),
        (x[:, :-1], x[:, 1:]),
        (x, uniform_draws(0, 1, torch.arange(4000), 100)),
        (x, uniform_draws(1, 0, torch.arange(4000), 100)),
    ]
    for a, b in pairs:
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 5 / a.numel() ** 0.5


def test_places_differ() -> None:
    """Neighbouring seeds, steps and rows do not repeat one another's numbers."""
    seen = torch.cat([uniform_draws(s, k, torch.arange(50), 3).flatten() for s in range(5) for k in range(5)])
    assert len(seen.unique()) == len(seen)


def test_any_seed() -> None:
    """A seed beyond 63 bits is folded, not an overflow."""
    rows = torch.arange(3)
    assert torch.equal(uniform_draws(2**63 + 5, 1, rows, 2), uniform_draws(5, 1, rows, 2))
    assert not torch.equal(uniform_draws(2**62, 1, rows, 2), uniform_draws(0, 1, rows, 2))


def test_nothing_asked() -> None:
    assert uniform_draws(0, 0, torch.arange(0), 3).shape == (0, 3)
    assert uniform_draws(0, 0, torch.arange(3), 0).shape == (3, 0)
