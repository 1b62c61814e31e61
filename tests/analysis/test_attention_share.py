"""Attention mass by band against loops over single weights, and against attention that is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics.attention_share import HEAD, LABELS, AttentionShare, item_bands
from fullrank.inference import attention as room
from fullrank.metrics.exposure import niche
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from tests.analysis.conftest import everyone, model_of, observed, recommender, shop, values


@pytest.mark.parametrize("size", [5, 23, 60, 1000])
def test_the_head_is_what_fairness_does_not_call_niche(size: int) -> None:
    popularity = np.random.default_rng(size).integers(0, 9, size)
    assert np.array_equal(item_bands(popularity) < HEAD, ~niche(popularity, 0.8))
    assert popularity[item_bands(popularity) == 0].min() >= popularity[item_bands(popularity) == 4].max()


def two_sided() -> object:
    encoder = Transformer(layers=2, attention=Softmax(heads=2, causal=False))
    return recommender(encoder).model_copy(update={"task": Cloze()})


@pytest.mark.parametrize("kind", ["causal", "two-sided with covered places"])
def test_the_twin_adds_up_single_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shop()
    model, some = model_of(recommender() if kind == "causal" else two_sided(), store), everyone(store)
    band = item_bands(some.popularity)
    mass, keys, uniform = np.zeros((2, 2, 5)), np.zeros(5), np.zeros(5)
    (reading,) = activations(model, some)
    for attended in reading.attentions:
        with torch.no_grad():
            weights = attended.module.weights(attended.x, attended.batch).double().numpy()
        batch = attended.batch
        for b, length in enumerate(batch.lengths.tolist()):
            for j in range(length):
                if batch.hidden is not None and batch.hidden[b, j]:
                    continue
                place = band[batch.items[b, j]]
                mass[attended.layer, :, place] += weights[b, :, :length, j].sum(1)
                if attended.layer == 0:
                    keys[place] += 1
                    uniform[place] += sum(1 / (i + 1) for i in range(j, length)) if kind == "causal" else 1
    monkeypatch.setattr(room, "WEIGHTS", 500)
    (rows,) = observed(model, some, AttentionShare)
    for layer in range(2):
        for head in range(2):
            share = mass[layer, head] / mass[layer, head].sum()
            found = [values(rows, "mass", layer=layer, head=head, label=label)[0] for label in LABELS]
            ratio = [values(rows, "ratio", layer=layer, head=head, label=label)[0] for label in LABELS]
            assert np.allclose(found, share, atol=1e-6) and np.allclose(ratio, share / (keys / keys.sum()), atol=1e-5)
            top = values(rows, "mass", layer=layer, head=head, label="top 20 %")[0]
            assert top == pytest.approx(share[:3].sum(), abs=1e-6)
    assert np.allclose([values(rows, "keys", label=label)[0] for label in LABELS], keys / keys.sum())
    assert np.allclose([values(rows, "uniform", label=label)[0] for label in LABELS], uniform / uniform.sum())


def test_even_attention_gives_the_uniform_shares() -> None:
    store = shop()
    model, some = model_of(recommender(), store), everyone(store)
    for block in model.encoder.blocks:
        torch.nn.init.zeros_(block.attention.qkv.weight)
    (rows,) = observed(model, some, AttentionShare)
    for label in LABELS:
        assert values(rows, "mass", layer=1, head=0, label=label) == pytest.approx(values(rows, "uniform", label=label))


def test_signed_weights_count_by_their_size() -> None:
    """HSTU's weights can fall below zero and need not sum to one."""
    store = shop()
    model, some = model_of(recommender(), store), everyone(store)
    (plain,) = observed(model, some, AttentionShare)
    for block in model.encoder.blocks:
        weights = block.attention.weights
        block.attention.weights = lambda x, batch, weights=weights: -3 * weights(x, batch)
    (signed,) = observed(model, some, AttentionShare)
    assert [one["value"] for one in signed] == pytest.approx([one["value"] for one in plain])


def test_without_attention_it_says_so() -> None:
    store = shop()
    some = everyone(store)
    (rows,) = observed(model_of(recommender(GRU()), store), some, AttentionShare)
    assert [one["name"] for one in rows] == [LEFT_OUT] and "no attention" in rows[0]["label"]
