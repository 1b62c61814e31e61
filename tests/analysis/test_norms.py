"""Norms of named matrices against numpy, and what is shown of models without blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fullrank.analysis.diagnosis import LEFT_OUT, Row
from fullrank.analysis.diagnostics.norms import Norms, spectral_norm
from fullrank.models.sequential.baselines.popularity import Popularity
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from tests.analysis.conftest import DIM, context_of, everyone, model_of, recommender, shop, values


def norm_rows(model: Any) -> list[Row]:
    return Norms(context_of(model, everyone(shop()))).rows()


def largest(matrix: torch.Tensor) -> float:
    return float(np.linalg.norm(matrix.detach().double().numpy(), 2))


@pytest.mark.parametrize("shape", [(3, 9), (9, 3), (1, 4), (0, 4)])
def test_one_matrix(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert spectral_norm(matrix) == pytest.approx(largest(matrix) if matrix.numel() else 0)


def test_every_matrix_of_a_block_by_head() -> None:
    store = shop()
    model = model_of(recommender(), store)
    rows = norm_rows(model)
    total = np.log(largest(model.items.all()))
    assert values(rows, "sigma", label="embedding") == [pytest.approx(largest(model.items.all()))]
    for layer, block in enumerate(model.encoder.blocks):
        value = block.attention.qkv.weight[2 * DIM :]
        heads = [largest(value[:4]), largest(value[4:])]
        assert values(rows, "sigma", layer=layer, label="value") == pytest.approx(heads)
        output, up, down = (
            largest(m.weight) for m in (block.attention.output, block.feed_forward.up, block.feed_forward.down)
        )
        assert values(rows, "sigma", layer=layer, label="output") == [pytest.approx(output)]
        assert values(rows, "sigma", layer=layer, label="up") == [pytest.approx(up)]
        assert values(rows, "sigma", layer=layer, label="down") == [pytest.approx(down)]
        attention, feed = np.log(np.hypot(*heads) * output), np.log(up * down)
        assert values(rows, "log_product", layer=layer, label="attention") == [pytest.approx(attention)]
        assert values(rows, "log_product", layer=layer, label="feed_forward") == [pytest.approx(feed)]
        total += attention + feed
    assert values(rows, "log_product", label="total") == [pytest.approx(total)]


def test_an_encoder_without_blocks_shows_all_its_matrices() -> None:
    store = shop()
    rows = norm_rows(model_of(recommender(GRU()), store))
    assert {one["label"] for one in rows if one["name"] == "sigma"} == {
        "embedding",
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
    }


def test_a_decoder_has_rows_of_its_own() -> None:
    """Its attention, its look at the history and its feed-forward, beside the encoder's blocks, and in the total."""
    store = shop()
    spec = recommender(Seq2Seq(layers=1, decoder_layers=2)).model_copy(update={"task": LastItem()})
    model = model_of(spec, store)
    rows = norm_rows(model)
    for layer, block in enumerate(model.encoder.decoder):
        for name, attention in (("decoder", block.attention), ("cross", block.cross)):
            value, output = attention.matrices()
            heads = [largest(head) for head in value]
            assert values(rows, "sigma", layer=layer, label=f"{name}_value") == pytest.approx(heads)
            assert values(rows, "sigma", layer=layer, label=f"{name}_output") == [pytest.approx(largest(output))]
            expected = np.log(np.linalg.norm(heads) * largest(output))
            assert values(rows, "log_product", layer=layer, label=f"{name}_attention") == [pytest.approx(expected)]
        up, down = block.feed_forward.matrices()
        expected = np.log(largest(up) * largest(down))
        assert values(rows, "log_product", layer=layer, label="decoder_feed_forward") == [pytest.approx(expected)]
    parts = [one["value"] for one in rows if one["name"] == "log_product" and one["label"] != "total"]
    assert values(rows, "log_product", label="total") == [pytest.approx(sum(parts))]
    assert len([one for one in rows if one["name"] == "log_product"]) == 1 + 2 + 3 * 2 + 1


def test_a_baseline_has_none() -> None:
    store = shop()
    assert [one["name"] for one in norm_rows(model_of(Popularity(), store))] == [LEFT_OUT]


def test_a_matrix_of_zeros_has_no_logarithm() -> None:
    store = shop()
    model = model_of(recommender(), store)
    torch.nn.init.zeros_(model.encoder.blocks[0].attention.output.weight)
    rows = norm_rows(model)
    assert values(rows, "log_product", layer=0, label="attention") == [None]
    assert values(rows, "log_product", label="total") == [None]
