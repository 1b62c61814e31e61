"""Rankers at a size that laws can run on hundreds of times, and what goes into them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from clicks import FIELDS
from discover import Pair, everything, name
from fullrank.core.spec import Spec
from fullrank.models.ranking import FieldTokens
from fullrank.models.ranking.model import RankingModel, RankingModule
from tiny import built, plain, reachable, shaken

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
    return FieldTokens(x, torch.randn(rows, generator=draw) if "linear" in spec.reads else None)


def every(pair: Pair) -> Iterator[tuple[Spec, Any]]:
    return built(specs(pair), FIELDS, DIM)


def model(pair: Pair, *embedding: str) -> RankingModule:
    torch.manual_seed(0)
    dim = () if "tokens" not in small(pair).reads else (f"embedding.dim={DIM}",)
    click = RankingModel(ranker=small(pair)).override(*dim, *(f"embedding.{one}" for one in embedding))
    made = click.build(FIELDS)
    shaken(made)
    return made
