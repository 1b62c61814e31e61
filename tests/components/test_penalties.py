"""Every penalty is least where it is said to be, and the checks of `fullrank.testing.regularizers` catch faults."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fullrank.models import Record, Step
from fullrank.models.sequential.regularizers.logdet import LogDet
from fullrank.testing.regularizers import (
    DIM,
    check_falls,
    check_finite,
    check_optimum,
    small_recommender,
)
from tests.components.cases import every_kind
from tiny import ITEMS, Flat, drawn, histories, padded, plain

ALL = every_kind("regularizers")


def searching(step, table) -> Step:
    """The step with other item vectors to search."""
    return replace(step, queries=tuple(replace(q, table=Flat(table)) for q in step.queries))


def two_rows() -> Step:
    return small_recommender().step(padded(histories([5, 7])))


def at_orthonormal_items() -> tuple:
    """Item vectors whose Gram matrix is the identity."""
    table = torch.linalg.qr(drawn(ITEMS, DIM))[0]
    step = two_rows()
    return lambda moved: searching(step, moved), table


def at_zero_scores() -> tuple:
    """Item vectors that score nothing: the quotient is the square of a norm."""
    step = two_rows()
    return lambda moved: searching(step, moved), torch.zeros(ITEMS, DIM)


def at_even_odds() -> tuple:
    """Where a target and its negative cannot be told apart (the same score), a probability of one half."""
    step = two_rows()

    def scored(moved):
        (q,) = step.queries
        record = Record(moved, positive=moved, negative=moved[:, None], negative_ids=q.targets[:, None])
        return replace(step, records={q.name: record})

    return scored, torch.zeros(len(step.queries[0].targets))


class OneWeight(nn.Module):
    """A model with a single parameter."""

    def __init__(self, weight):
        super().__init__()
        self._weight = weight

    def named_parameters(self, *_, **__):
        yield "weight", self._weight


def at_the_start() -> tuple:
    """The weights that training starts from."""
    step = two_rows()
    start = drawn(4, 3, seed=2)
    return lambda moved: replace(step, model=OneWeight(moved)), start


OPTIMA = {
    "logdet": at_orthonormal_items, "resn": at_zero_scores, "dros": at_even_odds, "ewc": at_the_start,
}  # fmt: skip
"""Where each kind is least; a new penalty states its own here."""
BOTTOMLESS = {
    "sprint": "logarithms of norms fall without end as the weights shrink",
    "kl_diversity": "states may differ more and more; what counts is cut where the gradient ends",
    "reasoning_alignment": "cosines among a batch have no common optimum that is known in closed form",
    "reasoning_contrast": "cosines among a batch have no common optimum that is known in closed form",
    "progressive": "inner products grow without end",
    "stream_loss": "a cross-entropy falls without end as the target's score grows",
    "tpab": "a loss of further queries, like stream_loss",
    "sequence_contrast": "it runs the encoder itself, so no one tensor of the step decides its value",
    "noise_robustness": "it runs the encoder itself, so no one tensor of the step decides its value",
    "cl4srec": "it runs the encoder itself, so no one tensor of the step decides its value",
    "s3rec": "logarithms of probabilities fall without end as scores grow",
    "mutual_information": "cosines among a batch have no common optimum that is known in closed form",
}
"""Kinds without a least value to name, and why; of these a step against the gradient must lower the value."""


@ALL
def test_least_at_its_optimum(pair) -> None:
    if pair[1] in BOTTOMLESS:
        whole = small_recommender(pair[1], plain(pair))
        check_falls(whole, whole.penalties[pair[1]])
        return
    assert pair[1] in OPTIMA, f"state where {pair[1]!r} is least: add it to OPTIMA in {__file__}"
    check_optimum(plain(pair).build(), OPTIMA[pair[1]])  # type: ignore[attr-defined]


def test_planted_faults_are_caught() -> None:
    def elsewhere(step):
        return (step.queries[0].table.all() - 1).pow(2).sum()

    def detached(step):
        return LogDet().build()(step).detach() + 0 * step.states.tokens.sum()

    with pytest.raises(AssertionError):
        check_optimum(elsewhere, at_orthonormal_items)
    with pytest.raises(AssertionError):
        check_finite(small_recommender(), detached)

    def backwards(step):
        value = LogDet().build()(step)
        return 2 * value.detach() - value

    with pytest.raises(AssertionError):
        check_falls(small_recommender(), backwards)
