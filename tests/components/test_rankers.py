"""Laws of every ranker: rows one by one, the taps that are wanted, gradients everywhere, and bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from discover import Pair
from fullrank.core.spec import Spec
from fullrank.models.ranking import EVERY, FieldTokens, RankerOutput
from fullrank.models.ranking.fm import FM, FMRanker
from fullrank.ops.flop_count import counted
from rankers_small import ALL, every, tokens
from tiny import close


def check_rows(spec: Spec, ranker: Any) -> None:
    """A row's logit is its own, whoever stands beside it; its taps too."""
    x = tokens(spec)
    whole = ranker(replace(x, wanted=EVERY))
    assert whole.logits.shape == (9,) and whole.logits.isfinite().all()
    one = replace(x, tokens=x.tokens[4:5], linear=None if x.linear is None else x.linear[4:5], wanted=EVERY)
    alone = ranker(one)
    assert close(alone.logits, whole.logits[4:5]), "a row's logit depends on the other rows"
    assert all(close(alone.captures[key], tap[4:5]) for key, tap in whole.captures.items())


def check_captures(spec: Spec, ranker: Any) -> None:
    """Only what is wanted is kept, in order of depth, and asking changes nothing."""
    x = tokens(spec)
    plain_output, whole = ranker(x), ranker(replace(x, wanted=EVERY))
    assert not plain_output.captures and torch.equal(plain_output.logits, whole.logits)
    if "tokens" in spec.reads:
        assert next(iter(whole.captures)) == "embedding" and torch.equal(whole.captures["embedding"], x.tokens)
    for key, tap in whole.captures.items():
        assert tap.ndim == 3 and list(ranker(replace(x, wanted=frozenset({key}))).captures) == [key]


def check_flops(spec: Spec, ranker: Any) -> None:
    """What it says an impression costs is what torch counts."""
    x = tokens(spec)
    said = ranker.flops()
    assert counted(lambda: ranker(x)) == 9 * sum(said.values()), said


def check_learns(spec: Spec, ranker: Any) -> None:
    """Every parameter and every input gets a gradient."""
    x = tokens(spec, rows=40)
    parts = {"tokens": x.tokens} | ({} if x.linear is None else {"linear": x.linear})
    for part in parts.values():
        part.requires_grad_()
    out = ranker.train()(x)
    (out.logits.pow(3).sum() + sum(out.aux.values())).backward()
    read = {key: part for key, part in parts.items() if key in spec.reads}
    for label, parameter in [*ranker.named_parameters(), *read.items()]:
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
        assert parameter.grad.any(), f"{label} does not learn"
    ranker.eval().zero_grad()


def check_bf16(spec: Spec, ranker: Any) -> None:
    x = tokens(spec)
    for part in (x.tokens, x.linear):
        if part is not None:
            part.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = ranker(x)
        loss = out.logits.float().square().mean()
    loss.backward()
    assert out.logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in ranker.parameters())
    ranker.zero_grad()


@ALL
@pytest.mark.parametrize("check", [check_rows, check_captures, check_flops, check_learns, check_bf16])
def test_laws(pair: Pair, check: Callable[[Spec, Any], None]) -> None:
    for spec, ranker in every(pair):
        try:
            check(spec, ranker)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


class Gossip(FMRanker):
    """Planted: each row hears of the others."""

    def forward(self, x: FieldTokens) -> RankerOutput:
        out = super().forward(x)
        return RankerOutput(out.logits + out.logits.mean(), out.captures)


class Idle(FMRanker):
    """Planted: a weight that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


class Hoarder(FMRanker):
    """Planted: keeps taps that nobody asked for."""

    def forward(self, x: FieldTokens) -> RankerOutput:
        return RankerOutput(super().forward(x).logits, {"embedding": x.tokens})


class Overflow(FMRanker):
    """Planted: a constant that bfloat16's rounding turns to nothing and a logarithm to infinity."""

    def forward(self, x: FieldTokens) -> RankerOutput:
        out = super().forward(x)
        return RankerOutput(out.logits + ((1.0 + out.logits.bfloat16() * 0 + 1e-4) - 1.0).float().log(), out.captures)


@pytest.mark.parametrize(
    ("fault", "check"),
    [(Gossip, check_rows), (Idle, check_learns), (Hoarder, check_captures), (Overflow, check_bf16)],
)
def test_planted_faults_are_caught(fault: type, check: Callable[[Spec, Any], None]) -> None:
    check(FM(), FMRanker())
    with pytest.raises(AssertionError):
        check(FM(), fault())
