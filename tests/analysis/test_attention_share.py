"""Attention mass by band against loops over single weights, and against attention that is known."""

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnostics.attention_share import HEAD, LABELS, AttentionShare, item_bands
from fullrank.metrics.lists import niche
from fullrank.models.sequential.model import reading as room
from parts import Cloze, Softmax, Transformer
from tests.analysis.conftest import EVERYONE, model_of, observed, recommender, values


@pytest.mark.parametrize("size", [5, 23, 60, 1000])
def test_the_head_is_what_fairness_does_not_call_niche(size) -> None:
    popularity = np.random.default_rng(size).integers(0, 9, size)
    assert np.array_equal(item_bands(popularity) < HEAD, ~niche(popularity, 0.8))
    assert popularity[item_bands(popularity) == 0].min() >= popularity[item_bands(popularity) == 4].max()


def two_sided() -> object:
    encoder = Transformer(layers=2, attention=Softmax(heads=2, causal=False))
    return recommender(encoder).model_copy(update={"task": Cloze()})


@pytest.mark.parametrize("kind", ["causal", "two-sided with covered places"])
def test_the_twin_adds_up_single_weights(kind, monkeypatch) -> None:
    model = model_of(recommender() if kind == "causal" else two_sided())
    band = item_bands(EVERYONE.popularity)
    mass, keys, uniform = np.zeros((2, 2, 5)), np.zeros(5), np.zeros(5)
    (reading,) = activations(model, EVERYONE)
    for attended in reading.attentions:
        with torch.no_grad():
            weights = attended.module.weights(attended.x, attended.batch).double().numpy()
        batch = attended.batch
        seen = batch.valid if batch.hidden is None else batch.valid & ~batch.hidden
        for b, j in seen.nonzero().tolist():
            place, length = band[batch.items[b, j]], int(batch.lengths[b])
            mass[attended.layer, :, place] += weights[b, :, :length, j].sum(1)
            if attended.layer == 0:
                keys[place] += 1
                uniform[place] += sum(1 / (i + 1) for i in range(j, length)) if kind == "causal" else 1
    monkeypatch.setattr(room, "WEIGHTS", 500)
    (rows,) = observed(model, AttentionShare)
    for layer in range(2):
        for head in range(2):
            share = mass[layer, head] / mass[layer, head].sum()
            mass_by_band, ratios = by_band(rows, "mass", layer, head), by_band(rows, "ratio", layer, head)
            assert np.allclose(mass_by_band, share, atol=1e-6)
            assert np.allclose(ratios, share / (keys / keys.sum()), atol=1e-5)
            top = values(rows, "mass", layer=layer, head=head, label="top 20 %")[0]
            assert top == pytest.approx(share[:3].sum(), abs=1e-6)
    assert np.allclose(by_band(rows, "keys"), keys / keys.sum())
    assert np.allclose(by_band(rows, "uniform"), uniform / uniform.sum())


def by_band(rows, name, layer=None, head=None) -> list:
    return [values(rows, name, layer=layer, head=head, label=label)[0] for label in LABELS]


def test_even_attention_gives_the_uniform_shares() -> None:
    model = model_of()
    for block in model.encoder.blocks:
        torch.nn.init.zeros_(block.attention.qkv.weight)
    (rows,) = observed(model, AttentionShare)
    assert by_band(rows, "mass", 1, 0) == pytest.approx(by_band(rows, "uniform"))


def test_signed_weights_count_by_their_size() -> None:
    """HSTU's weights can fall below zero and need not sum to one."""
    model = model_of()
    (plain,) = observed(model, AttentionShare)
    for block in model.encoder.blocks:
        weights = block.attention.weights
        block.attention.weights = lambda x, batch, weights=weights: -3 * weights(x, batch)
    (signed,) = observed(model, AttentionShare)
    assert [one["value"] for one in signed] == pytest.approx([one["value"] for one in plain])
