"""The spectrum of the factors is that of the whole score matrix; likeness to popularity is scipy's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics import spectrum
from fullrank.analysis.diagnostics.layers import Layers
from fullrank.analysis.diagnostics.spectrum import (
    SpectralCollapse,
    popularity_likeness,
    score_spectrum,
    spearman,
    triangle,
)
from fullrank.data.batch import last
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.models.sequential.baselines.popularity import Popularity
from fullrank.models.sequential.encoders.gru import GRU
from tests.analysis.conftest import everyone, history, model_of, observed, recommender, shop, values
from tiny import padded


def factors(users: int, items: int, dim: int, rank: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inner = torch.randn(rank, dim, generator=draw)
    return torch.randn(users, rank, generator=draw) @ inner, torch.randn(items, rank, generator=draw) @ inner


@pytest.mark.parametrize(
    ("users", "items", "dim", "rank"), [(37, 53, 8, 8), (5, 53, 8, 5), (37, 3, 8, 3), (9, 9, 7, 2)]
)
def test_the_twin_is_the_whole_matrix(
    users: int, items: int, dim: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    q = torch.linalg.qr(torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).Q
    sigma = torch.tensor([1.0, 1e-5, 1e-11], dtype=torch.float64)
    assert torch.allclose(torch.linalg.svdvals(triangle(q * sigma)), sigma, rtol=1e-3)


def test_triangles_grow_block_by_block() -> None:
    x = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(2))
    twice = triangle(x[3:], triangle(x[:3]))
    flat = x.flatten(0, 1).double()
    assert torch.allclose(twice.T @ twice, flat.T @ flat)


def test_spearman_is_scipys_with_ties() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, 50), rng.normal(size=50)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert spearman(np.ones(4), np.arange(4)) is None


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_a_planted_popularity_direction_is_found_with_its_sign(scale: float) -> None:
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
    store = shop()
    model, some = model_of(recommender(None, "scoring.temperature=0.5"), store), everyone(store)
    (rows,) = observed(model, some, SpectralCollapse)
    batch = padded([history(some, place).tolist() for place in range(len(some))])
    with torch.no_grad():
        whole = model.answer(batch).block(0, model.num_items).double()
    sigma = np.linalg.svd(whole.numpy(), compute_uv=False)
    assert values(rows, "sigma") == pytest.approx(sigma[:8].tolist(), rel=1e-5)
    assert values(rows, "collapse_share")[0] == pytest.approx(sigma[0] ** 2 / (sigma**2).sum(), rel=1e-5)
    assert values(rows, "width") == [8] and len(values(rows, "loading")) == 10


def test_layers_are_stacked_last_positions() -> None:
    store = shop()
    model, some = model_of(recommender(), store), everyone(store)
    (rows,) = observed(model, some, Layers)
    (reading,) = activations(model, some)
    for layer, states in enumerate(reading.states.layers):
        sigma = np.linalg.svd(last(states, reading.inputs).double().numpy(), compute_uv=False)
        p = sigma / sigma.sum()
        assert values(rows, "sigma_1", layer=layer)[0] == pytest.approx(sigma[0])
        assert values(rows, "stable_rank", layer=layer)[0] == pytest.approx((sigma**2).sum() / sigma[0] ** 2)
        assert values(rows, "entropy_rank", layer=layer)[0] == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_popularity_is_one_direction_and_co_occurrence_has_no_factors() -> None:
    store = shop()
    some = everyone(store)
    (rows,) = observed(model_of(Popularity(), store), some, SpectralCollapse)
    for name in ("collapse_share", "popularity_cosine", "popularity_spearman", "entropy_rank"):
        assert values(rows, name)[0] == pytest.approx(1)
    (rows,) = observed(model_of(ItemToItem(), store), some, SpectralCollapse)
    assert [one["name"] for one in rows] == [LEFT_OUT]


def test_recurrent_layers_count_too() -> None:
    store = shop()
    (rows,) = observed(model_of(recommender(GRU()), store), everyone(store), Layers)
    assert {one["layer"] for one in rows} == {0, 1}
