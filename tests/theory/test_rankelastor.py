"""The theorems of RankElastor (KDD 2026, arXiv:2605.23191), as far as they can be proved by example.

Each holds, and fails where it should. Proved: 2.1's inequalities under its assumptions, in a form that needs none; 2.2
at rank one with a positively homogeneous activation; 3.1's inclusion. Theorem 3.2 and the probabilistic half of 2.2 are
no laws: a test shows draws in which they fail, and `analysis/rank_theorems.py` measures them in trained models.

rank is the stable rank |X|_F^2 / |X|_2^2 where not called algebraic.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fullrank.analysis.diagnostics.rank_theorems import transpose_figures
from fullrank.models.ranking.feed_forwards.gelu import Gelu
from fullrank.models.ranking.mixings import BlockTranspose, Full, kronecker, transposed
from fullrank.ops.singular_values import stable_rank

SEEDS = st.integers(0, 2**32 - 1)
HOMOGENEOUS = [F.relu, lambda x: F.leaky_relu(x, 0.1), torch.abs]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rank(x: Tensor) -> float:
    return float(stable_rank(torch.linalg.svdvals(x)))


def algebraic(x: Tensor) -> int:
    return int(torch.linalg.matrix_rank(x, rtol=1e-10))


def flipped(x: Tensor) -> Tensor:
    """Block transpose of one matrix [T, D]."""
    return transposed(x[None])[0]


# Theorem 2.1: block transpose


@given(seed=SEEDS, tokens=st.integers(2, 6), part=st.integers(1, 4), low=st.integers(1, 6))
def test_2_1_the_bounds_without_assumptions(seed: int, tokens: int, part: int, low: int) -> None:
    """With overlap c and coherence s: (1 + c) lower <= rank(M) = 2 (1 + c) min(k, mu) / s <= (1 + c) / s (k + mu)."""
    x = draw(tokens, min(low, tokens), seed=seed) @ draw(min(low, tokens), tokens * part, seed=seed + 1)
    f = {name: float(values[0]) for name, values in transpose_figures(x[None]).items()}
    k, mu, c, s = f["before"], rank(flipped(x)), f["overlap"], f["coherence"]
    assert f["lower"] == pytest.approx(2 * k * mu / (k**0.5 + mu**0.5) ** 2) and f["upper"] == pytest.approx(
        2 * (k + mu)
    )
    assert f["rank"] == pytest.approx(rank(x + flipped(x)), rel=1e-6)
    assert f["rank"] == pytest.approx(2 * (1 + c) * min(k, mu) / s, rel=1e-6)
    assert (1 + c) * f["lower"] <= f["rank"] * (1 + 1e-9) and f["rank"] <= (1 + c) / s * (k + mu) * (1 + 1e-9)
    if c >= 0 and 2 * s >= 1 + c:  # what the assumptions (c = 0, s = 1) are needed for, and no more
        assert f["within"] == 1


def test_2_1_needs_its_assumptions() -> None:
    """Where a matrix is nearly the opposite of its transpose, the printed lower bound is wrong."""
    x = draw(4, 8)
    opposite = x - flipped(x) + 0.3 * torch.ones(4, 8, dtype=torch.float64)
    f = {name: float(values[0]) for name, values in transpose_figures(opposite[None]).items()}
    assert f["overlap"] < -0.5 and f["rank"] < f["lower"] and f["within"] == 0


@given(seed=SEEDS, tokens=st.integers(2, 7), part=st.integers(1, 3), low=st.integers(1, 7))
def test_2_1_algebraic_rank_of_the_transpose(seed: int, tokens: int, part: int, low: int) -> None:
    """mu <= algebraic rank of Y <= min(T, r d)."""
    low = min(low, tokens)
    y = flipped(draw(tokens, low, seed=seed) @ draw(low, tokens * part, seed=seed + 1))
    assert rank(y) <= algebraic(y) + 1e-9
    assert algebraic(y) <= min(tokens, low * part)


def test_2_1_one_direction_becomes_as_many_as_the_parts_are_wide() -> None:
    """The bound r d is reached, so mixing does expand: rank 1 and d = 3 give 3."""
    assert algebraic(flipped(draw(5, 1) @ draw(1, 15, seed=1))) == 3


# Theorem 2.2: feed-forwards


@given(seed=SEEDS, hidden=st.integers(1, 20), which=st.integers(0, len(HOMOGENEOUS) - 1))
def test_2_2_one_direction_becomes_two_at_most(seed: int, hidden: int, which: int) -> None:
    """One direction of signed rows gives algebraic and stable rank <= 2, of one sign exactly 1 (or nothing)."""
    act = HOMOGENEOUS[which]
    scale, v = draw(9, 1, seed=seed), draw(1, 6, seed=seed + 1)
    up, down = draw(6, hidden, seed=seed + 2), draw(hidden, 6, seed=seed + 3)
    out = act(scale @ v @ up) @ down
    assert algebraic(out) <= 2 and rank(out) <= 2 + 1e-9
    same = act(scale.abs() @ v @ up) @ down
    assert not same.any() or (algebraic(same) == 1 and rank(same) == pytest.approx(1))


def test_2_2_is_not_of_gelu_and_not_of_networks_per_token() -> None:
    """What RankMixer has: an activation that is not homogeneous, other weights for each token. Both give more."""
    x = draw(9, 1) @ draw(1, 6, seed=1)
    up, down = draw(6, 12, seed=2), draw(12, 6, seed=3)
    assert algebraic(F.relu(x @ up) @ down) == 2
    assert algebraic(F.gelu(x @ up) @ down) > 2
    torch.manual_seed(0)
    own = Gelu(norm=False, expansion=2.0).build(9, 6).double()
    assert algebraic((own(x[None])[0] - x)[0].detach()) > 2


@pytest.mark.parametrize("act", [F.relu, F.gelu])
def test_2_2_contraction_is_no_law(act: Callable) -> None:
    """Its probabilistic half, at T = 16, D = m = 24: from full rank 49 of 50 draws contract, from rank 3 half do."""
    full, low = (torch.tensor([_ratio(x, act, seed) for seed, x in _many(size)]) for size in (24, 3))
    assert (full < 1).double().mean() > 0.95 and full.mean() < 0.65
    assert (low < 1).double().mean() < 0.6 and low.mean() > 1


def _ratio(x: Tensor, act: Callable, seed: int) -> float:
    up, down = (draw(24, 24, seed=seed + n) / 24**0.5 for n in (1000, 2000))
    return rank(act(x @ up) @ down) / rank(x)


def _many(low: int) -> list:
    """50 matrices 16 x 24 of an algebraic rank, each with a seed."""
    return [(10 * seed, draw(16, low, seed=seed) @ draw(low, 24, seed=seed + 700)) for seed in range(50)]


# Theorem 3.1: full mixing


@given(seed=SEEDS, tokens=st.integers(2, 4), part=st.integers(2, 3))
def test_3_1_what_blocks_can_do_full_mixing_can(seed: int, tokens: int, part: int) -> None:
    """W (x) I_d is a full matrix: the modules with `factor=d` and `factor=1` agree, and so do nested d."""
    torch.manual_seed(seed)
    width = tokens * part
    coarse = Full(norm="post", factor=part).build(tokens, width).double()
    fine = Full(norm="post").build(tokens, width).double()
    fine.load_state_dict(
        coarse.state_dict() | {"linear.weight": torch.kron(coarse.linear.weight, torch.eye(part, dtype=torch.float64))}
    )
    x = draw(3, tokens, width, seed=seed % 1000)
    for ours, theirs in zip(fine(x), coarse(x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_3_1_nested_divisors() -> None:
    """What blocks of width 6 can do, those of 3 can: W (x) I_6 = (W (x) I_2) (x) I_3."""
    weight, x = draw(2, 2), draw(5, 12, seed=1)
    two = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(kronecker(weight, x, 6), kronecker(torch.kron(weight, two), x, 3))


def test_3_1_block_transpose_is_such_a_mixing() -> None:
    """Eq. 2: RankMixer's mixing is full mixing with a commutation matrix."""
    tokens, part = 3, 2
    mine, theirs = Full(norm="post", factor=part).build(tokens, 6), BlockTranspose().build(tokens, 6)
    places = torch.arange(tokens * tokens).view(tokens, tokens).T.flatten()
    mine.linear.weight.data = torch.eye(tokens * tokens)[places]
    x = draw(4, tokens, 6).float()
    for ours, other in zip(mine(x), theirs(x), strict=True):
        torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("part", [2, 3, 4, 6])
def test_3_1_the_inclusion_is_strict(part: int) -> None:
    """Swapping two neighbours inside a block is a full mixing and no W (x) I_d: even the nearest one is far."""
    size = 12
    swap = torch.eye(size, dtype=torch.float64)
    swap[[0, 1]] = swap[[1, 0]]
    blocks = swap.view(size // part, part, size // part, part)
    nearest = torch.einsum("apbp->ab", blocks) / part  # the projection onto {W (x) I_d}
    gap = swap - torch.kron(nearest, torch.eye(part, dtype=torch.float64))
    assert gap.norm() > 1
    again = torch.einsum("apbp->ab", torch.kron(nearest, torch.eye(part, dtype=torch.float64)).view_as(blocks)) / part
    torch.testing.assert_close(again, nearest)


# Theorem 3.2: gated feed-forwards


def gated(x: Tensor, hidden: int, seed: int, act: Callable = F.gelu) -> tuple:
    """The multiplicative term before its readout, and the whole block, with entries of variance 1 / D."""
    width = x.shape[1]
    up, value = (draw(width, hidden, seed=seed + n) / width**0.5 for n in (1, 2))
    down, residual = draw(hidden, width, seed=seed + 3) / width**0.5, draw(width, width, seed=seed + 4) / width**0.5
    inner = act(x @ up) * (x @ value)
    return inner, inner @ down + x @ residual


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_3_2_lifting_holds_where_there_are_enough_tokens(k: int) -> None:
    """Algebraic rank >= min(D, k (k + 1) / 2) with T of at least that: the degree-2 terms are there."""
    x = draw(40, k) @ draw(k, 24, seed=1)
    assert algebraic(gated(x, 72, 5)[0]) >= min(24, k * (k + 1) // 2)


def test_3_2_lifting_forgets_the_number_of_tokens() -> None:
    """T = 16 rows have no rank of 21: the printed bound needs min(T, ...)."""
    x = draw(16, 6) @ draw(6, 24, seed=1)
    assert algebraic(gated(x, 72, 5)[0]) == 16 < min(24, 6 * 7 // 2)


def test_3_2_gain_is_no_law() -> None:
    """At T = 16, D = 24 (the paper's Avazu) and r = 3: a gain from rank 3 on average, a loss from full rank."""
    few, all_of_them = (torch.tensor([rank(gated(x, 72, s)[1]) - rank(x) for s, x in _many(low)]) for low in (3, 24))
    assert few.mean() > 0.1 and 0.5 < (few > 0).double().mean() < 0.9
    assert all_of_them.mean() < -0.5 and (all_of_them > 0).double().mean() < 0.25


def test_the_ladder_of_ranks() -> None:
    """1 <= stable rank <= algebraic rank, on matrices of every rank."""
    found = [draw(8, low, seed=low) @ draw(low, 10, seed=low + 50) for low in range(1, 9)]
    assert all(1 - 1e-9 <= rank(x) <= algebraic(x) + 1e-9 for x in found)
    assert all(algebraic(a) + 1 == algebraic(b) for a, b in pairwise(found))
