"""Rankers at a size that laws can run on hundreds of times, and what goes into them."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from clicks import FIELDS
from discover import Pair, everything, name
from fullrank.core.spec import Spec
from fullrank.models.ranking.model import RankingModel, RankingModule
from fullrank.testing import rankers
from fullrank.testing.rankers import DIM, tokens
from tiny import built, plain, shaken

__all__ = ["ALL", "DIM", "LINEAR", "PARTS", "SYMMETRIC", "every", "model", "small", "specs", "tokens"]

ALL = pytest.mark.parametrize("pair", everything("rankers"), ids=name)
PARTS = pytest.mark.parametrize("pair", everything("rankers.mixings", "rankers.feed_forwards"), ids=name)
LINEAR = {"lr"}
"""One weight per value: a sum of functions of single fields cannot be the product that is planted."""
SYMMETRIC = {"lr", "fm"}
"""Sums over fields and pairs: the order of fields cannot matter, with the very same weights."""


def small(pair: Pair) -> Spec:
    """The kind at a size that tests can run on hundreds of times."""
    return rankers.small(plain(pair))


def specs(pair: Pair, *, numbers: bool = True) -> list[Spec]:
    """Settings one change away, parts inside included (a mixing, a tokeniser, a perceptron)."""
    return rankers.near(plain(pair), numbers=numbers)


def every(pair: Pair) -> Iterator[tuple[Spec, Any]]:
    return built(specs(pair), FIELDS, DIM)


def model(pair: Pair, *embedding: str) -> RankingModule:
    torch.manual_seed(0)
    dim = () if "tokens" not in small(pair).reads else (f"embedding.dim={DIM}",)
    click = RankingModel(ranker=small(pair)).override(*dim, *(f"embedding.{one}" for one in embedding))
    made = click.build(FIELDS)
    shaken(made)
    return made
