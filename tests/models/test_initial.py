"""Starting values by width: what they reach in every room, what they leave, and what they are for."""

import pytest
import torch
from torch import Tensor, nn

from discover import everything, name
from fullrank.ops.starting_values import STD, WIDTH, small, start_by_width, start_otherwise, start_small
from parts import (
    BCE,
    HSTU,
    PLR,
    Cloze,
    Focused,
    LastItem,
    NextItem,
    Recommender,
    Semantic,
    SemanticTokens,
    Softmax,
    Sprint,
    Transformer,
)
from tiny import catalog, drawn, histories, padded, plain

DIM = 32
FACTOR = 4.0
"""sqrt(512 / 32)"""
BIDIRECTIONAL = Transformer(attention=Softmax(causal=False))
MODELS = {
    "positions": {"encoder": Transformer(layers=2, feed_forward="swiglu", bias=True)},
    "hstu": {"encoder": Transformer(attention=HSTU(rel_bias="times"))},
    "cloze": {"encoder": BIDIRECTIONAL, "task": Cloze()},
    "horizons": {"task": NextItem(horizons=3)},
    "codes": {"items": Semantic(), "task": SemanticTokens()},
    "plr": {"reasoner": PLR(), "task": LastItem()},
}
BY_SCORE = ("by_distance", "by_time")
"""Started at 0.02 too, and added to scores, which are as large at any width."""


def build(initial, **settings) -> dict:
    torch.manual_seed(0)
    model = Recommender(**{"dim": DIM, "max_length": 12} | settings, initial=initial).build(catalog())
    return {key: parameter.detach() for key, parameter in model.named_parameters()}


def looks_small(weight) -> bool:
    """Whether these may be draws of N(0, 0.02): five standard errors."""
    return abs(float(weight.std()) / STD - 1) < 5 / (2 * weight.numel()) ** 0.5 and bool(weight.any())


def scaled(settings) -> set:
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
def test_all_that_starts_small_and_nothing_else(settings) -> None:
    assert scaled(settings)


@pytest.mark.parametrize("pair", everything("items", "encoders", "attention", "reasoning"), ids=name)
def test_in_every_room(pair) -> None:
    """A component that draws N(0, 0.02) by itself, without the mark, is found here."""
    room, spec = pair[0], plain(pair)
    settings = {
        "items": {"items": spec, **({"loss": BCE()} if spec.kind_of() == "tpab" else {})},
        "encoders": {"encoder": spec, "task": LastItem() if spec.kind_of() == "seq2seq" else NextItem()},
        "attention": {"encoder": Transformer(attention=spec) if room == "attention" else None},
        "reasoning": {"reasoner": spec, "task": LastItem()},
    }[room]
    assert scaled(settings)


def test_what_is_left() -> None:
    """Norms, biases, HSTU's output projection (Xavier) and its biases of distance and time."""
    left = build("fixed", **MODELS["hstu"]).keys() - scaled(MODELS["hstu"])
    assert {key.rsplit(".attention.", 1)[-1] for key in left if ".attention." in key} >= {"output.weight", *BY_SCORE}
    assert not any("attention.uvqk" in key for key in left)


def test_at_512_both_are_one() -> None:
    fixed, wide = build("fixed", dim=WIDTH), build("width", dim=WIDTH)
    assert all(torch.equal(fixed[key], wide[key]) for key in fixed)


def scores(dim, initial, attention) -> Tensor:
    """q . k / sqrt(e) of unit vectors at the start."""
    torch.manual_seed(0)
    spec = Recommender(dim=dim, max_length=12, encoder=Transformer(attention=attention), initial=initial)  # type: ignore[arg-type]
    mixer = next(m for m in spec.build(catalog()).encoder.modules() if hasattr(m, "mix"))
    x = drawn(8, 12, dim, seed=1)
    q, k, _ = mixer.project(x, torch.arange(12).expand(8, 12))
    return (q @ k.mT / q.shape[-1] ** 0.5).detach()


@pytest.mark.parametrize("attention", [Softmax(heads=4), Focused(heads=4)], ids=["softmax", "focused"])
def test_a_score_is_as_large_as_at_512(attention) -> None:
    wanted = float(scores(512, "fixed", attention).std())
    assert abs(scores(128, "width", attention).std() / wanted - 1) < 0.1
    assert abs(scores(128, "fixed", attention).std() / wanted - 0.25) < 0.03
    if isinstance(attention, Softmax):
        assert abs(wanted - 512 * STD**2) < 0.02


def test_penalties_see_the_scaled_matrices() -> None:
    """SPRINT's power iteration starts from the matrices as training finds them."""

    def sigma(initial):
        torch.manual_seed(0)
        spec = Recommender(dim=DIM, max_length=12, penalties=(Sprint(),), initial=initial)  # type: ignore[arg-type]
        model = spec.build(catalog())
        penalty = model.penalties["sprint"]
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
        start = model.encoder(x, inputs).tokens[:, -1]
        opened = model.encoder.openings(start)  # type: ignore[operator]
        apart.append(float((opened[:, 0] - opened[:, 1]).detach().norm()))
    assert apart[1] == pytest.approx(FACTOR * apart[0], rel=1e-3)


def test_start_small() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(50, 60))
    parts = {"linear": nn.Linear(100, 200), "table": nn.Embedding(300, 40), "norm": nn.LayerNorm(5), "in": inner}
    module = nn.ModuleDict(parts)
    below = inner[0].weight.clone()
    start_small(module)
    for weight in (module["linear"].weight.detach(), module["table"].weight.detach()):
        assert abs(weight.std() - STD) < 0.05 * STD
        assert abs(weight.mean()) < 0.05 * STD
    assert not module["linear"].bias.any()
    assert torch.equal(module["norm"].weight, torch.ones(5))
    assert torch.equal(inner[0].weight, below)


def test_positions_start_as_they_are_told() -> None:
    """With a standard deviation of their own they are no longer scaled by width, and nothing else starts otherwise."""
    made = {}
    for std in (None, 0.25):
        torch.manual_seed(0)
        spec = Recommender(dim=DIM, max_length=200, encoder=Transformer(position_std=std), initial="width")
        made[std] = dict(spec.build(catalog()).encoder.named_parameters())
    assert float(made[None]["position.weight"].std().detach()) == pytest.approx(FACTOR * STD, rel=0.05)
    assert float(made[0.25]["position.weight"].std().detach()) == pytest.approx(0.25, rel=0.05)
    for key in made[None].keys() - {"position.weight"}:
        assert torch.equal(made[None][key], made[0.25][key]), key
