"""The theorems of SPRINT (KDD 2026), as far as they can be proved by example: each holds, and fails where it should.

The inequalities are checked with explicit constants in the places of the paper's O(.). Where the paper prints something
that does not hold, a test shows the counterexample and the form that does.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullrank.analysis.diagnostics.alignment import principal
from fullrank.analysis.diagnostics.bound import Bound
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from tests.analysis.conftest import everyone, model_of, observed, recommender, shop
from tests.analysis.test_bound import by_place, held

SEEDS = st.integers(0, 2**32 - 1)


def norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


def orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


# Theorem A.3 and Corollary A.4: Cesaro attention


def cesaro(m: int) -> np.ndarray:
    """Eq. A.28: each event attends equal_weights to itself and to what came before it."""
    return np.tril(np.ones((m, m))) / np.arange(1, m + 1)[:, None]


@pytest.mark.parametrize("m", [1, 2, 3, 7, 20, 50, 133, 400])
def test_cesaro_vectors_align_at_least_as_half_the_singular_value(m: int) -> None:
    """Eq. A.35, and the identity A.34 that proves it."""
    u, sigma, v = np.linalg.svd(cesaro(m))
    cosine, first = float(u[:, 0] @ v[0]), v[0]
    assert cosine >= sigma[0] / 2 - 1e-12 and sigma[0] < 2
    steps = np.arange(1, m) * (first[:-1] - first[1:]) ** 2
    assert cosine / sigma[0] == pytest.approx(0.5 + m / 2 * first[-1] ** 2 + 0.5 * steps.sum())


def test_cesaro_values_rise_towards_two() -> None:
    """To the digits known for m = 50, 200, 1000; the limit is slow: at 1000 events the bound on the cosine is 0.87."""
    sizes = (5, 50, 200, 1000)
    found = [float(principal(torch.from_numpy(cesaro(m)))[1]) for m in sizes]
    assert found[1:] == pytest.approx([1.58, 1.67, 1.75], abs=0.006)
    assert all(a < b < 2 for a, b in pairwise(found))


@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), SEEDS)
def test_blocks_of_all_users_align_too(sizes: list, seed: int) -> None:
    """Corollary A.4, where several users of equal length make the principal vectors ambiguous: any pair will do."""
    whole = np.zeros((sum(sizes), sum(sizes)))
    at, ends = 0, []
    for size in sizes:
        whole[at : at + size, at : at + size] = cesaro(size)
        ends.append((at, at + size))
        at += size
    sigma = norm(whole)
    rng = np.random.default_rng(seed)
    v = np.zeros(len(whole))
    for low, high in ends:
        if high - low == max(sizes):
            v[low:high] = rng.normal() * np.linalg.svd(whole[low:high, low:high])[2][0]
    v /= np.linalg.norm(v)
    u = whole @ v / sigma
    assert np.linalg.norm(whole.T @ u - sigma * v) < 1e-9, "u and v are a principal pair"
    assert u @ v >= sigma / 2 - 1e-9
    assert sigma == pytest.approx(norm(cesaro(max(sizes))))


def test_attention_that_is_not_cesaro_may_be_less_aligned() -> None:
    """The check can fail: every event attends to the first alone."""
    m = 20
    sink = np.zeros((m, m))
    sink[:, 0] = 1
    u, sigma, v = np.linalg.svd(sink)
    assert abs(u[:, 0] @ v[0]) < sigma[0] / 2


# Theorem 3.2: stacked attentions that share a principal direction


def stack(depth: int, size: int, epsilon: float, rng: np.random.Generator, *, shared: bool = True) -> tuple:
    """S^l = U Sigma^l V^T + Delta^l with u_1 = v_1; the sigma_1 of each; min(delta, eta)."""
    u, v = orthogonal(size, rng), orthogonal(size, rng)
    if shared:
        v[:, 0] = u[:, 0]
        v = np.linalg.qr(v)[0]
        v[:, 0] = u[:, 0]
    else:
        v = np.linalg.qr(np.c_[u[:, 1], u[:, 0], v[:, 2:]])[0]  # v_1 stands on u_1
    made, tops = [], []
    for _ in range(depth):
        sigma = np.sort(rng.uniform(0.2, 0.8, size))[::-1]
        sigma[0], sigma[1] = rng.uniform(1.3, 2.0), 0.8
        noise = rng.normal(size=(size, size))
        made.append(u @ np.diag(sigma) @ v.T + epsilon * noise / norm(noise))
        tops.append(sigma[0])
    return made, np.array(tops), 0.5  # delta = 1.3 - 0.8, eta = 0.8


def product(matrices: list) -> np.ndarray:
    found = np.eye(len(matrices[0]))
    for matrix in matrices:
        found = matrix @ found
    return found


@given(st.integers(1, 12), st.sampled_from([0.0, 1e-4, 1e-3]), SEEDS)
def test_stacking_multiplies_the_first_singular_values(depth: int, epsilon: float, seed: int) -> None:
    """Eq. 3.2 with the constant of its proof: cos theta >= 1 - 8 eps^2 l^2 / min(delta, eta)^2 (Eq. A.25)."""
    made, tops, gap = stack(depth, 12, epsilon, np.random.default_rng(seed))
    place = np.arange(1, depth + 1)
    least = np.prod(tops - epsilon - 8 * epsilon**2 * place**2 * tops / gap**2)
    assert norm(product(made)) >= least * (1 - 1e-9)
    assert norm(product(made)) >= 1.25**depth, "it grows exponentially"
    assert norm(product(made)) <= np.prod([norm(matrix) for matrix in made]) * (1 + 1e-9), "Eq. 4.1"


def test_without_a_shared_direction_it_does_not_grow_so() -> None:
    """The assumption u_1 = v_1 carries the theorem: with v_1 at right angles to u_1 the product falls behind."""
    stacks = (stack(8, 12, 0.0, np.random.default_rng(seed), shared=False) for seed in range(40))
    assert np.median([norm(product(made)) / np.prod(tops) for made, tops, _ in stacks]) < 0.1


@given(SEEDS, st.integers(2, 30))
def test_column_sums_bound_the_norm_of_attention(seed: int, size: int) -> None:
    """Eqs. 4.2 and 4.3: rows sum to one, and the log-sum-exp is at least the largest column sum, for any tau."""
    rng = np.random.default_rng(seed)
    scores = np.where(np.tril(np.ones((size, size))) > 0, rng.normal(size=(size, size)) * 3, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    columns = weights.sum(0)
    assert norm(weights) <= np.sqrt(columns.max()) + 1e-9
    for tau in (0.5, 1.0, 8.0):
        smooth = np.log(np.exp(tau * columns).sum()) / tau
        assert columns.max() <= smooth <= columns.max() + np.log(size) / tau + 1e-9


# Lemma 3.3: gradient flow on a product of matrices


def balanced(depth: int, sigma: np.ndarray, rng: np.random.Generator) -> list:
    """W = W_1 ... W_L with these singular values and W_l^T W_l = W_(l+1) W_(l+1)^T."""
    size = len(sigma)
    turns = [orthogonal(size, rng) for _ in range(depth + 1)]
    root = np.diag(sigma ** (1 / depth))
    return [a @ root @ b.T for a, b in pairwise(turns)]


def whole(factors: list) -> np.ndarray:
    """W_1 W_2 ... W_L, the order of the paper."""
    return product(factors[::-1])


def flow(factors: list, slope: Callable, step: float) -> list:
    """One Euler step of gradient descent on L(W_1 ... W_L), given dL/dW."""
    gradient = slope(whole(factors))
    moved = []
    for place in range(len(factors)):
        rest = [np.eye(len(gradient))]
        before, after = whole(rest + factors[:place]), whole(rest + factors[place + 1 :])
        moved.append(factors[place] - step * before.T @ gradient @ after.T)
    return moved


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_singular_values_move_as_the_lemma_says(depth: int) -> None:
    """Eq. 3.3, against the difference over a small step in double precision; the loss is no quadratic."""
    rng = np.random.default_rng(depth)
    target = rng.normal(size=(5, 5))

    def slope(w: np.ndarray) -> np.ndarray:
        return np.tanh(w - target) + 0.1 * (w - target)

    factors = balanced(depth, np.array([1.7, 1.1, 0.6, 0.3, 0.1]), rng)
    u, sigma, v = np.linalg.svd(whole(factors))
    step = 1e-7
    moved = np.linalg.svd(whole(flow(factors, slope, step)))[1]
    along = np.einsum("ik,ij,kj->k", u, slope(whole(factors)), v)
    said = -depth * (sigma**2) ** (1 - 1 / depth) * along
    assert np.allclose((moved - sigma) / step, said, rtol=1e-4, atol=1e-5)


# Theorem 4.1: the bound on the scores


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("scale", [0.02, 0.3, 1.5])
def test_scores_stay_within_the_bound(activation: str, heads: int, scale: float) -> None:
    """Eqs. A.43 to A.57 on pre-norm MLP transformers: no layer and no score matrix exceeds the product of factors."""
    store = shop(20)
    some = everyone(store)
    encoder = Transformer(layers=3, attention=Softmax(heads=heads), feed_forward="mlp", activation=activation)  # type: ignore[arg-type]
    model = model_of(recommender(encoder), store, scale=scale)
    (rows,) = observed(model, Bound, some=some)
    limits, norms = by_place(rows, "log10_bound"), by_place(rows, "log10_norm")
    assert len(limits) == 5 and held(rows)
    factors = [1 + r["value"] for r in rows if r["name"] == "factor"]
    assert limits[3, None] == pytest.approx(norms[0, None] + np.log10(factors).sum()), "Eq. A.57: a product of (1 + C)"


def heads_case(rng: np.random.Generator, scale: float) -> tuple:
    """||concatenated heads||, then sqrt(sum n_h sigma_h^2), sqrt(sum n_h sigma_h) and the norm of the input."""
    x = rng.normal(size=(15, 6))
    outs, squared, printed = [], 0.0, 0.0
    for _ in range(2):
        logits = np.where(np.tril(np.ones((15, 15))) > 0, rng.normal(size=(15, 15)), -np.inf)
        weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        value = scale * rng.normal(size=(6, 3))
        outs.append(weights @ x @ value)
        size = weights.sum(0).max()
        squared += size * norm(value) ** 2
        printed += size * norm(value)
    return norm(np.concatenate(outs, 1)), squared**0.5, printed**0.5, norm(x)


@given(SEEDS, st.sampled_from([0.1, 1.0, 30.0]))
def test_several_heads_need_the_square(seed: int, scale: float) -> None:
    """Eq. A.56 with sigma(W_V,h) squared bounds the concatenated heads."""
    out, squared, _, x = heads_case(np.random.default_rng(seed), scale)
    assert out <= squared * x * (1 + 1e-9)


def test_the_printed_form_without_the_square_is_no_bound() -> None:
    """As printed, Eq. A.56 grows with the root of the value projections' norm while the heads grow with the norm."""
    out, _, printed, x = heads_case(np.random.default_rng(0), 30.0)
    assert out > printed * x


def test_a_repeated_item_exceeds_the_table() -> None:
    """ "||X^(0)||_2 is trivially bounded by ||E||_2" (proof of 4.1) holds for distinct rows only."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, 4))
    history = rng.integers(0, 9, 60)
    assert norm(table[history]) > norm(table)
    assert norm(table[rng.permutation(9)[:5]]) <= norm(table)
    repeats = np.bincount(history).max()
    assert norm(table[history]) <= repeats**0.5 * norm(table)
