"""The checks of the components catch a fault planted in a part itself: the classic encoders, debiasing, reasoning."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from discover import load, name
from fullrank.models.sequential.attention.mojito import MojitoAttention
from fullrank.models.sequential.encoders.caser import CaserEncoder
from fullrank.models.sequential.encoders.fdsa import FDSAEncoder
from fullrank.models.sequential.encoders.fmlp import Filter
from fullrank.models.sequential.items.tpab import TPABItems
from fullrank.models.sequential.objectives.tasks.mojito import MojitoTask
from fullrank.models.sequential.reasoning.lares import LARESReasoner
from fullrank.models.sequential.regularizers.cl4srec import CL4SRecPenalty
from fullrank.models.sequential.regularizers.tpab import TPABBootstrapPenalty
from fullrank.testing import attention, checks, encoders, reasoning
from parts import ReaRec, Softmax, Transformer

Plant = Callable[[Any], Any]
"""A method to the faulty one in its place."""


def ahead(read) -> Any:
    """A window that ends one event too late."""
    return lambda self, x, known: read(self, x.roll(-1, 1), known)


def circular(forward) -> Any:
    """The published filter, which wraps around, where a causal one was asked for."""

    def planted(self, x, batch):
        self.causal = False
        try:
            return forward(self, x, batch)
        finally:
            self.causal = True

    return planted


def next_features(joined) -> Any:
    """The ids of an event beside the features of the next."""

    def planted(self, x, ids, features):
        return joined(self, x, ids, type(features)(features.tokens.roll(-1, 1), features.layers, features.blocks))

    return planted


def unmasked(mix) -> Any:
    """A mixture over keys that come later, and over padding."""
    return lambda self, q, k, allowed, places=None: mix(self, q, k, torch.ones_like(allowed), places)


def doubled(answer) -> Any:
    return lambda self, *given: 2 * answer(self, *given)


def gossiping(joined) -> Any:
    """A thought that hears of the other rows."""
    return lambda self, thought, hidden: joined(self, thought + hidden.mean(0, keepdim=True), hidden)


def without_slope(forward) -> Any:
    """A penalty that is a number and moves nothing."""
    return lambda self, step: forward(self, step).detach()


def not_finite(forward) -> Any:
    return lambda self, step: forward(self, step) / 0


def of_next(long_term) -> Any:
    """The long-term part of an event, made of the next."""
    return lambda self, states: long_term(self, states).roll(-1, 1)


FAULTS = [
    (("encoders", "caser"), CaserEncoder, "read", ahead, "causal"),
    (("encoders", "fmlp"), Filter, "forward", circular, "causal"),
    (("encoders", "fmlp"), Filter, "step", doubled, "steps"),
    (("encoders", "fdsa"), FDSAEncoder, "_joined", next_features, "causal"),
    (("attention", "mojito"), MojitoAttention, "mix", unmasked, "causal"),
    (("attention", "mojito"), MojitoAttention, "mix", doubled, "weights"),
    (("items", "tpab"), TPABItems, "all", doubled, "vectors"),
    (("objectives.tasks", "mojito"), MojitoTask, "long_term", of_next, "leak"),
    (("reasoning", "lares"), LARESReasoner, "_joined", gossiping, "padding"),
    (("regularizers", "cl4srec"), CL4SRecPenalty, "forward", without_slope, "finite"),
    (("regularizers", "tpab"), TPABBootstrapPenalty, "forward", not_finite, "finite"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pair", "part", "method", "plant", "check"), FAULTS, ids=[f"{name(one[0])}-{one[4]}" for one in FAULTS]
)
def test_a_planted_fault_is_caught(pair, part, method, plant, check, monkeypatch) -> None:
    run = dict(checks(load(pair), room=pair[0]))[check]
    run()
    monkeypatch.setattr(part, method, plant(getattr(part, method)))
    with pytest.raises(AssertionError):
        run()


@pytest.mark.parametrize(
    ("spec", "check"),
    [(Softmax, attention.check_effects), (Transformer, encoders.check_effects), (ReaRec, reasoning.check_effects)],
)
def test_a_setting_without_effect_is_caught(spec, check) -> None:
    class Deaf(spec):
        unread: bool = False

    with pytest.raises(AssertionError, match="unread has no effect"):
        check(Deaf(), torch.device("cpu"))
