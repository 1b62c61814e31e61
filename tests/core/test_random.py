"""Numbers that depend on their place alone: pinned bits, equal to plain Python, even, and independent of each other."""

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


def test_any_seed() -> None:
    """A seed beyond 63 bits is folded, not an overflow."""
    rows = torch.arange(3)
    assert torch.equal(uniform_draws(2**63 + 5, 1, rows, 2), uniform_draws(5, 1, rows, 2))
    assert not torch.equal(uniform_draws(2**62, 1, rows, 2), uniform_draws(0, 1, rows, 2))


def test_nothing_asked() -> None:
    assert uniform_draws(0, 0, torch.arange(0), 3).shape == (0, 3)
    assert uniform_draws(0, 0, torch.arange(3), 0).shape == (3, 0)
