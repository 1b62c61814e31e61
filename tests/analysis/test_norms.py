"""Norms of named matrices against numpy, and what is shown of models without blocks."""

import numpy as np
import pytest
import torch

from fullrank.analysis.diagnostics.norms import Norms, spectral_norm
from parts import GRU, LastItem, Seq2Seq
from tests.analysis.conftest import DIM, context_of, model_of, recommender, values
from tiny import drawn


def norm_rows(model) -> list:
    return Norms(context_of(model)).rows()


def largest(matrix) -> float:
    return float(np.linalg.norm(matrix.detach().double().numpy(), 2))


@pytest.mark.parametrize("shape", [(3, 9), (9, 3), (1, 4), (0, 4)])
def test_one_matrix(shape) -> None:
    matrix = drawn(*shape)
    assert spectral_norm(matrix) == pytest.approx(largest(matrix) if matrix.numel() else 0)


def test_every_matrix_of_a_block_by_head() -> None:
    model = model_of()
    rows, table = norm_rows(model), largest(model.items.all())
    total = np.log(table)
    assert values(rows, "sigma", label="embedding") == [pytest.approx(table)]
    for layer, block in enumerate(model.encoder.blocks):
        value = block.attention.qkv.weight[2 * DIM :]
        heads = [largest(value[:4]), largest(value[4:])]
        output, up, down = (
            largest(m.weight) for m in (block.attention.output, block.feed_forward.up, block.feed_forward.down)
        )
        attention, feed = np.log(np.hypot(*heads) * output), np.log(up * down)
        for name, label, expected in (
            ("sigma", "value", heads), ("sigma", "output", [output]), ("sigma", "up", [up]), ("sigma", "down", [down]),
            ("log_product", "attention", [attention]), ("log_product", "feed_forward", [feed]),
        ):  # fmt: skip
            assert values(rows, name, layer=layer, label=label) == pytest.approx(expected)
        total += attention + feed
    assert values(rows, "log_product", label="total") == [pytest.approx(total)]


def test_an_encoder_without_blocks_shows_all_its_matrices() -> None:
    rows = norm_rows(model_of(recommender(GRU())))
    assert {one["label"] for one in rows if one["name"] == "sigma"} == {
        "embedding",
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
    }


def test_a_decoder_has_rows_of_its_own() -> None:
    """Its attention, its look at the history and its feed-forward, beside the encoder's blocks, and in the total."""
    spec = recommender(Seq2Seq(layers=1, decoder_layers=2)).model_copy(update={"task": LastItem()})
    model = model_of(spec)
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


def test_a_matrix_of_zeros_has_no_logarithm() -> None:
    model = model_of()
    torch.nn.init.zeros_(model.encoder.blocks[0].attention.output.weight)
    rows = norm_rows(model)
    assert values(rows, "log_product", layer=0, label="attention") == [None]
    assert values(rows, "log_product", label="total") == [None]
