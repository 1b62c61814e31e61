"""The bound of Theorem 4.1: written out by hand for one block, never below what is measured, refused where it is none.

`tests/theory/test_sprint.py` has the theorem itself.
"""

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics.bound import LIPSCHITZ, Bound
from fullrank.core.errors import UserError
from parts import GRU, Softmax, Transformer
from tests.analysis.conftest import EVERYONE, context_of, everyone, model_of, observed, recommender, shop, values
from tiny import reachable


def bound_rows(model, **given) -> list:
    return observed(model, Bound, **given)[0]


def norm(x) -> float:
    return float(np.linalg.norm(x.detach().double().numpy(), 2))


def test_one_block_by_hand() -> None:
    """Eqs. A.45, A.47, A.49 and A.56 for one pre-norm block with RMSNorm, softmax attention and an MLP."""
    encoder = Transformer(layers=1, attention=Softmax(heads=2), feed_forward="mlp")
    model = model_of(recommender(encoder))
    rows = bound_rows(model)
    (reading,) = activations(model, EVERYONE)
    block, valid = model.encoder.blocks[0], reading.inputs.valid
    with torch.no_grad():
        weights = block.attention.weights(reading.attentions[0].x, reading.inputs) * valid[:, None, :, None]

    def scale(module):
        least = reading.module_inputs[module][valid].double().square().mean(-1).min() + module.eps
        return float(least.rsqrt() * module.weight.detach().abs().max())

    value = block.attention.qkv.weight[16:].unflatten(0, (2, 4))
    columns = [float(weights[:, head].sum(1).max()) for head in range(2)]
    inner = sum(columns[head] * norm(value[head]) ** 2 for head in range(2)) ** 0.5
    attention = scale(block.attention_norm) * inner * norm(block.attention.output.weight)
    feed = scale(block.feed_forward_norm) * 8**0.5
    feed *= norm(block.feed_forward.up.weight) * norm(block.feed_forward.down.weight)
    start = norm(reading.states.layers[0][valid])
    limit = start * (1 + attention) * (1 + feed)
    assert values(rows, "column_sum") == pytest.approx(columns, rel=1e-5)
    assert values(rows, "factor", label="attention") == pytest.approx([attention], rel=1e-5)
    assert values(rows, "factor", label="feed_forward") == pytest.approx([feed], rel=1e-5)
    assert values(rows, "log10_bound", layer=0) == pytest.approx([np.log10(start)], rel=1e-5)
    assert values(rows, "log10_bound", layer=1) == pytest.approx([np.log10(limit)], rel=1e-5)
    final = limit * scale(model.encoder.norm_output) * norm(model.items.all())
    assert values(rows, "log10_bound", label="scores") == pytest.approx([np.log10(final)], rel=1e-5)
    measured = norm(reading.states.layers[1][valid])
    assert values(rows, "log10_norm", layer=1) == pytest.approx([np.log10(measured)], rel=1e-5)


def by_place(rows, name) -> dict:
    return {(r["layer"], r["label"]): r["value"] for r in rows if r["name"] == name}


def held(rows) -> bool:
    """Whether every norm is within its bound; there must be some."""
    limits, norms = by_place(rows, "log10_bound"), by_place(rows, "log10_norm")
    assert norms.keys() == limits.keys() and (None, "scores") in norms
    return all(value <= limits[place] + 1e-6 for place, value in norms.items())


def kinds() -> list:
    encoder = Transformer(layers=2, attention=Softmax(heads=2, bias=True), feed_forward="mlp", bias=True)
    found = [*reachable(encoder, 1), *reachable(Transformer(), 2, numbers=False)]
    return [spec for spec in found if isinstance(spec, Transformer) and spec.attention.causal]  # type: ignore[attr-defined]


@pytest.mark.parametrize("settings", [(), ("scoring.similarity=cosine", "scoring.temperature=0.07")])
def test_no_transformer_exceeds_it(settings) -> None:
    store = shop(15)
    store.times = np.arange(store.num_events) * 86_400
    some, checked = everyone(store), 0
    for encoder in kinds():
        try:
            model = model_of(recommender(encoder, *settings), store)
        except UserError:
            continue
        assert held(bound_rows(model, some=some)), encoder
        checked += 1
    assert checked > 20


def test_a_bound_without_the_offset_of_biases_would_be_exceeded() -> None:
    """The check can fail: with tiny weights and large biases the factors alone do not hold."""
    encoder = Transformer(layers=1, attention=Softmax(bias=True), feed_forward="mlp", bias=True)
    model = model_of(recommender(encoder), scale=1e-3)
    for name, parameter in model.encoder.named_parameters():
        if name.endswith("output.bias") or name.endswith("down.bias"):
            torch.nn.init.constant_(parameter, 2.0)
    observer = Bound(context_of(model))
    assert held(observed(model, observer)[0])
    observer.drift = dict.fromkeys(observer.drift, 0.0)
    observer.rows_seen = 1
    assert not held(observer.rows())


def test_norms_without_gains_are_bounded_too() -> None:
    model = model_of()
    for block in model.encoder.blocks:
        block.attention_norm = torch.nn.LayerNorm(8, elementwise_affine=False)
        block.feed_forward_norm = torch.nn.RMSNorm(8, elementwise_affine=False)
    assert held(bound_rows(model))


def test_slopes_of_activations_are_not_exceeded() -> None:
    x = torch.linspace(-12, 12, 400_001, dtype=torch.float64, requires_grad=True)
    for activation, slope in LIPSCHITZ.items():
        (grad,) = torch.autograd.grad(activation(x).sum(), x)
        assert slope - 1e-4 < grad.abs().max() <= slope


def test_what_is_no_such_transformer_is_left_out() -> None:
    (row,) = bound_rows(model_of(recommender(GRU())))
    assert row["name"] == LEFT_OUT and "no transformer blocks" in row["label"]
    model = model_of()
    attention = model.encoder.blocks[1].attention
    plain = attention.apply_weights
    attention.apply_weights = lambda weights, x: plain(weights, x) * x  # a gate, as HSTU has
    (row,) = bound_rows(model)
    assert row["name"] == LEFT_OUT and "more than a weighted sum" in row["label"]
    model = model_of()
    model.encoder.blocks[0].feed_forward.activation = torch.exp
    (row,) = bound_rows(model)
    assert row["name"] == LEFT_OUT and "without a known slope" in row["label"]


def test_answers_that_are_not_the_last_states_have_no_bound_of_scores() -> None:
    model = model_of()
    plain = model.task.readout
    model.task.readout = lambda states, inputs: 2 * plain(states, inputs)
    rows = bound_rows(model)
    assert rows[-1]["name"] == LEFT_OUT and values(rows, "log10_bound", layer=2)
