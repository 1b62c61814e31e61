"""SPRINT by hand: each term against its formula from whole attention matrices and exact norms, and every switch."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.ops.singular_values import largest_singular_value
from parts import GRU, HSTU, RecommenderModel, Softmax, Sprint, Transformer, model_with
from refusals import refused
from tiny import histories, padded
from twins import same

BATCH = padded(histories([5, 7, 2, 9]))
PRINTED = {"outer": "log", "layer_reduction": "sum"}
"""Eq. 4.5 as it reads."""
LONG = 400
"""Steps of the power method after which it has converged on matrices of this size."""


def build(spec, encoder=None, *, feed_forward="swiglu", **attention) -> RecommenderModel:
    attentive = Transformer(layers=2, attention=Softmax(**attention), feed_forward=feed_forward, dropout=0.0)
    return model_with(spec, dim=8, encoder=encoder or attentive)


def term(spec, **settings) -> tuple:
    model = build(spec, **settings)
    penalty = model.penalties["sprint"]
    with torch.no_grad():
        for _ in range(LONG):  # one step of the power method each
            for sigma, weight in _followed(penalty, model):
                sigma(weight)
    step = model.step(BATCH)
    return penalty(step), model, step


def _followed(penalty, model) -> list:
    found = []
    mixers, feeds = penalty._blocks
    for name, modules in (("mixer", mixers), ("feed", feeds)):
        for i, module in enumerate(modules):
            for part, weight in zip(("first", "second"), module.matrices(), strict=True):
                if f"{name}_{i}_{part}" in penalty.sigmas:
                    found.append((penalty.sigmas[f"{name}_{i}_{part}"], weight))
    if "table" in penalty.sigmas:
        found.append((penalty.sigmas["table"], model.items.embed(torch.arange(model.num_items))))
    return found


def shown(model, step) -> Iterator:
    """Of every layer the whole matrices of weights, those of the padding's queries zero, and which events are valid."""
    _, inputs = model.task.training_inputs(model.items, BATCH)
    for block, x in zip(step.states.blocks, step.states.layers, strict=False):
        weights = block.attention.weights(block.attention_norm(x), inputs)
        yield weights * inputs.valid[:, None, :, None], inputs.valid


def column_norms(model, step, t=1.0) -> list:
    """n_h of every layer from the whole matrices of weights (the slow twin)."""
    return [(t * seen.sum(2).transpose(0, 1)[:, valid]).exp().sum(1).log() / t for seen, valid in shown(model, step)]


def layer_norms(model, layer) -> tuple:
    value, output = model.encoder.blocks[layer].attention.matrices()
    return largest_singular_value(value), largest_singular_value(output)


def close(a, b) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_attention_term(temperature) -> None:
    found, model, step = term(Sprint(**PRINTED, attention=2, feed_forward=0, temperature=temperature), heads=2)
    wanted = 0.0
    for i, mass in enumerate(column_norms(model, step, temperature)):
        value, output = layer_norms(model, i)
        wanted = wanted + 0.5 * (mass * value**2).sum().log() + output.log()
    close(found, 2 * wanted)


def test_feed_forward_and_embedding_terms() -> None:
    found, model, _ = term(Sprint(**PRINTED, attention=0, feed_forward=0.5, embedding=0.25))
    logs = sum(largest_singular_value(w).log() for b in model.encoder.blocks for w in b.feed_forward.matrices())
    items = largest_singular_value(model.items.embed(torch.arange(model.num_items))).log()
    close(found, 0.5 * logs + 0.25 * items)
    same, model, _ = term(Sprint(**PRINTED, attention=0, feed_forward=0.5))
    close(same, 0.5 * logs + 0.5 * items)


def test_every_switch_of_the_decision_table() -> None:
    base = {**PRINTED, "attention": 1.0, "feed_forward": 0.0}
    _, model, step = term(Sprint(**base))
    mass, (value, output) = column_norms(model, step), layer_norms(model, 0)
    others = layer_norms(model, 1)

    def both(of):
        return of(mass[0], value, output) + of(mass[1], *others)

    def joint(n, v, o):
        return (n * v**2).sum().sqrt() * o

    expected = {
        "outer=log1p": both(lambda *a: joint(*a).log1p()),
        "layer_reduction=mean": both(lambda *a: joint(*a).log()) / 2,
        "value_norms=printed": both(lambda n, v, o: ((n * v).sum().sqrt() * o).log()),
        "value_norms=none": both(lambda n, v, o: n.sum().log()),
        "head_reduction=separate": both(lambda n, v, o: ((n * v**2).sqrt() * o).log().mean()),
    }
    for setting, wanted in expected.items():
        close(term(Sprint(**base).override(setting))[0], wanted)


def feed_norms(model, layer) -> list:
    return [largest_singular_value(w) for w in model.encoder.blocks[layer].feed_forward.matrices()]


def table_norm(model) -> Tensor:
    return largest_singular_value(model.items.embed(torch.arange(model.num_items)))


def factors(model, step, projections="attention") -> list:
    """The factors of attention and feed-forward of every layer, in the reading that is named."""
    found = []
    for i, mass in enumerate(column_norms(model, step)):
        (value, output), (up, down) = layer_norms(model, i), feed_norms(model, i)
        if projections == "attention":
            found.append(((mass * value**2).sum().sqrt() * output, up * down))
        elif projections == "output_apart":
            found.append(((mass * value**2).sum().sqrt(), output * up * down))
        else:
            found.append((mass.sum().sqrt(), value.norm() * output * up * down))
    return found


@pytest.mark.parametrize("projections", ["attention", "output_apart", "feed_forward"])
@pytest.mark.parametrize("outer", ["log1p", "log"])
def test_residual_form_covers_all_three_terms_under_either_weight(projections, outer) -> None:
    weights = {"attention": 2.0, "feed_forward": 0.5, "embedding": 0.25}
    found, model, step = term(Sprint(outer=outer, projections=projections, **weights), heads=2)
    f = getattr(torch, outer)
    pairs = factors(model, step, projections)
    wanted = [sum(f(pair[i]) for pair in pairs) / len(pairs) for i in (0, 1)]
    close(found, 2.0 * wanted[0] + 0.5 * wanted[1] + 0.25 * f(table_norm(model)))


def test_hinge_penalises_above_its_bound_alone() -> None:
    _, model, step = term(Sprint(), heads=2)
    (attention, _), table = factors(model, step)[0], table_norm(model)
    bound = 0.5 * attention.item()
    settings = {"outer": "hinge", "bound": bound, "table_bound": 2 * table.item(), "attention": 1.0, "embedding": 1.0}
    found, model, step = term(Sprint(**settings, feed_forward=3.0), heads=2)
    above = [[max(0.0, math.log(float(c) / bound)) for c in pair] for pair in factors(model, step)]
    close(found, sum(a + 3 * b for a, b in above) / len(above))
    assert above[0][0] > 0
    high = Sprint(outer="hinge", bound=1e6, attention=1.0, feed_forward=1.0)
    model = build(high)
    value = model(BATCH)["sprint"]
    assert value == 0 and not torch.autograd.grad(value, model.encoder.blocks[0].attention.output.weight)[0].any()


def test_column_mean_divides_by_the_queries_that_may_see_a_key() -> None:
    """Under causality column sums are least where every event attends to itself, their means are not."""
    spec = Sprint(**PRINTED, attention=1, feed_forward=0, value_norms="none", column_mean=True, temperature=20)
    found, model, step = term(spec, heads=2)
    wanted = 0.0
    for weights, valid in shown(model, step):
        may_see = torch.ones(weights.shape[-2:]).tril() * valid[:, None, :, None]
        means = (weights.sum(2) / may_see.sum(2).clamp_min(1)).transpose(0, 1)[:, valid]
        wanted = wanted + ((20 * means).exp().sum(1).log() / 20).sum().log()
    close(found, wanted)


def test_final_gain_closes_the_free_direction() -> None:
    """E, W_O and W_down scaled by c and the final gain by 1 / c give the same scores: the penalty is then the same."""

    def value(final_gain, c):
        torch.manual_seed(0)  # the power method starts on the weights before they are shaken
        model = build(Sprint(**PRINTED, attention=1, feed_forward=1, final_gain=final_gain)).eval()
        with torch.no_grad():
            for block in model.encoder.blocks:
                block.attention.output.weight *= c
                block.feed_forward.matrices()[1].mul_(c)
            model.items.embedding.weight.mul_(c)
            model.encoder.position.weight.mul_(c)
            model.encoder.norm_output.weight /= c
        step = model.step(BATCH)
        return model.penalties["sprint"](step), step.states.tokens[0, 0] * c

    for final_gain in (False, True):
        (plain, states), (scaled, same) = value(final_gain, 1.0), value(final_gain, 0.1)
        torch.testing.assert_close(states, same, rtol=1e-2, atol=1e-3)
        assert torch.isclose(plain, scaled, atol=1e-3) == final_gain
    with refused("nothing-to-regularise", "final_gain"):
        build(Sprint(attention=0, feed_forward=0, embedding=1, final_gain=True), GRU())


def test_the_residual_form_lets_go_of_a_block_that_is_off() -> None:
    """d log(C) / d log(W_O) is 1 at every size, that of log1p(C) is C / (1 + C)."""
    for outer, low in (("log", 0.9), ("log1p", 0.0)):
        model = build(Sprint(outer=outer, layer_reduction="sum", attention=1, feed_forward=0))
        weight = model.encoder.blocks[0].attention.output.weight
        with torch.no_grad():
            weight *= 1e-4
        (slope,) = torch.autograd.grad(model(BATCH)["sprint"], weight)
        relative = float((slope * weight).sum())
        assert (relative > low) if outer == "log" else (relative < 1e-2)


def test_gradient_reaches_attention_through_the_blocked_path() -> None:
    """The term's gradient by queries and keys equals that of the slow formula."""
    found, model, step = term(Sprint(**PRINTED, attention=1, feed_forward=0, value_norms="none"), heads=2)
    weights = [b.attention.qkv.weight for b in model.encoder.blocks]
    slow = torch.stack([n.sum().log() for n in column_norms(model, step)]).sum()
    same(found, slow, *weights, tolerance=1e-3)


def test_dropped_weights() -> None:
    model = build(Sprint(attention=1, feed_forward=0, dropped_weights=True), dropout=0.5)
    torch.manual_seed(0)
    noted = model.step(BATCH).captures.columns[0]
    sums = noted.sums.sum(-1)
    queries = noted.valid.sum(1, keepdim=True).expand_as(sums).float()
    assert not torch.allclose(sums, queries), "dropped weights do not sum to one"
    kept = build(Sprint(attention=1, feed_forward=0), dropout=0.5).step(BATCH).captures.columns[0].sums.sum(-1)
    torch.testing.assert_close(kept, queries)


def test_scores_and_states_are_those_without_the_penalty() -> None:
    with_it = build(Sprint())
    plain = model_with(dim=8, encoder=Transformer(layers=2, attention=Softmax(), dropout=0.0))
    torch.testing.assert_close(with_it.step(BATCH).states.tokens, plain.step(BATCH).states.tokens)
    assert plain.step(BATCH).captures is None


@pytest.mark.parametrize("exact", [False, True])
def test_exact_bound_multiplies_by_the_row_sums_of_hstu(exact) -> None:
    spec = Sprint(**PRINTED, attention=1, feed_forward=0, value_norms="none", exact_bound=exact, temperature=2)
    attention = HSTU(heads=2, rel_bias="positions")
    encoder = Transformer(layers=1, attention=attention, feed_forward="none", dropout=0.0)
    model = build(spec, encoder)
    step = model.step(BATCH)
    ((weights, valid),) = shown(model, step)
    columns, rows = (
        (2 * weights.abs().sum(dim).transpose(0, 1)[:, valid]).exp().sum(1).log() / 2 for dim in (2, 3)
    )  # fmt: skip
    close(model.penalties["sprint"](step), (columns * rows if exact else columns).sum().log())


def test_exact_bound_needs_rows_that_do_not_sum_to_one() -> None:
    with refused("setting-without-effect", "exact_bound", "SoftmaxAttention"):
        build(Sprint(exact_bound=True))


@pytest.mark.parametrize(
    ("spec", "encoder", "advice"),
    [
        (Sprint(), GRU(), "set attention=0"),
        (Sprint(attention=0), GRU(), "set feed_forward=0"),
        (Sprint(), Transformer(feed_forward="none"), "set feed_forward=0"),
    ],
)
def test_nothing_to_read_is_an_error(spec, encoder, advice) -> None:
    with refused("nothing-to-regularise", advice):
        build(spec, encoder)


@pytest.mark.parametrize(
    ("settings", "code", "name"),
    [
        ("attention=0 feed_forward=0", "weights-all-zero", "embedding"),
        ("attention=0 temperature=2", "setting-without-effect", "temperature"),
        ("attention=0 column_mean=true", "setting-without-effect", "column_mean"),
        ("bound=2", "setting-without-effect", "outer=log1p"),
        ("outer=hinge table_bound=2 embedding=0", "setting-without-effect", "table_bound"),
        ("final_gain=true value_norms=none feed_forward=0", "setting-without-effect", "final_gain"),
        ("projections=feed_forward feed_forward=0 embedding=1", "setting-without-effect", "projections=feed_forward"),
        ("projections=output_apart value_norms=none", "setting-without-effect", "value_norms=squared"),
    ],
)
def test_idle_settings_are_refused(settings, code, name) -> None:
    with refused(code, name):
        Sprint().override(*settings.split())


def test_embedding_term_alone_serves_an_encoder_without_blocks() -> None:
    model = build(Sprint(attention=0, feed_forward=0, embedding=1.0), GRU())
    assert model(BATCH)["sprint"].isfinite()


def test_zero_matrices_give_neither_infinity_nor_nan() -> None:
    for outer in ("log", "log1p", "hinge"):
        model = build(Sprint(outer=outer))
        with torch.no_grad():
            for weight in model.parameters():
                weight.zero_()
        value = model(BATCH)["sprint"]
        value.backward()
        assert value.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_layer_without_a_valid_key_is_skipped() -> None:
    model = build(Sprint(attention=1, feed_forward=0))
    step = model.step(BATCH)
    empty = [replace(c, valid=torch.zeros_like(c.valid)) for c in step.captures.columns]
    step.captures.columns[:] = empty
    assert model.penalties["sprint"](step) == 0


def test_dropped_weights_are_refused_where_they_cannot_be_noted() -> None:
    encoder = Transformer(attention=HSTU(rel_bias="none"))
    with refused("columns-not-captured", "HSTUAttention", "dropped_weights=false"):
        build(Sprint(dropped_weights=True), encoder)


def test_buffers_are_saved_and_load_again() -> None:
    model = build(Sprint())
    model(BATCH)
    state = model.state_dict()
    assert any("sigmas" in name for name in state)
    other = build(Sprint())
    other.load_state_dict(state)
    torch.testing.assert_close(other.eval()(BATCH)["sprint"], model.eval()(BATCH)["sprint"])
