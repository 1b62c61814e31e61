"""Laws of every encoder: causality, invisible padding, cached steps equal to full recomputation, no idle setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, load, name, variations
from fullrank.core.errors import UserError
from fullrank.core.registry import kinds
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, States, last
from fullrank.models.sequential.encoders import Cache
from fullrank.models.sequential.encoders.gru import GRU, GRUEncoder
from fullrank.models.sequential.encoders.transformer import Transformer, TransformerEncoder
from tiny import built, close, histories, padded, plain, reachable, shaken

DIM, LONGEST = 12, 16
LENGTHS = (1, 2, 5, 9, 3)
ALL = pytest.mark.parametrize("pair", everything("encoders"), ids=name)


def shallow(pair: Pair) -> Spec:
    """The kind with one layer, where it has layers: its combinations are many."""
    return plain(pair).override("layers=1") if "layers" in load(pair).model_fields else plain(pair)


def specs(pair: Pair) -> list[Spec]:
    """Settings one change away from the defaults, and every attention where the encoder holds one."""
    base = plain(pair)
    found = reachable(base, 1)
    if "attention" in type(base).model_fields:
        attentions = [a for kind in kinds("attention") for a in reachable(plain(("attention", kind)), 2, numbers=False)]
        found += [base.model_copy(update={"attention": a}) for a in attentions]
        ends = base.override("positions_from=end") if "positions_from" in type(base).model_fields else base
        found += [ends.model_copy(update={"attention": a}) for a in attentions]
    return found


def encoders(pair: Pair) -> Iterator[tuple[Spec, Any]]:
    return built(specs(pair), DIM, LONGEST)


def case(extra: int = 0) -> tuple[Tensor, Batch]:
    batch = padded(histories(LENGTHS), extra=extra)
    x = torch.randn(len(LENGTHS), 40, DIM, generator=torch.Generator().manual_seed(5))
    return x[:, : batch.items.shape[1]], batch


def check_causal(encoder: Any) -> None:
    if not encoder.causal:
        return
    x, batch = case()
    whole = encoder(x, batch).tokens
    for t in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, t:] += 3
        seen = batch.valid & (torch.arange(x.shape[1]) < t)
        assert close(encoder(changed, batch).tokens[seen], whole[seen]), f"position {t} is seen before it happens"
        later = replace(batch, times=batch.times + 10**6 * (torch.arange(x.shape[1]) > t))
        assert close(encoder(x, later).tokens[seen], whole[seen]), f"a time behind position {t} is seen too early"


def check_padding(encoder: Any) -> None:
    x, batch = case()
    whole = encoder(x, batch).tokens
    other = torch.where(batch.valid[..., None], x, 7.0)
    elsewhere = replace(batch, times=torch.where(batch.valid, batch.times, 77))
    assert close(encoder(other, elsewhere).tokens[batch.valid], whole[batch.valid]), "padding is seen"
    longer, wide = case(extra=4)
    assert close(encoder(longer, wide).tokens[wide.valid], whole[batch.valid]), "extra padding is seen"
    for row, length in enumerate(LENGTHS):
        one = padded([batch.items[row, :length].tolist()])
        alone = encoder(x[row : row + 1, :length], one).tokens[0]
        assert close(alone, whole[row, :length]), f"row {row} differs when alone"


class Grown(Batch):
    """A batch whose rows have grown by latent tokens: counted from the end, these are at 0 and the prefix stays."""

    def positions(self, *, from_end: bool) -> Tensor:
        at = torch.arange(self.items.shape[1]).expand(self.items.shape)
        return (self.lengths[:, None] - 3 - at).clamp_min(0) if from_end else at


def entering(encoder: Any, new: Tensor, at: Tensor) -> Tensor:
    """What enters as `new` where it stands in the history: without the position and the scale that it gets there."""
    if getattr(encoder, "position", None) is not None:
        new = new - encoder.position(torch.zeros_like(at) if encoder.from_end else at.clamp_max(LONGEST - 1))
    return new / getattr(encoder, "scale", 1.0)


def check_steps(encoder: Any) -> None:
    """Two tokens in each of three streams behind every row's last event: cached, alone, and by full recomputation."""
    x, batch = case(extra=2)
    new = torch.randn(len(x), 2, 3, DIM, generator=torch.Generator().manual_seed(9))
    states, cache = encoder.start(x, batch)
    assert close(states.tokens[batch.valid], encoder(x, batch).tokens[batch.valid]), "start differs from forward"
    one, first = encoder.step(new[:, 0], cache)
    two, second = encoder.step(new[:, 1], first)
    assert torch.equal(one, encoder.step(new[:, 0], cache)[0]), "a step changed the cache it was given"
    assert (cache.steps, first.steps, second.steps) == (0, 1, 2)
    some = torch.tensor([3, 0])
    assert close(encoder.step(new[some, 1], first.select(some))[0], two[some]), "some rows alone differ"
    for m in range(3):
        alone, grown = encoder.step(new[:, 0, m : m + 1], cache)
        assert close(alone, one[:, m : m + 1]), "a stream alone differs"
        assert close(encoder.step(new[:, 1, m : m + 1], grown)[0], two[:, m : m + 1]), "a stream alone differs"
    if not encoder.causal:
        return  # a full pass would let the history see the new tokens: `test_reasoners.py` masks them
    at = batch.lengths[:, None] + torch.arange(2)
    places = at[..., None].expand(-1, -1, DIM)
    longer = x.scatter(1, places, entering(encoder, new[:, :, 1], at))
    assert batch.times is not None
    times = batch.times.scatter(1, at, batch.times.gather(1, batch.lengths[:, None] - 1).expand(-1, 2))
    full = encoder(longer, Grown(batch.items, batch.lengths + 2, times=times)).tokens
    cached = torch.stack([one[:, 1], two[:, 1]], 1)
    assert close(cached, full.gather(1, places)), "cached steps differ from full recomputation"
    assert close(full[batch.valid], states.tokens[batch.valid]), "the history sees the new tokens"


def check_learns(encoder: Any) -> None:
    x, batch = case()
    x = x.clone().requires_grad_()
    encoder.train()
    torch.manual_seed(0)
    states = encoder(x, batch)
    states.tokens[batch.valid].pow(3).sum().backward()
    for label, parameter in [*encoder.named_parameters(), ("x", x)]:
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
        assert parameter.grad.any(), f"{label} does not learn"
    encoder.eval()


def check_states(encoder: Any) -> None:
    """The layers' inputs and the last output are told, and the tokens are a function of the last."""
    x, batch = case()
    states = encoder(x, batch)
    assert states.tokens.shape == x.shape
    assert len(states.layers) == len(states.blocks) + 1
    assert all(layer.shape == x.shape for layer in states.layers)


@ALL
@pytest.mark.parametrize("check", [check_causal, check_padding, check_steps, check_learns, check_states])
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for spec, encoder in encoders(pair):
        try:
            check(encoder)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@ALL
def test_every_combination_builds_and_learns(pair: Pair) -> None:
    for spec, encoder in built(reachable(shallow(pair), 2, numbers=False), DIM, LONGEST):
        try:
            check_learns(encoder)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@cache
def trace(spec: Spec) -> tuple[Any, ...] | None:
    """What can be seen of a spec: the shapes of its parameters, an output, an output in training."""
    try:
        torch.manual_seed(0)
        encoder = shaken(spec.build(DIM, LONGEST))  # type: ignore[attr-defined]
    except UserError:
        return None
    x, batch = case()
    out = [encoder.eval()(x, batch).tokens[batch.valid]]
    torch.manual_seed(0)
    out.append(encoder.train()(x, batch).tokens[batch.valid])
    shapes = [(label, tuple(p.shape)) for label, p in encoder.named_parameters()]
    return shapes, *(tuple(o.flatten().tolist()) for o in out)


def check_effects(spec: Spec) -> None:
    """Of the values that a setting accepts here, one at least makes a difference."""
    here = trace(spec)
    for key in type(spec).model_fields:
        others = [v for v in variations(spec) if getattr(v, key) != getattr(spec, key)]
        same = [t == here for t in map(trace, others[:2]) if t is not None]
        assert not same or not all(same), f"{key} has no effect in {spec!r}: refuse it"


@ALL
def test_settings_have_effect(pair: Pair) -> None:
    for spec in reachable(shallow(pair), 1, numbers=False):
        if trace(spec) is not None:
            check_effects(spec)


@ALL
def test_odd_batches(pair: Pair) -> None:
    """Rows of length one, one row, the longest row, and a row without events."""
    for _, encoder in built([plain(pair)], DIM, LONGEST):
        for rows in ([[1], [2]], [[5]], histories([LONGEST]), [[], [1, 2]]):
            batch = padded(rows)
            states, cache = encoder.start(torch.randn(*batch.items.shape, DIM), batch)
            assert states.tokens.isfinite().all()
            assert encoder.step(torch.randn(len(rows), 1, DIM), cache)[0].isfinite().all()


@ALL
def test_last(pair: Pair) -> None:
    x, batch = case()
    assert close(last(x, batch), torch.stack([x[i, n - 1] for i, n in enumerate(LENGTHS)]))


class Peeking(GRUEncoder):
    """Planted: each position adds the mean of the whole row."""

    def forward(self, x: Tensor, batch: Batch) -> States:
        states = super().forward(x, batch)
        return States(states.tokens + (x * batch.valid[..., None]).mean(1, keepdim=True), states.layers, states.blocks)


class Backwards(GRUEncoder):
    """Planted: reads from the right end, padding first."""

    causal = False

    def forward(self, x: Tensor, batch: Batch) -> States:
        states = super().forward(x.flip(1), batch)
        return States(states.tokens.flip(1), states.layers, states.blocks)


class Overrun(GRUEncoder):
    """Planted: remembers the state behind the padding instead of behind each row's end."""

    def start(self, x: Tensor, batch: Batch) -> tuple[States, Cache]:
        return self(x, batch), Cache(((self.gru(x)[1].movedim(1, 0)[:, None],),), batch)


class Late(TransformerEncoder):
    """Planted: a step forgets that steps went before it."""

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        return super().step(x, replace(cache, layers=tuple(kept[:2] for kept in cache.layers)))


class Gossip(TransformerEncoder):
    """Planted: a stream hears of the others."""

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        return super().step(x + x.mean(1, keepdim=True), cache)


@pytest.mark.parametrize(
    ("sound", "fault", "check"),
    [
        (GRUEncoder, Peeking, check_causal),
        (GRUEncoder, Backwards, check_padding),
        (GRUEncoder, Overrun, check_steps),
        (TransformerEncoder, Late, check_steps),
        (TransformerEncoder, Gossip, check_steps),
    ],
)
def test_planted_faults_are_caught(sound: type, fault: type, check: Callable[[Any], None]) -> None:
    arguments = (DIM, GRU()) if sound is GRUEncoder else (DIM, LONGEST, Transformer())
    check(shaken(sound(*arguments)).eval())
    with pytest.raises(AssertionError):
        check(shaken(fault(*arguments)).eval())


class Deaf(Transformer):
    """Planted: a setting that nothing reads."""

    unread: bool = False

    def build(self, dim: int, max_length: int) -> TransformerEncoder:
        return TransformerEncoder(dim, max_length, Transformer())


def test_a_setting_without_effect_is_caught() -> None:
    with pytest.raises(AssertionError, match="has no effect"):
        check_effects(Deaf())
