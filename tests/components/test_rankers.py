"""Checks of `fullrank.testing.rankers` catch planted faults; settings have an effect; rankers solve an interaction."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from clicks import FIELDS, PLANTED, planted
from discover import variations
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.models.ranking import RankerOutput
from fullrank.models.ranking.fm import FM, FMRanker
from fullrank.models.ranking.model import RankingModel
from fullrank.testing.rankers import check_bf16, check_captures, check_everything_learns, check_rows_alone, extra
from rankers_small import ALL, DIM, LINEAR, PARTS, small, tokens
from tests.models.ranking.test_sequences import auc_after
from tiny import built, drawn, plain, reachable, shaken


class Gossip(FMRanker):
    """Planted: each row hears of the others."""

    def forward(self, x):
        out = super().forward(x)
        return RankerOutput(out.logits + out.logits.mean(), out.captures)


class Idle(FMRanker):
    """Planted: a weight that nothing uses."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


class Hoarder(FMRanker):
    """Planted: keeps outputs that nobody asked for."""

    def forward(self, x):
        return RankerOutput(super().forward(x).logits, {"embedding": x.tokens})


class Overflow(FMRanker):
    """Planted: a constant that bfloat16's rounding turns to nothing and a logarithm to infinity."""

    def forward(self, x):
        out = super().forward(x)
        return RankerOutput(out.logits + ((1.0 + out.logits.bfloat16() * 0 + 1e-4) - 1.0).float().log(), out.captures)


class Turned(FMRanker):
    """Planted: in bf16 products a row's vectors are read as if they were stored the other way round."""

    def forward(self, x):
        turned = x.tokens.mT.reshape(x.tokens.shape)
        return super().forward(replace(x, tokens=turned) if torch.is_autocast_enabled("cpu") else x)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Gossip, check_rows_alone),
        (Idle, check_everything_learns),
        (Hoarder, check_captures),
        (Overflow, check_bf16),
        (Turned, check_bf16),
    ],
)
def test_planted_faults_are_caught(fault, check) -> None:
    check(FM(), FMRanker())
    with pytest.raises(AssertionError):
        check(FM(), fault())


@ALL
def test_solves_the_planted_interaction(pair) -> None:
    spec = plain(pair)
    for key in ("deep", "tokeniser"):
        if key in type(spec).model_fields:
            spec = spec.override(f"{key}.hidden=[32]" if key == "deep" else f"{key}.hidden=64")
    if "tokens" in type(spec).model_fields:
        spec = spec.override("tokens=4", "width=8")
    if pair[1] == "autoint":
        spec = spec.override("layers=2", "width=16")
    click = RankingModel(ranker=spec, embedding={"std": 0.1} | ({"dim": 8} if "tokens" in spec.reads else {}))
    found = auc_after(click, PLANTED, planted(8192, 1), planted(4000, 2), 100)
    if pair[1] in LINEAR:
        assert found < 0.56, "a linear model cannot know this; the data leak"
    else:
        assert found > 0.85, f"AUC {found:.3f}; 0.924 is possible"


@cache
def trace(spec) -> tuple | None:
    """What can be seen of a spec: the shapes of its parameters, starting values, an output, and one in training."""
    try:
        torch.manual_seed(0)
        ranker = spec.build(FIELDS, DIM)
    except UserError:
        return None
    start = tuple(p.double().norm().item() for p in ranker.parameters())
    shaken(ranker)
    x = tokens(spec)
    out = [ranker.eval()(x).logits]
    torch.manual_seed(0)
    trained = ranker.train()(x)
    out += [trained.logits, *trained.aux.values()]
    shapes = [(label, tuple(p.shape)) for label, p in ranker.named_parameters()]
    return shapes, start, *(tuple(o.flatten().tolist()) for o in out)


def check_effects(spec) -> None:
    """Of the values that a setting accepts here, one at least makes a difference."""
    here = trace(spec)
    for key in type(spec).model_fields:
        part = getattr(spec, key)
        others = [v for v in variations(spec) if getattr(v, key) != part]
        if isinstance(part, Spec):
            for inner in type(part).model_fields:
                changed = [v for v in variations(part) if getattr(v, inner) != getattr(part, inner)]
                check_some(here, [spec.model_copy(update={key: v}) for v in changed], f"{key}.{inner} of {spec!r}")
        check_some(here, others, f"{key} of {spec!r}")


def check_some(here, others, what) -> None:
    same = [found == here for found in map(trace, others[:3]) if found is not None]
    assert not same or not all(same), f"{what} has no effect: refuse it"


@ALL
def test_settings_have_effect(pair) -> None:
    base = small(pair)
    if "deep" in type(base).model_fields:
        base = base.override("deep.dropout=0.3")
    if "dropout" in type(base).model_fields:
        base = base.override("dropout=0.3")
    for spec in [*reachable(base, 1, numbers=False), *extra(base)]:
        if trace(spec) is not None:
            check_effects(spec)


@PARTS
def test_parts_mix_and_learn(pair) -> None:
    """Mixings and FFNs keep the shape; a mixing moves something from token to token, an FFN nothing."""
    for spec, part in built(reachable(plain(pair), 2), 4, 8):
        x = drawn(3, 4, 8).requires_grad_()
        out = part(x)
        value = out[1] if pair[0].endswith("mixings") else out[0]
        assert value.shape == x.shape, spec
        (touched,) = torch.autograd.grad(value[:, 0].pow(3).sum(), x)
        assert touched[:, 1:].any() == pair[0].endswith("mixings"), spec
