"""Recipes of FAIR, TIGER and HSTU: what they share, sizes of papers, weights under mean and sum; they learn."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.data.events.store import Store
from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.recipes import fair, tiger
from fullrank.run.experiment import find_experiment
from tests.recipes.conftest import beats_popularity, model
from tiny import catalog, histories, padded


@pytest.mark.parametrize(("recipe", "norm"), [(fair.no_norm, "none"), (fair.relu_norm, "relu_l1")])
def test_a_norm_is_the_only_difference(recipe: Any, norm: str) -> None:
    whole = find_experiment("fair")
    assert recipe() == whole.override(f"recipe={recipe.__name__}", f"model.encoder.attention.norm={norm}")
    assert model(recipe()).encoder.attention.norm == norm != model(whole).encoder.attention.norm == "softmax"
    assert fair.softmax_norm().model == whole.model


def test_alpha_and_beta_are_of_the_mean() -> None:
    """Under the mean the recipe's beta is 16 times the paper's on the sum of 16 levels."""
    small, paper = model("fair"), model(fair.paper())
    assert (small.task, paper.task) == (SemanticTokens(reduction="mean"), SemanticTokens(reduction="sum"))
    assert [16 * penalty.weight for penalty in small.penalties] == [1.6, 0.16]
    assert [penalty.weight for penalty in paper.penalties] == [1.0, 0.01]


@pytest.mark.parametrize("made", ["tiger", tiger.sprint(), tiger.focused(), tiger.paper()])
def test_they_build_and_step(made: Any) -> None:
    made = model(made).build(catalog())
    terms = made(padded(histories([3, 4, 5, 2])))
    sum(terms.values()).backward()
    assert {"code_1", "code_2", "code_3"} <= set(terms) and all(torch.isfinite(t) for t in terms.values())


def test_sprint_is_tiger_and_its_penalty() -> None:
    plain, penalised = model("tiger"), model(tiger.sprint())
    assert penalised.model_copy(update={"penalties": ()}) == plain
    assert [p.kind_of() for p in penalised.penalties] == ["sprint"]


def test_the_paper_s_size() -> None:
    """Four and four blocks, six heads of 64, inner 1024: TIGER, Sec. 4.1. 1.84M weights of the encoder, 2.62M of both
    attentions and the feed-forward of the decoder."""
    encoder = model(tiger.paper()).encoder
    assert isinstance(encoder, Seq2Seq)
    made = encoder.build(128, 80)
    inside = 4 * 128 * 384 + 2 * 128 * 1024
    norms = 2 * 128
    biases = 32 * 6
    source = 4 * (inside + norms + biases) + 128
    decoder = 4 * (inside + 4 * 128 * 384 + 3 * 128 + biases) + 128 + 128
    assert sum(p.numel() for p in made.parameters()) == source + decoder


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["hstu", "hstu_plus"])
def test_it_learns(recipe: str, market: Store, tmp_path: Path) -> None:
    settings = ("training.max_epochs=18", "training.batch_size=512")
    beats_popularity(recipe, "train/loss", 0.95, market, tmp_path, *settings)
