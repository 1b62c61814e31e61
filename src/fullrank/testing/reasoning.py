"""Checks of every reasoner: cached steps equal recomputation, streams are apart, the history is blind, budgets hold.

Those of one module can be called alone (``check_blind(reasoner)``); `CHECKS` runs each on every
module that a Spec's settings reach, around encoders of several makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fullrank.core.device import device_of
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import Budget, ReasoningStates, States
from fullrank.models.sequential.attention import Places, mask
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer, TransformerEncoder
from fullrank.models.sequential.reasoning import Reasoner, ReasonerSpec
from fullrank.testing.inputs import (
    LENGTHS,
    Device,
    all_learn,
    close,
    histories,
    of_specs,
    padded,
    reachable,
    sequences,
    settings_have_effect,
    shaken,
)

BASE = ReasonerSpec
DIM, LONGEST = 8, 16
POST: dict[str, Any] = {"norm": "layer", "norm_at": "post", "norm_input": True, "feed_forward": "mlp"}
ENCODERS: dict[str, EncoderSpec] = {
    "causal": Transformer(scale_input=True),
    "from_end": Transformer(positions_from="end", attention=Softmax(rope=True)),
    "post_norm": Transformer(**POST),
    "bidirectional": Transformer(**POST, attention=Softmax(causal=False)),
    "hstu": Transformer(attention=HSTU(), feed_forward="none"),
    "hstu_open": Transformer(attention=HSTU(causal=False, rel_bias="positions")),
    "gru": GRU(),
}
ODD = ("causal", "bidirectional", "hstu", "gru")
"""Encoders that odd batches are given to."""


def build_reasoner(spec: Any, encoder: str = "causal", of: type | None = None, device: Device = "cpu") -> Any:
    """The reasoner around one of the encoders, shaken, in evaluation mode."""
    inner = ENCODERS[encoder].build(DIM, LONGEST)
    reasoner = spec.build(inner, DIM, LONGEST) if of is None else of(inner, DIM, spec)
    return shaken(reasoner).to(device).eval()


def inputs_of(reasoner: Any, extra: int = 2) -> tuple[Tensor, Batch]:
    """`sequences` where a reasoner's parameters are."""
    return sequences(DIM, device_of(reasoner), extra)


def near(spec: Spec) -> list[Spec]:
    """Three steps (and three streams where there are any), and specs one change away."""
    larger = [key + "=3" for key in ("steps", "streams") if key in type(spec).model_fields]
    return [spec.override(*larger), *reachable(spec, 1, numbers=False)]


def steps_of(states: States) -> ReasoningStates:
    """The states of the steps, which every reasoner returns."""
    assert states.reasoning is not None, "States.reasoning is missing"
    return states.reasoning


class Recomputed(Encoder):
    """The reference of cached steps: each step reads the whole row anew, under a mask."""

    def __init__(self, inner: TransformerEncoder):
        super().__init__()
        self.inner, self.causal, self.reads_times = inner, inner.causal, inner.reads_times

    def forward(self, x: Tensor, batch: Batch) -> States:
        return self.inner(x, batch)

    def start(self, x: Tensor, batch: Batch) -> tuple[States, Cache]:
        return self(x, batch), Cache(((x, x.new_zeros(len(x), 0, 0, x.shape[2])),), batch)

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        history, earlier = cache.layers[0]
        tokens = torch.cat([earlier, x[:, None]], 1) if earlier.numel() else x[:, None]
        last = [self._whole(history, tokens[:, :, m], cache.batch)[:, -1] for m in range(x.shape[1])]
        return torch.stack(last, 1), replace(cache, layers=((history, tokens),))

    def _whole(self, x: Tensor, tokens: Tensor, batch: Batch) -> Tensor:
        t, s = x.shape[1], tokens.shape[1]
        history = self.inner._embedded(x, batch)
        y = torch.cat([history, self.inner.norm_input(tokens)], 1)
        allowed = x.new_zeros(len(x), 1, t + s, t + s, dtype=torch.bool)
        allowed[:, :, :t, :t] = mask(batch, causal=self.causal)
        allowed[:, :, t:, :t] = batch.valid[:, None, None]
        allowed[:, :, t:, t:] = x.new_ones(s, s, dtype=torch.bool).tril()
        places = places_of(batch, s)
        for block in self.inner._stack():
            attention = block.attention
            seen = block.attention_norm(y) if block.pre else y
            y = block._after_mixing(y, attention.attend(*attention.project(seen, places.queries), allowed, places))
        return self.inner.norm_output(y)


def places_of(batch: Batch, steps: int) -> Places:
    """Where the history and the tokens behind its last event stand."""
    latent = batch.lengths[:, None] + torch.arange(steps, device=batch.lengths.device)
    at = torch.cat([batch.positions(from_end=False), latent], 1)
    assert batch.times is not None
    known = Places.of(batch)
    end = batch.times.gather(1, (batch.lengths - 1).clamp_min(0)[:, None]).expand(-1, steps)
    assert known.query_times is not None
    return Places(at, at, torch.cat([known.query_times, end], 1), torch.cat([batch.times, end], 1))


def check_cached(reasoner: Any) -> None:
    """Cached steps equal recomputed ones, in gradients too (around a transformer)."""
    if not isinstance(reasoner.encoder, TransformerEncoder):
        return
    x, batch = inputs_of(reasoner)
    whole = reasoner(x, batch)
    fast = torch.autograd.grad(whole.outputs["trained"].pow(2).sum(), list(reasoner.parameters()), allow_unused=True)
    saved, reasoner.encoder = reasoner.encoder, Recomputed(reasoner.encoder)
    again = reasoner(x, batch)
    slow = torch.autograd.grad(again.outputs["trained"].pow(2).sum(), list(reasoner.parameters()), allow_unused=True)
    reasoner.encoder = saved
    assert close(steps_of(whole).steps, steps_of(again).steps), "cached steps differ from full recomputation"
    assert all(close(whole.outputs[key], again.outputs[key]) for key in again.outputs)
    for a, b in zip(fast, slow, strict=True):
        assert (a is None) == (b is None) and (a is None or close(a, b, 1e-3)), "gradients differ"


def check_isolated(reasoner: Any) -> None:
    """Moving where one stream opens moves nothing in the others, to the last bit."""
    x, batch = inputs_of(reasoner)
    before = steps_of(reasoner(x, batch))
    for m in range(reasoner.streams if reasoner.streams > 1 else 0):
        saved = reasoner.triggers.detach().clone()
        with torch.no_grad():
            reasoner.triggers[m] += torch.arange(DIM, device=x.device)  # a norm would not see a constant
            after = steps_of(reasoner(x, batch))
            reasoner.triggers.copy_(saved)
        others = [i for i in range(reasoner.streams) if i != m]
        assert torch.equal(after.steps[:, :, others], before.steps[:, :, others]), f"stream {m} is heard by others"
        assert not close(after.steps[:, :, m], before.steps[:, :, m]), f"stream {m} does not hear its trigger"
        assert torch.equal(after.gate, before.gate), "the gate hears a trigger"


def check_blind(reasoner: Any) -> None:
    """The history is read as if no step were taken behind it, and h_0 is its last event's state."""
    x, batch = inputs_of(reasoner)
    states, alone = reasoner(x, batch), reasoner.encoder(x, batch)
    assert close(states.tokens[batch.valid], alone.tokens[batch.valid]), "the history sees the latent tokens"
    start = torch.stack([alone.tokens[i, n - 1] for i, n in enumerate(LENGTHS)])
    assert close(steps_of(states).start, start) and close(states.outputs["step_0"], start)


def check_padding(reasoner: Any) -> None:
    """Padding, whatever it holds and however long, changes no step and no output."""
    x, batch = inputs_of(reasoner, 0)
    whole = reasoner(x, batch)
    other = torch.where(batch.valid[..., None], x, 7.0)
    longer, longer_batch = inputs_of(reasoner, 4)
    for seen in (reasoner(other, batch), reasoner(longer, longer_batch)):
        assert close(steps_of(seen).steps, steps_of(whole).steps), "padding is seen"
    for row, length in enumerate(LENGTHS):
        alone = reasoner(x[row : row + 1, :length], padded([batch.items[row, :length].tolist()]).to(x.device))
        assert all(close(alone.outputs[key][0], whole.outputs[key][row]) for key in whole.outputs), f"row {row} differs"


def check_budgets(reasoner: Any) -> None:
    """Outputs equal those of stopping at a step or a budget; streams come first to last."""
    x, batch = inputs_of(reasoner)
    whole = reasoner(x, batch)
    assert isinstance(reasoner, Reasoner)
    assert list(whole.outputs) == [*(f"step_{s}" for s in range(reasoner.steps + 1)), "trained", "answer"]
    assert torch.equal(whole.outputs["answer"], whole.outputs[f"step_{reasoner.steps}"])
    assert close(steps_of(whole).gate.sum(1), x.new_ones(len(x))) and (steps_of(whole).gate > 0).all()
    reasoning, chosen = reasoner.begin(x, batch), torch.tensor([3, 0], device=x.device)
    for s in range(reasoner.steps + 1):
        wanted = whole.outputs[f"step_{s}"]
        few = reasoner(x, batch, Budget(steps=s))
        assert close(few.outputs["answer"], wanted), f"with a budget of {s} steps it answers otherwise"
        assert close(reasoner.answered(reasoning), wanted) and reasoning.taken == s
        part = reasoner.select(reasoning, chosen)
        if s < reasoner.steps:
            reasoning, part = reasoner.advance(reasoning), reasoner.advance(part)
        assert close(reasoner.answered(part), reasoner.answered(reasoning)[chosen]), "some rows alone differ"
    further = reasoner(x, batch, Budget(steps=reasoner.steps + 1))
    assert torch.equal(steps_of(further).steps[:, : reasoner.steps], steps_of(whole).steps)
    for m in range(1, reasoner.streams + 1):
        fewer = steps_of(reasoner(x, batch, Budget(streams=m)))
        first = steps_of(whole).gate[:, :m]
        assert close(fewer.steps, steps_of(whole).steps[:, :, :m]) and close(fewer.gate, first / first.sum(1, True))
    try:
        reasoner(x, batch, Budget(streams=reasoner.streams + 1))
    except UserError as error:
        assert error.code == "too-many-streams", error
    else:
        raise AssertionError("more streams than were trained are not refused")
    assert torch.equal(reasoner(x, batch).outputs["answer"], whole.outputs["answer"]), "a budget changed the model"


def check_learns(reasoner: Any) -> None:
    """Every parameter gets a gradient."""
    x, batch = inputs_of(reasoner)
    reasoner.train()
    torch.manual_seed(0)
    reasoner(x, batch).outputs["trained"].pow(3).sum().backward()
    all_learn(reasoner.named_parameters())
    reasoner.eval()


def check_odd_batches(spec: Spec, device: torch.device) -> None:
    """Rows of length one, one row, the longest row, a row without events."""
    for encoder in ODD:
        reasoner = build_reasoner(spec, encoder, device=device)
        for rows in ([[1], [2]], [[5]], histories([LONGEST]), [[], [1, 2]]):
            batch = padded(rows).to(device)
            states = reasoner(torch.randn(*batch.items.shape, DIM).to(device), batch)
            assert all(output.isfinite().all() for output in states.outputs.values()), f"around {encoder}: rows {rows}"


@cache
def trace(spec: Any, device: torch.device) -> tuple[Any, ...]:
    """The observable behaviour of a spec: first parameters, and outputs of shaken ones."""
    torch.manual_seed(0)
    fresh = spec.build(ENCODERS["causal"].build(DIM, LONGEST), DIM, LONGEST)
    parameters = [p for label, p in fresh.named_parameters() if not label.startswith("encoder.")]
    torch.manual_seed(0)
    reasoner, inputs = build_reasoner(spec, device=device), sequences(DIM, device, extra=2)
    states = reasoner(*inputs)
    torch.manual_seed(0)
    training = reasoner.train()(*inputs)
    observed = [*parameters, *(states.outputs[key] for key in ("trained", "answer")), training.outputs["trained"]]
    return tuple(tuple(tensor.flatten().tolist()) for tensor in observed)


def check_effects(spec: Spec, device: torch.device) -> None:
    """No setting is idle: one of its values near the defaults makes a difference."""
    settings_have_effect(spec, lambda other: trace(other, device))


def _around_encoders(spec: Spec, device: torch.device) -> Iterator[tuple[Any, Any]]:
    for encoder in ENCODERS:
        for other in near(spec):
            yield (other, encoder), build_reasoner(other, encoder, device=device)


OF_MODULES = (check_cached, check_isolated, check_blind, check_padding, check_budgets, check_learns)
CHECKS = (*of_specs(OF_MODULES, _around_encoders), check_odd_batches, check_effects)
