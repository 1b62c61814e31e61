"""Laws of every attention: the future and the padding are invisible, its weights are what it does, no idle setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name, variations
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Taps
from fullrank.models.sequential.attention import Placed, Places, mask
from fullrank.models.sequential.attention.streams import remembered, think, think_reference
from tiny import built, close, histories, padded, plain, reachable, shaken

DIM = 12
LENGTHS = (1, 2, 5, 9, 3)
SUM_TO_ONE = {"softmax"}
"""Kinds whose rows of weights are a distribution."""
NONLINEAR = {"focused", "hstu"}
"""Kinds with a nonlinearity between the value projection and the output projection."""
NOTE_COLUMNS = {"focused", "hstu", "softmax"}
"""Kinds that note how much attention each key received, for the penalties that want it."""
ALL = pytest.mark.parametrize("pair", everything("attention"), ids=name)


def modules(pair: Pair) -> Iterator[tuple[Any, Any]]:
    return built(reachable(plain(pair)), DIM, 16)


def case(extra: int = 0) -> tuple[Tensor, Batch]:
    batch = padded(histories(LENGTHS), extra=extra)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(len(LENGTHS), 40, DIM, generator=generator)
    return x[:, : batch.items.shape[1]], batch


def check_causal(attention: Any) -> None:
    """What comes after a position leaves its output as it is."""
    if not attention.causal:
        return
    x, batch = case()
    whole = attention(x, batch)
    for t in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, t:] += 3
        seen = batch.valid & (torch.arange(x.shape[1]) < t)
        assert close(attention(changed, batch)[seen], whole[seen]), f"position {t} is seen before it happens"
        later = replace(batch, times=batch.times + 10**6 * (torch.arange(x.shape[1]) > t))
        assert close(attention(x, later)[seen], whole[seen]), f"a time behind position {t} is seen too early"


def check_padding(attention: Any) -> None:
    """What stands behind a row's end, and how much of it, leaves its valid outputs as they are."""
    x, batch = case()
    whole = attention(x, batch)
    assert whole.shape == x.shape
    other = torch.where(batch.valid[..., None], x, 7.0)
    elsewhere = replace(batch, times=torch.where(batch.valid, batch.times, 77))
    assert close(attention(other, elsewhere)[batch.valid], whole[batch.valid]), "padding is seen"
    longer, wide = case(extra=4)
    assert close(attention(longer, wide)[wide.valid], whole[batch.valid]), "extra padding is seen"
    for row, length in enumerate(LENGTHS):
        one = padded([batch.items[row, :length].tolist()])
        assert close(attention(x[row : row + 1, :length], one)[0], whole[row, :length]), f"row {row} differs when alone"


def check_weights(attention: Any, *, distribution: bool) -> None:
    x, batch = case()
    weights = attention.weights(x, batch)
    assert weights.shape == (len(x), attention.heads, x.shape[1], x.shape[1])
    allowed = mask(batch, causal=attention.causal)
    queries = batch.valid[:, None, :, None]
    assert not weights.masked_select(queries & ~allowed).any(), "a hidden place has weight"
    if distribution:
        assert (weights.masked_select(queries & allowed) > 0).all(), "a visible place has none"
        assert close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def check_apply(attention: Any) -> None:
    x, batch = case()
    again = attention.apply_weights(attention.weights(x, batch), x)
    assert close(again[batch.valid], attention(x, batch)[batch.valid])


@torch.no_grad()
def check_matrices(attention: Any) -> None:
    """A head whose value projection is zero mixes nothing, and no head does through an output projection of zero."""
    x, batch = case()
    value, output = attention.matrices()
    weights = attention.weights(x, batch)
    before, kept = attention.apply_weights(weights, x), output.clone()
    for head in range(attention.heads):
        other, noise = weights.clone(), torch.rand(weights[:, head].shape, generator=torch.Generator().manual_seed(3))
        other[:, head] += noise - noise.mean(-1, keepdim=True)  # rows keep their sums, so value biases stay
        assert not close(attention.apply_weights(other, x), before), "the weights are not used"
        was = value[head].clone()
        value[head] = 0
        assert close(attention.apply_weights(other, x), attention.apply_weights(weights, x)), f"not head {head}'s value"
        value[head] = was
    output.zero_()
    silent = attention.apply_weights(weights, x)
    assert close(silent, silent[:1, :1].expand_as(silent)), "something goes round the output projection"
    output.copy_(kept)


def check_linear(attention: Any) -> None:
    """`apply_weights` is, up to biases, the sum over heads of output @ value @ mixed tokens."""
    x, batch = case()
    value, output = attention.matrices()
    weights = attention.weights(x, batch)
    mixed = torch.einsum("bhts,bsd,hed->bthe", weights, x, value).flatten(2)
    linear = attention.apply_weights(weights, x) - attention.apply_weights(weights, torch.zeros_like(x))
    assert close((mixed @ output.T)[batch.valid], linear[batch.valid], 1e-4)


def check_project(attention: Any) -> None:
    """`attend` on what `project` gives, under the mask, is the module: what a cache relies on."""
    x, batch = case()
    projected = attention.project(x, batch.positions(from_end=False))
    places = (Places.of(batch),) if isinstance(attention, Placed) else ()
    again = attention.attend(*projected, mask(batch, causal=attention.causal), *places)
    assert close(again[batch.valid], attention(x, batch)[batch.valid])


def check_learns(attention: Any) -> None:
    x, batch = case()
    attention.train()
    attention(x, batch)[batch.valid].pow(2).sum().backward()
    for label, parameter in attention.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
        assert parameter.grad.any(), f"{label} does not learn"
    attention.eval()


@ALL
@pytest.mark.parametrize(
    "check", [check_causal, check_padding, check_apply, check_matrices, check_project, check_learns]
)
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for spec, attention in modules(pair):
        try:
            check(attention)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@ALL
def test_weights(pair: Pair) -> None:
    for _, attention in modules(pair):
        check_weights(attention, distribution=pair[1] in SUM_TO_ONE)


def check_columns(attention: Any) -> None:
    """What is noted is the absolute weights summed over valid queries, in value and in gradient; the output stays.

    An attention with `noted_weights` notes those instead, and they are at least the absolute weights everywhere.
    """
    x, batch = case(extra=2)
    plain_y, taps = attention(x, batch), Taps(frozenset({"columns"}))
    assert close(attention(x, replace(batch, taps=taps))[batch.valid], plain_y[batch.valid])
    (noted,) = taps.columns
    assert noted.module is attention and torch.equal(noted.valid, batch.valid)
    assert not noted.sums.masked_select(~batch.valid[:, None]).any(), "a padded key has received attention"
    absolute = attention.weights(x, batch).abs()
    of = attention.noted_weights(x, batch) if hasattr(attention, "noted_weights") else absolute
    assert (of - absolute > -1e-6).all(), "what is noted is no bound"
    of = of * batch.valid[:, None, :, None]
    sums = of.sum(2)
    assert close(noted.sums, sums)
    assert close(of.sum(3), noted.rows if noted.rows is not None else batch.valid[:, None].expand_as(of.sum(3)).float())
    parameters = list(attention.parameters())
    found = torch.autograd.grad(noted.sums.pow(2).sum(), parameters, allow_unused=True)
    wanted = torch.autograd.grad(sums.pow(2).sum(), parameters, allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None or not a.any()) if b is None else a is not None and close(a, b, 1e-4)
    other = Taps(frozenset())
    attention(x, replace(batch, taps=other))
    assert not other.columns, "noted what nobody wants"


@ALL
def test_columns(pair: Pair) -> None:
    for spec, attention in modules(pair):
        if pair[1] in NOTE_COLUMNS:
            try:
                check_columns(attention)
            except AssertionError as error:
                raise AssertionError(f"{spec!r}: {error}") from error


def check_streams(attention: Any) -> None:
    """Two tokens in each of three streams behind the history: those of the twin that copies it for every stream."""
    x, batch = case(extra=2)
    noting = replace(batch, taps=Taps(frozenset({"memory"})))
    attention(x, noting)
    prefix = remembered(attention, x, noting)
    projected = attention.project(x, batch.positions(from_end=False))[1:]
    assert all(torch.equal(a, b) for a, b in zip(prefix, projected, strict=True)), "not the keys and values"
    own: Any = None
    for s in range(2):
        new = torch.randn(len(x), 3, DIM, generator=torch.Generator().manual_seed(s))
        q, _, _ = attention.project(new, (batch.lengths + s)[:, None].expand(-1, 3))
        y, own = think(attention, new, prefix, own, batch)
        assert close(y, think_reference(attention, q, prefix, own, batch)), f"step {s} differs from a full copy"


@ALL
def test_streams(pair: Pair) -> None:
    for spec, attention in modules(pair):
        try:
            check_streams(attention)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@ALL
def test_linear(pair: Pair) -> None:
    for _, attention in modules(pair):
        if pair[1] not in NONLINEAR:
            check_linear(attention)


@cache
def trace(spec: Spec) -> tuple[Any, ...] | None:
    """What can be seen of a spec: the shapes of its parameters, an output, an output in training."""
    try:
        torch.manual_seed(0)
        attention = shaken(spec.build(DIM, 16))  # type: ignore[attr-defined]
    except UserError:
        return None
    x, batch = case()
    out = [attention.eval()(x, batch)[batch.valid]]
    torch.manual_seed(0)
    out.append(attention.train()(x, batch)[batch.valid])
    shapes = [(label, tuple(p.shape)) for label, p in attention.named_parameters()]
    return shapes, *(tuple(o.flatten().tolist()) for o in out)


def check_effects(spec: Spec) -> None:
    """Of the values that a setting accepts here, one at least makes a difference."""
    here = trace(spec)
    for key in type(spec).model_fields:
        others = [v for v in variations(spec) if getattr(v, key) != getattr(spec, key)]
        same = [t == here for t in map(trace, others) if t is not None]
        assert not same or not all(same), f"{key} has no effect in {spec!r}: refuse it"


@ALL
def test_settings_have_effect(pair: Pair) -> None:
    for spec in reachable(plain(pair), 1, numbers=False):
        if trace(spec) is not None:
            check_effects(spec)


@ALL
def test_rows_of_length_one(pair: Pair) -> None:
    batch = padded([[3], [4]])
    for _, attention in modules(pair):
        y = attention(torch.randn(2, 1, DIM), batch)
        assert y.shape == (2, 1, DIM) and y.isfinite().all()
