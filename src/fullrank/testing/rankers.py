"""Checks of every ranker: rows alone, captures, costs, gradients everywhere, and bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from fullrank.core.spec import Spec
from fullrank.data.impressions.schema import FieldInfo
from fullrank.models.ranking import EVERY, FieldTokens, RankerSpec
from fullrank.ops.model_cost import counted
from fullrank.testing.inputs import Device, all_learn, built, close, close_in_bf16, of_specs, with_parts

DIM = 4
FIELDS = (
    FieldInfo("user", "categorical", 12),
    FieldInfo("price", "numeric", 0),
    FieldInfo("genres", "bag", 7),
    FieldInfo("item", "categorical", 9),
    FieldInfo("history", "sequence", 9, "item"),
    FieldInfo("age", "numeric", 0),
    FieldInfo("hour", "categorical", 5),
)
"""Seven: a number that no width of these tests is a multiple of by chance."""
SMALL: dict[str, tuple[str, ...]] = {
    "dnn": ("deep.hidden=[5]",), "dcnv2": ("deep.hidden=[5]", "crosses=2"), "xdeepfm": ("deep.hidden=[5]", "cin=[3,5]"),
    "autoint": ("layers=2", "width=8", "deep.hidden=[5]"),
    "finalmlp": ("first.hidden=[6]", "second.hidden=[4]", "heads=2", "gate_hidden=[5]", "first_context=[user]"),
    "rankmixer": ("tokens=4", "width=12", "blocks=1", "tokeniser.hidden=5"),
    "rankelastor": ("tokens=4", "width=6", "blocks=1", "tokeniser.hidden=5", "feed_forward.expansion=1.5"),
}  # fmt: skip


def small(spec: Spec) -> Spec:
    """The kind at a size that checks can run on hundreds of times."""
    return spec.override(*SMALL.get(spec.kind_of(), ()))


def near(spec: Spec, *, numbers: bool = True) -> list[Spec]:
    """Settings one change away, parts inside included (a mixing, a tokeniser, a perceptron)."""
    base = small(spec)
    return [*with_parts(base, numbers=numbers, part_numbers=numbers), *extra(base)]


def extra(base: Spec) -> list[Spec]:
    """Pairs of settings that go together only."""
    if base.kind_of() == "dcnv2":
        return [base.override("rank=3"), base.override("rank=3", "experts=2"), base.override("rank=2", "experts=1")]
    if base.kind_of() == "finalmlp":
        contexts = ("first_context=[]", "second_context=[genres, item]", "first_context=[item, user]", "gate_hidden=[]")
        return [base.override("gates=false", "first_context=[]", "gate_hidden=[64]"), *map(base.override, contexts)]
    if "mixing" not in type(base).model_fields:
        return []
    kinds = ("mixing=full", "mixing=block_transpose", "feed_forward=glu", "feed_forward=gelu", "feed_forward=experts")
    specs = [base.override("width=12", kind) for kind in kinds]
    specs += [base.override("tokeniser={mode: none}", "width=null"), base.override("tokeniser={mode: vector}")]
    specs += [base.override("event_tokens=3", "width=14"), base.override("event_tokens=2", "mixing=full")]
    glu = ("bias=false", "inner_skip=true", "outer_skip=true", "norm=false")
    specs += [base.override("feed_forward=glu", f"feed_forward.{setting}") for setting in glu]
    specs += [base.override("feed_forward=gelu", "feed_forward.hidden=[3, 5]")]
    stacked = ("feed_forward=glu", "feed_forward.closing=true", "feed_forward.hidden=[5, 3]", "feed_forward.bias=false")
    specs += [base.override(*stacked), base.override("head=mlp", "head_dropout=0.3", "head_batch_norm=true")]
    return specs + [base.override("mixing=full", f"mixing.{setting}") for setting in ("norm=post", "factor=2")]


def tokens(spec: RankerSpec, rows: int = 9, seed: int = 3, device: Device = "cpu") -> FieldTokens:
    """Random vectors of `FIELDS`, with linear parts and newest events where they are read."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, len(FIELDS), DIM, generator=draw)
    linear = torch.randn(rows, generator=draw).to(device) if "linear" in spec.reads else None
    contexts = tuple(torch.randn(rows, len(names), DIM, generator=draw).to(device) for names in spec.contexts)
    events = None
    if spec.reads_events:
        sequences = sum(field.kind == "sequence" for field in FIELDS)
        events = torch.randn(rows, sequences * spec.reads_events, DIM, generator=draw).to(device)
    return FieldTokens(x.to(device), linear, contexts=contexts, events=events)


def row(x: FieldTokens, at: int) -> FieldTokens:
    """One row alone."""
    parts: dict[str, Any] = {key: v[at : at + 1] for key, v in vars(x).items() if isinstance(v, torch.Tensor)}
    return replace(x, contexts=tuple(part[at : at + 1] for part in x.contexts), **parts)


def check_rows_alone(spec: RankerSpec, ranker: Any, device: Device = "cpu") -> None:
    """A row's logit is its own, whoever stands beside it; its captures too."""
    x = tokens(spec, device=device)
    whole = ranker(replace(x, wanted=EVERY))
    assert whole.logits.shape == (9,) and whole.logits.isfinite().all()
    alone = ranker(replace(row(x, 4), wanted=EVERY))
    assert close(alone.logits, whole.logits[4:5]), "a row's logit depends on the other rows"
    assert all(close(alone.captures[key], value[4:5]) for key, value in whole.captures.items())


def check_captures(spec: RankerSpec, ranker: Any, device: Device = "cpu") -> None:
    """Only what is wanted is kept, in order of depth, and asking changes nothing."""
    x = tokens(spec, device=device)
    plain_output, whole = ranker(x), ranker(replace(x, wanted=EVERY))
    assert not plain_output.captures and torch.equal(plain_output.logits, whole.logits)
    if "tokens" in spec.reads:
        assert next(iter(whole.captures)) == "embedding" and torch.equal(whole.captures["embedding"], x.tokens)
    for key, value in whole.captures.items():
        assert value.ndim == 3 and list(ranker(replace(x, wanted=frozenset({key}))).captures) == [key]


def check_cost(spec: RankerSpec, ranker: Any, device: Device = "cpu") -> None:
    """An impression costs as much on shapes as on numbers."""
    x = tokens(spec, device=device)
    stated = ranker.flops(len(FIELDS), DIM)
    assert None not in stated.values(), f"{stated}: it does not run on shapes; override `flops`"
    assert counted(lambda: ranker(x)) == 9 * sum(stated.values()), stated


def check_everything_learns(spec: RankerSpec, ranker: Any, device: Device = "cpu") -> None:
    """Every parameter and every input gets a gradient."""
    x = tokens(spec, rows=40, device=device)
    parts = {key: value for key, value in vars(x).items() if isinstance(value, torch.Tensor)}
    contexts = {f"context {n}": part for n, part in enumerate(x.contexts) if part.shape[1]}
    for part in [*parts.values(), *contexts.values()]:
        part.requires_grad_()
    out = ranker.train()(x)
    (out.logits.pow(3).sum() + sum(out.aux.values())).backward()
    read = {key: part for key, part in parts.items() if key in (*spec.reads, "events")}
    all_learn([*ranker.named_parameters(), *read.items(), *contexts.items()])
    ranker.eval().zero_grad()


def check_bf16(spec: RankerSpec, ranker: Any, device: Device = "cpu") -> None:
    x = tokens(spec, rows=40, device=device)
    parts = [part.requires_grad_() for part in (x.tokens, x.linear, x.events) if part is not None]
    close_in_bf16(lambda: ranker(x).logits, [*parts, *ranker.parameters()])


def _rankers(spec: Spec, device: torch.device) -> Iterator[tuple[Any, ...]]:
    for other, ranker in built(near(spec), FIELDS, DIM, device=device):
        yield other, other, ranker, device


BASE = RankerSpec
OF_RANKERS = (check_rows_alone, check_captures, check_cost, check_everything_learns, check_bf16)
CHECKS = of_specs(OF_RANKERS, _rankers)
