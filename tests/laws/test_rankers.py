"""Laws of every ranker: it solves a planted interaction, knows no order of fields, sees rows one by one, and learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from clicks import FIELDS, PLANTED, impressions, planted
from discover import Pair, everything, name, variations
from fullrank.click import Click, ClickModel
from fullrank.errors import UserError
from fullrank.metrics.ctr import auc
from fullrank.ops.flop_count import counted
from fullrank.rankers import EVERY, FieldTokens, RankerOutput, reads
from fullrank.rankers.fm import FM, FMRanker
from fullrank.spec import Spec
from tiny import built, close, plain, reachable, shaken

DIM = 4
ALL = pytest.mark.parametrize("pair", everything("rankers"), ids=name)
PARTS = pytest.mark.parametrize("pair", everything("rankers.mixings", "rankers.feed_forwards"), ids=name)
LINEAR = {"lr"}
"""One weight per value: a sum of functions of single fields cannot be the product that is planted."""
SYMMETRIC = {"lr", "fm"}
"""Sums over fields and pairs: the order of fields cannot matter, with the very same weights."""
SMALL = {
    "dnn": ("deep.hidden=[5]",), "dcnv2": ("deep.hidden=[5]", "crosses=2"), "xdeepfm": ("deep.hidden=[5]", "cin=[3,5]"),
    "autoint": ("layers=2", "width=8", "deep.hidden=[5]"),
    "rankmixer": ("tokens=4", "width=12", "blocks=1", "tokeniser.hidden=5"),
    "rankelastor": ("tokens=4", "width=6", "blocks=1", "tokeniser.hidden=5", "feed_forward.expansion=1.5"),
}  # fmt: skip


def small(pair: Pair) -> Spec:
    """The kind at a size that laws can run on hundreds of times."""
    return plain(pair).override(*SMALL.get(pair[1], ()))


def specs(pair: Pair, *, numbers: bool = True) -> list[Spec]:
    """Settings one change away, parts inside included (a mixing, a tokeniser, a perceptron)."""
    base = small(pair)
    found = {spec: None for spec in reachable(base, 1, numbers=numbers)}
    for key in type(base).model_fields:
        part = getattr(base, key)
        others = reachable(part, 2, numbers=numbers) if isinstance(part, Spec) else []
        found |= {base.model_copy(update={key: other}): None for other in others}
    return [*found, *extra(base)]


def extra(base: Spec) -> list[Spec]:
    """Pairs of settings that go together only."""
    if base.kind_of() == "dcnv2":
        return [base.override("rank=3"), base.override("rank=3", "experts=2"), base.override("rank=2", "experts=1")]
    if "mixing" not in type(base).model_fields:
        return []
    kinds = ("mixing=full", "mixing=block_transpose", "feed_forward=glu", "feed_forward=gelu", "feed_forward=experts")
    found = [base.override("width=12", kind) for kind in kinds]
    found += [base.override("tokeniser={mode: none}", "width=null"), base.override("tokeniser={mode: vector}")]
    glu = ("bias=false", "inner_skip=true", "outer_skip=true", "norm=false")
    found += [base.override("feed_forward=glu", f"feed_forward.{one}") for one in glu]
    found += [base.override("feed_forward=gelu", "feed_forward.hidden=[3, 5]")]
    return found + [base.override("mixing=full", f"mixing.{one}") for one in ("norm=post", "factor=2")]


def tokens(spec: Spec, rows: int = 9, seed: int = 3) -> FieldTokens:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, len(FIELDS), DIM, generator=draw)
    return FieldTokens(x, torch.randn(rows, generator=draw) if "linear" in reads(spec) else None)


def every(pair: Pair) -> Iterator[tuple[Spec, Any]]:
    return built(specs(pair), FIELDS, DIM)


def check_rows(spec: Spec, ranker: Any) -> None:
    """A row's logit is its own, whoever stands beside it; its taps too."""
    x = tokens(spec)
    whole = ranker(replace(x, wanted=EVERY))
    assert whole.logits.shape == (9,) and whole.logits.isfinite().all()
    one = replace(x, tokens=x.tokens[4:5], linear=None if x.linear is None else x.linear[4:5], wanted=EVERY)
    alone = ranker(one)
    assert close(alone.logits, whole.logits[4:5]), "a row's logit depends on the other rows"
    assert all(close(alone.taps[key], tap[4:5]) for key, tap in whole.taps.items())


def check_taps(spec: Spec, ranker: Any) -> None:
    """Only what is wanted is kept, in order of depth, and asking changes nothing."""
    x = tokens(spec)
    plain_output, whole = ranker(x), ranker(replace(x, wanted=EVERY))
    assert not plain_output.taps and torch.equal(plain_output.logits, whole.logits)
    if "tokens" in reads(spec):
        assert next(iter(whole.taps)) == "embedding" and torch.equal(whole.taps["embedding"], x.tokens)
    for key, tap in whole.taps.items():
        assert tap.ndim == 3 and list(ranker(replace(x, wanted=frozenset({key}))).taps) == [key]


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
    read = {key: part for key, part in parts.items() if key in reads(spec)}
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
@pytest.mark.parametrize("check", [check_rows, check_taps, check_flops, check_learns, check_bf16])
def test_laws(pair: Pair, check: Callable[[Spec, Any], None]) -> None:
    for spec, ranker in every(pair):
        try:
            check(spec, ranker)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


def solved(ranker: Spec, steps: int = 100) -> float:
    """AUC on fresh impressions after some steps on planted ones."""
    torch.manual_seed(0)
    click = Click(ranker=ranker, embedding={"std": 0.1} if "tokens" not in reads(ranker) else {"std": 0.1, "dim": 8})
    model = click.build(PLANTED)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = planted(8192, 1)
    for step in range(steps):
        rows = torch.randint(8192, (256,), generator=torch.Generator().manual_seed(step))
        batch = replace(
            data, categorical=data.categorical[rows], numeric=data.numeric[rows], missing=data.missing[rows],
            labels=data.labels[rows],
        )  # fmt: skip
        optimizer.zero_grad()
        sum(model(batch).values()).backward()
        optimizer.step()
    fresh = planted(4000, 2)
    with torch.inference_mode():
        return auc(model.eval().probabilities(fresh).numpy(), fresh.labels.numpy())


@ALL
def test_solves_the_planted_interaction(pair: Pair) -> None:
    spec = plain(pair)
    for key in ("deep", "tokeniser"):
        if key in type(spec).model_fields:
            spec = spec.override(f"{key}.hidden=[32]" if key == "deep" else f"{key}.hidden=64")
    if "tokens" in type(spec).model_fields:
        spec = spec.override("tokens=4", "width=8")
    if pair[1] == "autoint":
        spec = spec.override("layers=2", "width=16")
    found = solved(spec)
    if pair[1] in LINEAR:
        assert found < 0.56, "a linear model cannot know this; the data leak"
    else:
        assert found > 0.85, f"AUC {found:.3f}; 0.924 is possible"


def swapped(label: str, value: Tensor, order: list[int]) -> Tensor:
    """A parameter for fields in another order: each dimension made of one block per field has its blocks moved."""
    at = torch.tensor(order)
    for dim, size in enumerate(value.shape):
        rest = 5 if label == "head.weight" and size == 7 * DIM + 5 else 0  # dcnv2: the perceptron's 5 come last
        if size - rest in (7 * DIM, 7 * 7, 7 * 3, 7 * 8):
            fields, others = value.split([size - rest, rest], dim)
            blocks = fields.unflatten(dim, (7, -1)).index_select(dim, at)
            if label == "cin.0.weight":  # pairs of fields
                blocks = blocks.index_select(dim + 1, at)
            value = torch.cat([blocks.flatten(dim, dim + 1), others], dim)
    return value


@ALL
def test_the_order_of_fields_is_a_convention(pair: Pair) -> None:
    """Fields in another order give the same logits: as they are for lr and fm, for the others with the blocks of the
    weights that belong to fields moved alike. Tokenisers that cut chunks across fields have no such blocks (vector)."""
    spec = small(pair)
    if "tokeniser" in type(spec).model_fields:
        spec = spec.override("tokeniser={mode: vector, hidden: 5}")
    (_, one), (_, two) = next(built([spec], FIELDS, DIM)), next(built([spec], FIELDS, DIM))
    order = [3, 0, 6, 1, 5, 2, 4]
    if pair[1] not in SYMMETRIC:
        state = one.state_dict()
        two.load_state_dict({key: swapped(key, v, order) for key, v in state.items()})
    x = tokens(spec)
    assert close(two(replace(x, tokens=x.tokens[:, order])).logits, one(x).logits, 1e-4)


@cache
def trace(spec: Spec) -> tuple[Any, ...] | None:
    """What can be seen of a spec: the shapes of its parameters, starting values, an output, and one in training."""
    try:
        torch.manual_seed(0)
        ranker = shaken(spec.build(FIELDS, DIM))  # type: ignore[attr-defined]
    except UserError:
        return None
    x = tokens(spec)
    out = [ranker.eval()(x).logits]
    torch.manual_seed(0)
    trained = ranker.train()(x)
    out += [trained.logits, *trained.aux.values()]
    shapes = [(label, tuple(p.shape)) for label, p in ranker.named_parameters()]
    return shapes, *(tuple(o.flatten().tolist()) for o in out)


def check_effects(spec: Spec) -> None:
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


def check_some(here: Any, others: list[Spec], what: str) -> None:
    same = [found == here for found in map(trace, others[:3]) if found is not None]
    assert not same or not all(same), f"{what} has no effect: refuse it"


@ALL
def test_settings_have_effect(pair: Pair) -> None:
    base = small(pair)
    if "deep" in type(base).model_fields:
        base = base.override("deep.dropout=0.3")
    if "dropout" in type(base).model_fields:
        base = base.override("dropout=0.3")
    for spec in [*reachable(base, 1, numbers=False), *extra(base)]:
        if trace(spec) is not None:
            check_effects(spec)


@PARTS
def test_parts_mix_and_learn(pair: Pair) -> None:
    """Mixings and FFNs keep the shape; a mixing moves something from token to token, an FFN nothing."""
    for spec, part in built(reachable(plain(pair), 2), 4, 8):
        x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
        out = part(x)
        value = out[1] if pair[0].endswith("mixings") else out[0]
        assert value.shape == x.shape, spec
        (touched,) = torch.autograd.grad(value[:, 0].pow(3).sum(), x)
        assert bool(touched[:, 1:].any()) == pair[0].endswith("mixings"), spec


def model(pair: Pair, *embedding: str) -> ClickModel:
    torch.manual_seed(0)
    dim = () if "tokens" not in reads(small(pair)) else (f"embedding.dim={DIM}",)
    click = Click(ranker=small(pair)).override(*dim, *(f"embedding.{one}" for one in embedding))
    made = click.build(FIELDS)
    shaken(made)
    return made


@ALL
def test_unknown_and_missing_values_have_vectors_of_their_own(pair: Pair) -> None:
    """The logit of id 1 is that of the row of unknown values, whatever value it stands for; so is that of id 0."""
    made, batch = model(pair).eval(), impressions()
    for special in (0, 1):
        ids = batch.categorical.clone()
        ids[:, 1] = special
        before = made.output(replace(batch, categorical=ids)).logits
        with torch.no_grad():
            for table in made.embedding._all_tables():
                table.table[table.starts["item"] + 2 :][: 9 - 2].add_(0.0)
                table.table[table.starts["item"] + special] += 0.5
        after = made.output(replace(batch, categorical=ids)).logits
        assert not close(before, after)


@ALL
@pytest.mark.parametrize("wrong", [2.0, -1.0, 0.5, float("nan")])
def test_labels_are_0_or_1(pair: Pair, wrong: float) -> None:
    batch = impressions()
    labels = batch.labels.clone()
    labels[3] = wrong
    with pytest.raises(UserError, match="allowed are 0 and 1"):
        model(pair)(replace(batch, labels=labels))


@ALL
@pytest.mark.parametrize("update", ["adamw", "lazy_adam"])
def test_every_parameter_of_the_whole_model_learns(pair: Pair, update: str) -> None:
    made = model(pair, f"update={update}", "l2=0.1").train()
    sum(made(impressions(64)).values()).backward()
    for label, parameter in made.named_parameters():
        assert parameter.grad is not None, label
        grad = parameter.grad.to_dense()
        assert grad.isfinite().all() and grad.any(), f"{label} does not learn"


class Gossip(FMRanker):
    """Planted: each row hears of the others."""

    def forward(self, x: FieldTokens) -> RankerOutput:
        out = super().forward(x)
        return RankerOutput(out.logits + out.logits.mean(), out.taps)


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
        return RankerOutput(out.logits + ((1.0 + out.logits.bfloat16() * 0 + 1e-4) - 1.0).float().log(), out.taps)


@pytest.mark.parametrize(
    ("fault", "check"),
    [(Gossip, check_rows), (Idle, check_learns), (Hoarder, check_taps), (Overflow, check_bf16)],
)
def test_planted_faults_are_caught(fault: type, check: Callable[[Spec, Any], None]) -> None:
    check(FM(), FMRanker())
    with pytest.raises(AssertionError):
        check(FM(), fault())


class Blind(FM):
    """Planted: pairs are left out, and a setting that nothing reads."""

    kind: Literal["fm"] = "fm"
    unread: bool = False

    def build(self, fields: Any, dim: int) -> Any:
        return Unpaired()


class Unpaired(nn.Module):
    def forward(self, x: FieldTokens) -> RankerOutput:
        return RankerOutput(x.linear + 0 * x.tokens.sum((1, 2)))


def test_planted_faults_of_whole_specs_are_caught() -> None:
    with pytest.raises(AssertionError, match="has no effect"):
        check_effects(Blind())
    torch.manual_seed(0)
    click = Click(embedding={"std": 0.1}).model_copy(update={"ranker": Blind()})
    made = click.build(PLANTED)
    fresh = planted(4000, 2)
    assert abs(auc(made.probabilities(fresh).detach().numpy(), fresh.labels.numpy()) - 0.5) < 0.06
    assert solved(Blind(), 100) < 0.56
