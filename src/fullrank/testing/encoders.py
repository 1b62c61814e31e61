"""Checks of every encoder: causality, invisible padding, cached steps equal to full recomputation, no idle setting.

Those of one module can be called alone (``check_causal(encoder)``); `CHECKS` runs each on every
module that a Spec's settings reach, with every attention where the encoder holds one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fullrank.core.registry import find, kinds
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models.sequential.encoders import Encoder, EncoderSpec
from fullrank.testing.attention import DIM, LONGEST, check_causal, check_flops, check_padding, inputs_of, trace
from fullrank.testing.inputs import (
    all_learn,
    built,
    close,
    close_in_bf16,
    example,
    histories,
    naming,
    of_specs,
    padded,
    reachable,
    settings_have_effect,
    times_of,
)

BASE = EncoderSpec


def shallow(spec: Spec) -> Spec:
    """The spec with one layer, where it has layers: its combinations are many."""
    return spec.override("layers=1") if "layers" in type(spec).model_fields else spec


def near(spec: Spec) -> list[Spec]:
    """Settings one change away from the spec, and every attention where the encoder holds one."""
    specs = reachable(spec, 1)
    if "attention" in type(spec).model_fields:
        mixers = [example(find(kind, "attention")) for kind in kinds("attention")]
        # an encoder with a decoder holds three attentions of each kind
        changes = 1 if "decoder_layers" in type(spec).model_fields else 2
        attentions = [a for mixer in mixers for a in reachable(mixer, changes, numbers=False)]
        ends = spec.override("positions_from=end") if "positions_from" in type(spec).model_fields else spec
        specs += [base.model_copy(update={"attention": a}) for base in (spec, ends) for a in attentions]
    return specs


class Grown(Batch):
    """A batch with latent tokens added: from the end they are at 0, and earlier ones stay."""

    def positions(self, *, from_end: bool) -> Tensor:
        at = torch.arange(self.items.shape[1], device=self.items.device).expand(self.items.shape)
        return (self.lengths[:, None] - 3 - at).clamp_min(0) if from_end else at


def before_entry(encoder: Any, new: Tensor, at: Tensor, times: Tensor) -> Tensor:
    """The input that is `new` inside: less the position, scale and moment that it gets there."""
    if hasattr(encoder, "streams"):
        return torch.cat([before_entry(stream, new[..., where], at, times) for stream, where in encoder.streams()], -1)
    if getattr(encoder, "calendar", None) is not None:
        new = new - encoder.calendar(times)
    if getattr(encoder, "position", None) is not None:
        new = new - encoder.position(torch.zeros_like(at) if encoder.from_end else at.clamp_max(LONGEST - 1))
    return new / getattr(encoder, "scale", 1.0)


def check_steps(encoder: Encoder) -> None:
    """Two tokens in three streams behind each row agree: cached, alone, and recomputed."""
    x, batch = inputs_of(encoder, 2)
    new = torch.randn(len(x), 2, 3, DIM, generator=torch.Generator().manual_seed(9)).to(x.device)
    states, cache = encoder.start(x, batch)
    assert close(states.tokens[batch.valid], encoder(x, batch).tokens[batch.valid]), "start differs from forward"
    step_1, first = encoder.step(new[:, 0], cache)
    step_2, second = encoder.step(new[:, 1], first)
    assert torch.equal(step_1, encoder.step(new[:, 0], cache)[0]), "a step changed the cache it was given"
    assert (cache.steps, first.steps, second.steps) == (0, 1, 2)
    chosen = torch.tensor([3, 0], device=x.device)
    assert close(encoder.step(new[chosen, 1], first.select(chosen))[0], step_2[chosen]), "some rows alone differ"
    for m in range(3):
        alone, grown = encoder.step(new[:, 0, m : m + 1], cache)
        assert close(alone, step_1[:, m : m + 1]), "a stream alone differs"
        assert close(encoder.step(new[:, 1, m : m + 1], grown)[0], step_2[:, m : m + 1]), "a stream alone differs"
    if not encoder.causal and not encoder.continues:
        return  # a full pass would let the history see the new tokens: `fullrank.testing.reasoning` masks them
    at = batch.lengths[:, None] + torch.arange(2, device=x.device)
    places = at[..., None].expand(-1, -1, DIM)
    times = times_of(batch)
    ended = times.gather(1, batch.lengths[:, None] - 1).expand(-1, 2)
    times = times.scatter(1, at, ended)
    longer = x.scatter(1, places, before_entry(encoder, new[:, :, 1], at, ended))
    grown_batch = Grown(batch.items, batch.lengths + 2, times=times, answer=2 if encoder.continues else 0)
    full = encoder(longer, grown_batch).tokens
    cached = torch.stack([step_1[:, 1], step_2[:, 1]], 1)
    assert close(cached, full.gather(1, places)), "cached steps differ from full recomputation"
    assert close(full[batch.valid], states.tokens[batch.valid]), "the history sees the new tokens"
    if encoder.continues:  # a task goes on with a row, and its streams branch
        assert torch.equal(before_entry(encoder, new[:, :, 1], at, ended), new[:, :, 1]), (
            "the input of a position is another one"
        )
        parents = torch.tensor([2, 0, 0, 1], device=x.device).expand(len(x), -1)
        tokens = torch.cat([new[:, 1], new[:, 1, :1]], 1)
        branched = encoder.step(tokens, encoder.branch(first, parents))[0]
        for m, parent in enumerate(parents[0].tolist()):
            grown = encoder.step(new[:, 0, parent : parent + 1], cache)[1]
            single = encoder.step(tokens[:, m : m + 1], grown)[0]
            assert close(single, branched[:, m : m + 1]), "a stream goes on from another one than its parent"


def _to_learn(encoder: Encoder) -> tuple[Tensor, Batch]:
    """Vectors with gradients, and their batch; a decoder's has an answer of two tokens."""
    x, batch = inputs_of(encoder, 2)
    if encoder.continues:
        batch = replace(batch, lengths=batch.lengths + 2, answer=2)
    return x.clone().requires_grad_(), batch


def check_learns(encoder: Encoder) -> None:
    """Every parameter gets a gradient, and the input does."""
    x, batch = _to_learn(encoder)
    encoder.train()
    torch.manual_seed(0)
    states = encoder(x, batch)
    states.tokens[batch.valid].pow(3).sum().backward()
    all_learn([*encoder.named_parameters(), ("x", x)])
    encoder.eval()


def check_states(encoder: Encoder) -> None:
    """Layers' inputs and last output are all kept, and tokens are a function of the last."""
    x, batch = inputs_of(encoder)
    states = encoder(x, batch)
    assert states.tokens.shape == x.shape
    assert len(states.layers) == len(states.blocks) + 1
    assert all(layer.shape == x.shape for layer in states.layers)


def check_odd_batches(spec: Spec, device: torch.device) -> None:
    """Rows of length one, one row, the longest row, and a row without events."""
    for other, encoder in built([spec], DIM, LONGEST, device=device):
        for rows in ([[1], [2]], [[5]], histories([LONGEST]), [[], [1, 2]]):
            batch = padded(rows).to(device)
            states, cache = encoder.start(torch.randn(*batch.items.shape, DIM).to(device), batch)
            new = encoder.step(torch.randn(len(rows), 1, DIM).to(device), cache)[0]
            assert states.tokens.isfinite().all() and new.isfinite().all(), f"{other!r}: rows {rows} are not finite"


def check_combinations(spec: Spec, device: torch.device) -> None:
    """Every combination of two settings builds and learns."""
    for other, encoder in built(reachable(shallow(spec), 2, numbers=False), DIM, LONGEST, device=device):
        with naming(other):
            check_learns(encoder)


def check_bf16(spec: Spec, device: torch.device) -> None:
    """Every combination of two settings gives in bf16 products what it gives in fp32."""
    for other, encoder in built(reachable(shallow(spec), 2, numbers=False), DIM, LONGEST, device=device):
        x, batch = _to_learn(encoder)
        with naming(other):
            close_in_bf16(lambda: encoder(x, batch).tokens[batch.valid], [x, *encoder.parameters()])  # noqa: B023


def check_effects(spec: Spec, device: torch.device) -> None:
    """No setting is idle: one of its values near the defaults makes a difference."""
    settings_have_effect(shallow(spec), lambda other: trace(other, device), most=2)


OF_MODULES = (check_causal, check_padding, check_steps, check_learns, check_states)
CHECKS = (
    *of_specs(OF_MODULES, lambda spec, device: built(near(spec), DIM, LONGEST, device=device)),
    check_odd_batches,
    check_combinations,
    check_bf16,
    check_flops,
    check_effects,
)
