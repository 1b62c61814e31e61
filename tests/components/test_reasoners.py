"""Laws of every reasoner: cached steps equal recomputation, streams are apart, the history is blind, budgets hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name, variations
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, ReasoningStates, States
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.reasoning import Reasoner
from fullrank.models.sequential.reasoning.budget import Budget
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.reasoning.rearec import ReaRec
from recomputed import Recomputed
from tiny import close, histories, padded, plain, reachable, shaken

DIM, LONGEST = 8, 16
LENGTHS = (1, 2, 5, 9, 3)
ALL = pytest.mark.parametrize("pair", everything("reasoning"), ids=name)
POST: dict[str, Any] = {"norm": "layer", "norm_at": "post", "norm_input": True, "feed_forward": "mlp"}
ENCODERS: dict[str, Spec] = {
    "causal": Transformer(scale_input=True),
    "from_end": Transformer(positions_from="end", attention=Softmax(rope=True)),
    "post_norm": Transformer(**POST),
    "bidirectional": Transformer(**POST, attention=Softmax(causal=False)),
    "hstu": Transformer(attention=HSTU(), feed_forward="none"),
    "hstu_open": Transformer(attention=HSTU(causal=False, divide_by="visible", rel_bias="positions")),
}
ENCODER = pytest.mark.parametrize("encoder", ENCODERS)


def made(spec: Spec, encoder: str = "causal", of: type | None = None) -> Any:
    """The reasoner around one of the encoders, shaken, in evaluation mode."""
    inner = (GRU() if encoder == "gru" else ENCODERS[encoder]).build(DIM, LONGEST)  # type: ignore[attr-defined]
    reasoner = spec.build(inner, DIM, LONGEST) if of is None else of(inner, DIM, spec)  # type: ignore[attr-defined]
    return shaken(reasoner).eval()


def larger(pair: Pair) -> Spec:
    """The kind with three steps, and three streams where it has any."""
    spec = plain(pair)
    return spec.override("steps=3", "streams=3") if "streams" in type(spec).model_fields else spec.override("steps=3")


def case(extra: int = 2) -> tuple[Tensor, Batch]:
    batch = padded(histories(LENGTHS), extra=extra)
    x = torch.randn(len(LENGTHS), 40, DIM, generator=torch.Generator().manual_seed(5))
    return x[:, : batch.items.shape[1]], batch


def thought(states: States) -> ReasoningStates:
    assert states.reasoning is not None
    return states.reasoning


def check_cached(reasoner: Any) -> None:
    """Steps from the cache equal steps that read the row anew, and their gradients do."""
    x, batch = case()
    whole = reasoner(x, batch)
    fast = torch.autograd.grad(whole.outputs["trained"].pow(2).sum(), list(reasoner.parameters()), allow_unused=True)
    kept, reasoner.encoder = reasoner.encoder, Recomputed(reasoner.encoder)
    again = reasoner(x, batch)
    slow = torch.autograd.grad(again.outputs["trained"].pow(2).sum(), list(reasoner.parameters()), allow_unused=True)
    reasoner.encoder = kept
    assert close(thought(whole).steps, thought(again).steps), "cached steps differ from full recomputation"
    assert all(close(whole.outputs[key], again.outputs[key]) for key in again.outputs)
    for a, b in zip(fast, slow, strict=True):
        assert (a is None) == (b is None) and (a is None or close(a, b, 1e-3)), "gradients differ"


def check_isolated(reasoner: Any) -> None:
    """Moving where one stream opens moves nothing in the others, to the last bit."""
    x, batch = case()
    before = thought(reasoner(x, batch))
    for m in range(reasoner.streams if reasoner.streams > 1 else 0):
        kept = reasoner.triggers.detach().clone()
        with torch.no_grad():
            reasoner.triggers[m] += torch.arange(DIM)  # a norm would not see a constant
            after = thought(reasoner(x, batch))
            reasoner.triggers.copy_(kept)
        others = [i for i in range(reasoner.streams) if i != m]
        assert torch.equal(after.steps[:, :, others], before.steps[:, :, others]), f"stream {m} is heard by others"
        assert not close(after.steps[:, :, m], before.steps[:, :, m]), f"stream {m} does not hear its trigger"
        assert torch.equal(after.gate, before.gate), "the gate hears a trigger"


def check_blind(reasoner: Any) -> None:
    """The history is read as if nobody thought behind it, and h_0 is its last event's state."""
    x, batch = case()
    states, alone = reasoner(x, batch), reasoner.encoder(x, batch)
    assert close(states.tokens[batch.valid], alone.tokens[batch.valid]), "the history sees the latent tokens"
    start = torch.stack([alone.tokens[i, n - 1] for i, n in enumerate(LENGTHS)])
    assert close(thought(states).start, start) and close(states.outputs["step_0"], start)


def check_padding(reasoner: Any) -> None:
    x, batch = case(extra=0)
    whole = reasoner(x, batch)
    other = torch.where(batch.valid[..., None], x, 7.0)
    longer, wide = case(extra=4)
    for seen in (reasoner(other, batch), reasoner(longer, wide)):
        assert close(thought(seen).steps, thought(whole).steps), "padding is seen"
    for row, length in enumerate(LENGTHS):
        alone = reasoner(x[row : row + 1, :length], padded([batch.items[row, :length].tolist()]))
        assert all(close(alone.outputs[key][0], whole.outputs[key][row]) for key in whole.outputs), f"row {row} differs"


def check_budgets(reasoner: Any) -> None:
    """Outputs are what stopping gives, by step or by a budget; streams are the first ones, their gate sums to one."""
    x, batch = case()
    whole = reasoner(x, batch)
    assert isinstance(reasoner, Reasoner)
    assert list(whole.outputs) == [*(f"step_{s}" for s in range(reasoner.steps + 1)), "trained", "answer"]
    assert torch.equal(whole.outputs["answer"], whole.outputs[f"step_{reasoner.steps}"])
    assert close(thought(whole).gate.sum(1), torch.ones(len(x))) and (thought(whole).gate > 0).all()
    thinking, some = reasoner.begin(x, batch), torch.tensor([3, 0])
    for s in range(reasoner.steps + 1):
        wanted = whole.outputs[f"step_{s}"]
        few = reasoner(x, batch, Budget(steps=s))
        assert close(few.outputs["answer"], wanted), f"with a budget of {s} steps it answers otherwise"
        assert close(reasoner.answered(thinking), wanted) and thinking.taken == s
        part = reasoner.select(thinking, some)
        if s < reasoner.steps:
            thinking, part = reasoner.advance(thinking), reasoner.advance(part)
        assert close(reasoner.answered(part), reasoner.answered(thinking)[some]), "some rows alone differ"
    further = reasoner(x, batch, Budget(steps=reasoner.steps + 1))
    assert torch.equal(thought(further).steps[:, : reasoner.steps], thought(whole).steps)
    for m in range(1, reasoner.streams + 1):
        fewer = thought(reasoner(x, batch, Budget(streams=m)))
        first = thought(whole).gate[:, :m]
        assert close(fewer.steps, thought(whole).steps[:, :, :m]) and close(fewer.gate, first / first.sum(1, True))
    assert torch.equal(reasoner(x, batch).outputs["answer"], whole.outputs["answer"]), "a budget changed the model"


def check_learns(reasoner: Any) -> None:
    x, batch = case()
    reasoner.train()
    torch.manual_seed(0)
    reasoner(x, batch).outputs["trained"].pow(3).sum().backward()
    for label, parameter in reasoner.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), label
    reasoner.eval()


@ALL
@ENCODER
def test_cached_steps_equal_full_recomputation(pair: Pair, encoder: str) -> None:
    for spec in (larger(pair), *reachable(plain(pair), 1, numbers=False)):
        check_cached(made(spec, encoder))


@ALL
@pytest.mark.parametrize("encoder", [*ENCODERS, "gru"])
@pytest.mark.parametrize("check", [check_isolated, check_blind, check_padding, check_budgets, check_learns])
def test_laws(pair: Pair, encoder: str, check: Callable[[Any], None]) -> None:
    for spec in (larger(pair), *reachable(plain(pair), 1, numbers=False)):
        try:
            check(made(spec, encoder))
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@ALL
def test_odd_batches(pair: Pair) -> None:
    """Rows of length one, one row, the longest row, a row without events."""
    for encoder in ("causal", "bidirectional", "hstu", "gru"):
        reasoner = made(plain(pair), encoder)
        for rows in ([[1], [2]], [[5]], histories([LONGEST]), [[], [1, 2]]):
            batch = padded(rows)
            states = reasoner(torch.randn(*batch.items.shape, DIM), batch)
            assert all(output.isfinite().all() for output in states.outputs.values())


@ALL
def test_more_streams_than_trained_are_refused(pair: Pair) -> None:
    reasoner = made(plain(pair))
    x, batch = case()
    with pytest.raises(UserError, match="trained with"):
        reasoner(x, batch, Budget(streams=reasoner.streams + 1))
    for wrong in ({"steps": -1}, {"streams": 0}):
        with pytest.raises(UserError):
            Budget.parse(wrong)


def test_one_step_of_one_stream() -> None:
    """PLR's z is h_1 under a gate of 1; ERL answers with the mean of two states, PRL with the second."""
    x, batch = case()
    plr = made(PLR(steps=1, streams=1))
    states = plr(x, batch)
    start, one = thought(states).start, thought(states).steps[:, 0, 0]
    assert torch.equal(thought(states).gate, torch.ones(len(x), 1)) and plr.gate is None
    assert close(states.outputs["trained"], one) and close(states.outputs["answer"], start + one)
    mean, end = (made(ReaRec(steps=1, answer=answer)) for answer in ("mean", "last"))  # type: ignore[arg-type]
    states = mean(x, batch)
    start, one = thought(states).start, thought(states).steps[:, 0, 0]
    assert close(states.outputs["answer"], (start + one) / 2)
    assert close(end(x, batch).outputs["answer"], one)


def test_noise_falls_on_the_second_view_alone() -> None:
    x, batch = case()
    reasoner, twice = made(ReaRec(), "causal"), batch.repeated(2)
    for part in reasoner.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    reasoner.input_noise = 0.5
    clean = thought(reasoner(x, batch)).steps
    quiet = thought(reasoner(x.repeat(2, 1, 1), twice)).steps
    assert close(quiet, clean.repeat(2, 1, 1, 1)), "noise in evaluation"
    noisy = thought(reasoner.train()(x.repeat(2, 1, 1), twice)).steps
    assert close(noisy[: len(x)], clean) and not close(noisy[len(x) :], clean)


@cache
def trace(spec: Spec) -> tuple[Any, ...]:
    torch.manual_seed(0)
    states = made(spec)(*case())
    return tuple(tuple(states.outputs[key].flatten().tolist()) for key in ("trained", "answer"))


def check_effects(spec: Spec) -> None:
    """Of the values that a setting accepts here, one at least makes a difference."""
    for key in type(spec).model_fields:
        others = [v for v in variations(spec) if getattr(v, key) != getattr(spec, key)]
        same = [trace(other) == trace(spec) for other in others]
        assert not same or not all(same), f"{key} has no effect in {spec!r}: refuse it"


@ALL
def test_settings_have_effect(pair: Pair) -> None:
    for spec in reachable(plain(pair), 1, numbers=False):
        check_effects(spec)


def test_an_encoder_that_cannot_go_on_is_refused() -> None:
    with pytest.raises(UserError, match="start and step"):
        PLR().build(torch.nn.Identity(), DIM, LONGEST)  # type: ignore[arg-type]
