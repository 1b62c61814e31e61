"""The recipes of TIGER: what they share, the paper's size, and what SPRINT and FAIR add."""

from typing import Any

import pytest
import torch

from fullrank.models.sequential.encoders.seq2seq import Seq2Seq
from fullrank.recipes import tiger
from tests.recipes.conftest import model
from tiny import catalog, histories, padded


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
