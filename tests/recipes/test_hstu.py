"""Both HSTU recipes: the settings that were published, and that they learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.data.events.store import Store
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax
from tests.recipes.conftest import beats_popularity
from tests.recipes.conftest import model as of


def test_the_original_setting() -> None:
    model = of("hstu")
    encoder, attention = model.encoder, model.encoder.attention
    assert attention == HSTU(dropout=0.2), "the defaults are the paper's"
    assert attention.gate and attention.rel_bias == "times" and attention.bias and not attention.rope
    assert (encoder.norm, encoder.norm_at, encoder.norm_affine, encoder.norm_output) == ("layer", "pre", False, False)
    assert (encoder.feed_forward, encoder.dropout, encoder.input_dropout) == ("none", 0.0, 0.2)
    assert encoder.positions == "learned" and encoder.positions_from == "start" and encoder.scale_input
    assert isinstance(model.loss, SampledSoftmax) and model.loss.negatives.count == 128 and model.loss.log_q == "none"
    assert (model.scoring.similarity, model.scoring.temperature) == ("cosine", 0.05)


def test_the_setting_of_sprint() -> None:
    model = of("hstu_plus")
    encoder, attention = model.encoder, model.encoder.attention
    assert attention.rope and attention.rel_bias == "none" and not attention.gate and not attention.bias
    assert (encoder.norm, encoder.norm_at, encoder.norm_affine, encoder.norm_output) == ("rms", "pre", True, None)
    assert (encoder.feed_forward, encoder.inner, encoder.positions) == ("swiglu", None, "none")
    assert isinstance(model.loss, BCE) and model.loss.negatives.count == 16 and model.loss.negatives.share == "row"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["hstu", "hstu_plus"])
def test_it_learns(recipe: str, market: Store, tmp_path: Path) -> None:
    settings = ("training.max_epochs=18", "training.batch_size=512")
    beats_popularity(recipe, "train/loss", 0.95, market, tmp_path, *settings)
