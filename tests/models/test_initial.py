"""Starting values by width: what they reach in every room, what they leave, and what they are for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discover import Pair, everything, name
from fullrank.models.initial import STD, WIDTH, small, start_by_width, start_otherwise, start_small
from fullrank.models.sequential.attention.focused import Focused
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.losses.bce import BCE
from fullrank.models.sequential.objectives.tasks.cloze import Cloze
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.regularizers.sprint import Sprint
from tiny import catalog, histories, padded, plain

DIM = 32
FACTOR = 4.0
"""sqrt(512 / 32)"""
BIDIRECTIONAL = Transformer(attention=Softmax(causal=False))
MODELS: dict[str, dict[str, Any]] = {
    "positions": {"encoder": Transformer(layers=2, feed_forward="swiglu", bias=True)},
    "focused": {"encoder": Transformer(attention=Focused(norm="head_rms"))},
    "hstu": {"encoder": Transformer(attention=HSTU(rel_bias="times"))},
    "cloze": {"encoder": BIDIRECTIONAL, "task": Cloze()},
    "horizons": {"task": NextItem(horizons=3)},
    "codes": {"items": Semantic(), "task": SemanticTokens()},
    "plr": {"reasoner": PLR(), "task": LastItem()},
}
BY_SCORE = ("by_distance", "by_time")
"""Started at 0.02 too, and added to scores, which are as large at any width."""


def build(initial: str, **settings: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Recommender(**{"dim": DIM, "max_length": 12} | settings, initial=initial).build(catalog())
    return {key: parameter.detach() for key, parameter in model.named_parameters()}


def looks_small(weight: Tensor) -> bool:
    """Whether these may be draws of N(0, 0.02): five standard errors."""
    return abs(float(weight.std()) / STD - 1) < 5 / (2 * weight.numel()) ** 0.5 and bool(weight.any())


def scaled(settings: dict[str, Any]) -> set[str]:
    """The parameters that `width` starts elsewhere, each exactly as many times as large."""
    fixed, wide = build("fixed", **settings), build("width", **settings)
    assert fixed.keys() == wide.keys()
    moved = {key for key in fixed if not torch.equal(fixed[key], wide[key])}
    assert all(torch.equal(FACTOR * fixed[key], wide[key]) for key in moved)
    for key, weight in fixed.items():
        if weight.numel() > 8 and not key.endswith(BY_SCORE):
            assert looks_small(weight) == (key in moved), f"{key}: {float(weight.std()):.4f}"
    return moved


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_all_that_starts_small_and_nothing_else(settings: dict[str, Any]) -> None:
    assert scaled(settings)


@pytest.mark.parametrize("pair", everything("items", "encoders", "attention", "reasoning"), ids=name)
def test_in_every_room(pair: Pair) -> None:
    """A component that draws N(0, 0.02) by itself, without the mark, is found here."""
    room, spec = pair[0], plain(pair)
    settings: dict[str, Any] = {
        "items": {"items": spec, **({"loss": BCE()} if spec.kind_of() == "tpab" else {})},
        "encoders": {"encoder": spec, "task": LastItem() if spec.kind_of() == "seq2seq" else NextItem()},
        "attention": {"encoder": Transformer(attention=spec) if room == "attention" else None},
        "reasoning": {"reasoner": spec, "task": LastItem()},
    }[room]
    assert scaled(settings)


def test_it_reaches_the_triggers() -> None:
    moved = scaled(MODELS["plr"])
    assert {"encoder.triggers", "encoder.step_vectors", "encoder.gate.weight", "items.embedding.weight"} <= moved
    assert any("attention.qkv" in key for key in moved) and any("position" in key for key in moved)


def test_what_is_left() -> None:
    """Norms, biases, HSTU's output projection (Xavier) and its biases of distance and time."""
    left = build("fixed", **MODELS["hstu"]).keys() - scaled(MODELS["hstu"])
    assert {key.rsplit(".attention.", 1)[-1] for key in left if ".attention." in key} >= {"output.weight", *BY_SCORE}
    assert not any("attention.uvqk" in key for key in left)


def test_at_512_both_are_one() -> None:
    fixed, wide = build("fixed", dim=WIDTH), build("width", dim=WIDTH)
    assert all(torch.equal(fixed[key], wide[key]) for key in fixed)


def scores(dim: int, initial: str, attention: Any) -> Tensor:
    """q . k / sqrt(e) of unit vectors at the start."""
    torch.manual_seed(0)
    spec = Recommender(dim=dim, max_length=12, encoder=Transformer(attention=attention), initial=initial)  # type: ignore[arg-type]
    mixer: Any = next(m for m in spec.build(catalog()).encoder.modules() if hasattr(m, "mix"))
    x = torch.randn(8, 12, dim, generator=torch.Generator().manual_seed(1))
    q, k, _ = mixer.project(x, torch.arange(12).expand(8, 12))
    return (q @ k.mT / q.shape[-1] ** 0.5).detach()


@pytest.mark.parametrize("attention", [Softmax(heads=4), Focused(heads=4)], ids=["softmax", "focused"])
def test_a_score_is_as_large_as_at_512(attention: Any) -> None:
    wanted = float(scores(512, "fixed", attention).std())
    assert abs(float(scores(128, "width", attention).std()) / wanted - 1) < 0.1
    assert abs(float(scores(128, "fixed", attention).std()) / wanted - 0.25) < 0.03
    if isinstance(attention, Softmax):
        assert abs(wanted - 512 * STD**2) < 0.02


def test_penalties_see_the_scaled_matrices() -> None:
    """SPRINT's power iteration starts from the matrices as training finds them."""

    def sigma(initial: str) -> float:
        torch.manual_seed(0)
        spec = Recommender(dim=DIM, max_length=12, penalties=(Sprint(),), initial=initial)  # type: ignore[arg-type]
        model = spec.build(catalog())
        penalty: Any = model.penalties["sprint"]
        first, _ = next(m for m in model.encoder.modules() if hasattr(m, "matrices")).matrices()  # type: ignore[operator]
        return float(penalty.sigmas["mixer_0_first"](first).detach().max())

    assert sigma("width") == pytest.approx(FACTOR * sigma("fixed"), rel=1e-3)


def test_one_pass_scales_once() -> None:
    torch.manual_seed(0)
    module = nn.Module()
    module.table, module.inner, module.tied = small(40, 50), nn.Sequential(nn.Linear(30, 20)), nn.Linear(20, 10)
    start_small(module.inner)
    start_small(module)
    start_otherwise(module.tied.weight)
    before = {key: p.detach().clone() for key, p in module.named_parameters()}
    for _ in range(2):
        start_by_width(module, 128)
    moved = {key for key, p in module.named_parameters() if torch.equal(p, 2 * before[key]) and p.any()}
    assert moved == {"table", "inner.0.weight"}
    torch.manual_seed(0)
    assert torch.equal(before["table"], torch.randn(40, 50) * STD), "the draws are those without a mark"


def test_streams_open_further_apart() -> None:
    """Two streams of PLR differ by their triggers, which are short against a state of unit entries."""
    apart = []
    for initial in ("fixed", "width"):
        torch.manual_seed(0)
        spec = Recommender(dim=DIM, max_length=12, reasoner=PLR(), task=LastItem(), initial=initial)  # type: ignore[arg-type]
        model = spec.build(catalog()).eval()
        x, inputs = model.task.inference_inputs(model.items, padded(histories([5, 7])))
        start: Any = model.encoder(x, inputs).tokens[:, -1]
        opened = model.encoder.openings(start)  # type: ignore[operator]
        apart.append(float((opened[:, 0] - opened[:, 1]).detach().norm()))
    assert apart[1] == pytest.approx(FACTOR * apart[0], rel=1e-3)
