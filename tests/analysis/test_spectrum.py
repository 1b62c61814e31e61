"""The spectrum of the factors is that of the whole score matrix; likeness to popularity is scipy's."""

import numpy as np
import pytest
import torch
from scipy import stats

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics import spectrum
from fullrank.analysis.diagnostics.spectrum import (
    Layers,
    SpectralCollapse,
    popularity_likeness,
    score_spectrum,
    spearman,
    triangle,
)
from fullrank.models import last
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from parts import GRU, Popularity
from tests.analysis.conftest import EVERYONE, expect, history, model_of, observed, recommender, values
from tiny import drawn, padded


def factors(users, items, dim, rank, seed=0) -> tuple:
    draw = torch.Generator().manual_seed(seed)
    inner = torch.randn(rank, dim, generator=draw)
    return torch.randn(users, rank, generator=draw) @ inner, torch.randn(items, rank, generator=draw) @ inner


@pytest.mark.parametrize(
    ("users", "items", "dim", "rank"), [(37, 53, 8, 8), (5, 53, 8, 5), (37, 3, 8, 3), (9, 9, 7, 2)]
)
def test_the_twin_is_the_whole_matrix(users, items, dim, rank, monkeypatch) -> None:
    monkeypatch.setattr(spectrum, "ROWS", 11)
    vectors, table = factors(users, items, dim, rank)
    found = score_spectrum(vectors, table)
    whole = vectors.double().numpy() @ table.double().numpy().T
    u, sigma, v = np.linalg.svd(whole, full_matrices=False)
    many = min(len(sigma), dim)
    assert np.allclose(found.sigma[:many], sigma[:many], atol=1e-10 * sigma[0])
    assert found.sigma.pow(2).sum() == pytest.approx((whole**2).sum())
    sign = 1 if v[0].sum() >= 0 else -1
    assert np.allclose(found.right, sign * v[0]) and np.allclose(found.left, sign * u[:, 0])


def test_small_singular_values_survive_large_ones() -> None:
    """A Gram matrix in float64 would lose what is below 1e-8 of the largest."""
    q = torch.linalg.qr(drawn(40, 3, seed=1).double()).Q
    sigma = torch.tensor([1.0, 1e-5, 1e-11], dtype=torch.float64)
    assert torch.allclose(torch.linalg.svdvals(triangle(q * sigma)), sigma, rtol=1e-3)


def test_triangles_grow_block_by_block() -> None:
    x = drawn(6, 5, 4, seed=2)
    twice = triangle(x[3:], triangle(x[:3]))
    flat = x.flatten(0, 1).double()
    assert torch.allclose(twice.T @ twice, flat.T @ flat)


def test_spearman_is_scipys_with_ties() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, 50), rng.normal(size=50)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert spearman(np.ones(4), np.arange(4)) is None


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_a_planted_popularity_direction_is_found_with_its_sign(scale) -> None:
    """Scores that rise with popularity, all above or (as with binary cross-entropy) all below zero."""
    rng = np.random.default_rng(1)
    popularity = np.sort(rng.zipf(1.6, 60))[::-1].copy()
    level = np.log1p(popularity) if scale > 0 else np.log1p(popularity) - 12
    table = np.c_[level, rng.normal(size=(60, 3)) * 0.1]
    vectors = np.c_[np.ones(20), rng.normal(size=(20, 3))]
    found = popularity_likeness(score_spectrum(torch.tensor(vectors), torch.tensor(table)), popularity)
    assert found.spearman is not None and found.spearman > 0.9
    assert found.cosine is not None and np.sign(found.cosine) == scale


def test_scores_of_a_model_are_those_of_its_answers() -> None:
    model = model_of(recommender(None, "scoring.temperature=0.5"))
    (rows,) = observed(model, SpectralCollapse)
    batch = padded([history(EVERYONE, place).tolist() for place in range(len(EVERYONE))])
    with torch.no_grad():
        whole = model.answer(batch).block(0, model.num_items).double()
    sigma = np.linalg.svd(whole.numpy(), compute_uv=False)
    assert values(rows, "sigma") == pytest.approx(sigma[:8].tolist(), rel=1e-5)
    expect(rows, "collapse_share", sigma[0] ** 2 / (sigma**2).sum(), rel=1e-5)
    assert values(rows, "width") == [8] and len(values(rows, "loading")) == 10


def test_layers_are_stacked_last_positions() -> None:
    model = model_of()
    (rows,) = observed(model, Layers)
    (reading,) = activations(model, EVERYONE)
    for layer, states in enumerate(reading.states.layers):
        sigma = np.linalg.svd(last(states, reading.inputs).double().numpy(), compute_uv=False)
        p = sigma / sigma.sum()
        expect(rows, "sigma_1", sigma[0], layer=layer)
        expect(rows, "stable_rank", (sigma**2).sum() / sigma[0] ** 2, layer=layer)
        expect(rows, "entropy_rank", np.exp(-(p * np.log(p)).sum()), layer=layer)


def test_popularity_is_one_direction_and_co_occurrence_has_no_factors() -> None:
    (rows,) = observed(model_of(Popularity()), SpectralCollapse)
    for name in ("collapse_share", "popularity_cosine", "popularity_spearman", "entropy_rank"):
        expect(rows, name, 1)
    (rows,) = observed(model_of(ItemToItem()), SpectralCollapse)
    assert [one["name"] for one in rows] == [LEFT_OUT]


def test_recurrent_layers_count_too() -> None:
    (rows,) = observed(model_of(recommender(GRU())), Layers)
    assert {one["layer"] for one in rows} == {0, 1}
