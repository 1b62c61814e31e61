"""Both HSTU recipes: the settings that were published, and that they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fullrank as fr
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted
from fullrank.experiment import find_experiment
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmax


def parts(recipe: str) -> tuple[Recommender, Transformer, HSTU]:
    model: Any = find_experiment(recipe).model
    assert isinstance(model.encoder, Transformer) and isinstance(model.encoder.attention, HSTU)
    return model, model.encoder, model.encoder.attention


def test_the_original_setting() -> None:
    model, encoder, attention = parts("hstu")
    assert attention == HSTU(dropout=0.2), "the defaults are the paper's"
    assert attention.gate and attention.rel_bias == "times" and attention.bias and not attention.rope
    assert (encoder.norm, encoder.norm_at, encoder.norm_affine, encoder.norm_output) == ("layer", "pre", False, False)
    assert (encoder.feed_forward, encoder.dropout, encoder.input_dropout) == ("none", 0.0, 0.2)
    assert encoder.positions == "learned" and encoder.positions_from == "start" and encoder.scale_input
    assert isinstance(model.loss, SampledSoftmax) and model.loss.negatives.count == 128 and model.loss.log_q == "none"
    assert (model.scoring.similarity, model.scoring.temperature) == ("cosine", 0.05)


def test_the_setting_of_sprint() -> None:
    model, encoder, attention = parts("hstu_plus")
    assert attention.rope and attention.rel_bias == "none" and not attention.gate and not attention.bias
    assert (encoder.norm, encoder.norm_at, encoder.norm_affine, encoder.norm_output) == ("rms", "pre", True, None)
    assert (encoder.feed_forward, encoder.inner, encoder.positions) == ("swiglu", None, "none")
    assert isinstance(model.loss, BCE) and model.loss.negatives.count == 16 and model.loss.negatives.share == "row"


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Store:
    tables = Planted(users=400, items=100, events_per_user=12).read()
    return prepare(tables.events, tmp_path_factory.mktemp("market") / "store")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["hstu", "hstu_plus"])
def test_it_learns(recipe: str, market: Store, tmp_path: Path) -> None:
    """The loss falls, and after some epochs it ranks clearly better than popularity does."""
    settings = ["model.dim=32", "model.max_length=20", "training.max_epochs=18", "training.batch_size=512"]
    settings += ["training.evaluate_every=6", "training.lr=0.004", "training.patience=null"]
    run = fr.train(recipe, market, tmp_path / recipe, set=settings, progress=False)
    rows = [row for row in run.rows() if row["event"] == "epoch"]
    assert rows[-1]["train/loss"] < 0.95 * rows[0]["train/loss"]
    popular = fr.train("popularity", market, tmp_path / "popularity", progress=False)
    score = {r.spec.recipe: fr.evaluate(r, "validation").metrics["ndcg@10"] for r in (run, popular)}
    assert score[recipe] > 1.2 * score["popularity"], score
