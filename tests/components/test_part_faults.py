"""The checks of the components catch a fault planted in a part itself: the classic encoders, debiasing, reasoning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, load, name
from fullrank.models.sequential.attention.mojito import MojitoAttention
from fullrank.models.sequential.encoders.caser import CaserEncoder
from fullrank.models.sequential.encoders.fdsa import FDSAEncoder
from fullrank.models.sequential.encoders.fmlp import Filter
from fullrank.models.sequential.encoders.hgn import HGNEncoder
from fullrank.models.sequential.items.tpab import TPABItems
from fullrank.models.sequential.items.unisrec import UniSRecItems
from fullrank.models.sequential.objectives.tasks.mojito import MojitoTask
from fullrank.models.sequential.reasoning.lares import LARESReasoner
from fullrank.models.sequential.regularizers.cl4srec import CL4SRecPenalty
from fullrank.models.sequential.regularizers.ewc import EWCPenalty
from fullrank.models.sequential.regularizers.reasoning_alignment import ReasoningAlignmentPenalty
from fullrank.models.sequential.regularizers.s3rec import S3RecPenalty
from fullrank.models.sequential.regularizers.sequence_contrast import SequenceContrastPenalty
from fullrank.models.sequential.regularizers.tpab import TPABBootstrapPenalty
from fullrank.testing import checks

Plant = Callable[[Any], Any]
"""A method to the faulty one in its place."""


def ahead(read: Any) -> Any:
    """A window that ends one event too late."""
    return lambda self, x, known: read(self, x.roll(-1, 1), known)


def circular(forward: Any) -> Any:
    """The published filter, which wraps around, where a causal one was asked for."""

    def planted(self: Filter, x: Tensor, batch: Any) -> Tensor:
        self.causal = False
        try:
            return forward(self, x, batch)
        finally:
            self.causal = True

    return planted


def next_features(joined: Any) -> Any:
    """The ids of an event beside the features of the next."""

    def planted(self: FDSAEncoder, x: Tensor, ids: Any, features: Any) -> Any:
        return joined(self, x, ids, type(features)(features.tokens.roll(-1, 1), features.layers, features.blocks))

    return planted


def unmasked(mix: Any) -> Any:
    """A mixture over keys that come later, and over padding."""
    return lambda self, q, k, allowed, places=None: mix(self, q, k, torch.ones_like(allowed), places)


def doubled(answer: Any) -> Any:
    return lambda self, *given: 2 * answer(self, *given)


def gossiping(joined: Any) -> Any:
    """A thought that hears of the other rows."""
    return lambda self, thought, hidden: joined(self, thought + hidden.mean(0, keepdim=True), hidden)


def without_slope(forward: Any) -> Any:
    """A penalty that is a number and moves nothing."""
    return lambda self, step: forward(self, step).detach()


def not_finite(forward: Any) -> Any:
    return lambda self, step: forward(self, step) / 0


def of_next(long_term: Any) -> Any:
    """The long-term part of an event, made of the next."""
    return lambda self, states: long_term(self, states).roll(-1, 1)


FAULTS: list[tuple[Pair, type, str, Plant, str]] = [
    (("encoders", "caser"), CaserEncoder, "read", ahead, "causal"),
    (("encoders", "hgn"), HGNEncoder, "read", ahead, "causal"),
    (("encoders", "fmlp"), Filter, "forward", circular, "causal"),
    (("encoders", "fmlp"), Filter, "step", doubled, "steps"),
    (("encoders", "fdsa"), FDSAEncoder, "_joined", next_features, "causal"),
    (("attention", "mojito"), MojitoAttention, "mix", unmasked, "causal"),
    (("attention", "mojito"), MojitoAttention, "mix", doubled, "weights"),
    (("items", "tpab"), TPABItems, "all", doubled, "vectors"),
    (("items", "unisrec"), UniSRecItems, "all", doubled, "vectors"),
    (("objectives.tasks", "mojito"), MojitoTask, "long_term", of_next, "leak"),
    (("reasoning", "lares"), LARESReasoner, "_joined", gossiping, "padding"),
    (("regularizers", "cl4srec"), CL4SRecPenalty, "forward", without_slope, "finite"),
    (("regularizers", "s3rec"), S3RecPenalty, "forward", without_slope, "finite"),
    (("regularizers", "sequence_contrast"), SequenceContrastPenalty, "forward", without_slope, "finite"),
    (("regularizers", "reasoning_alignment"), ReasoningAlignmentPenalty, "forward", without_slope, "finite"),
    (("regularizers", "tpab"), TPABBootstrapPenalty, "forward", not_finite, "finite"),
    (("regularizers", "ewc"), EWCPenalty, "forward", without_slope, "finite"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pair", "part", "method", "plant", "check"), FAULTS, ids=[f"{name(one[0])}-{one[4]}" for one in FAULTS]
)
def test_a_planted_fault_is_caught(
    pair: Pair, part: type, method: str, plant: Plant, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dict(checks(load(pair), room=pair[0]))[check]
    run()
    monkeypatch.setattr(part, method, plant(getattr(part, method)))
    with pytest.raises(AssertionError):
        run()
