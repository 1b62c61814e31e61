"""Laws of every metric: bounded, and the same number whatever the user batch, the item block and the rank count."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, PerUser, evaluate, measure, merge
from fullrank.metrics.names import ACCURACY, DEFAULT, PER_LIST, parse_metric

KS = (1, 2, 7, 20)
UNIT = {*ACCURACY, *PER_LIST, "fair"}
"""Metrics between 0 and 1; the others are at least 0."""

stores = st.builds(Kept.random, st.integers(1, 40), st.integers(13, 50), st.integers(0, 10_000))
specs = st.builds(
    Evaluation,
    seen=st.sampled_from(["exclude", "keep"]),
    protocol=st.sampled_from(["full", "sampled"]),
    ks=st.just(KS),
    bootstrap=st.just(5),
)


def run(store: Kept, spec: Evaluation) -> EvaluationResult:
    return evaluate(Whole(len(store.catalog.popularity)), store, "test", spec)


@given(stores, specs)
def test_bounded(store: Kept, spec: Evaluation) -> None:
    found = run(store, spec)
    for text, value in found.metrics.items():
        numbers = [value, *found.interval[text], *found.per_user.values.get(text, [])]
        assert all(math.isfinite(n) and n >= 0 for n in numbers), text
        if parse_metric(text).base in UNIT:
            assert max(numbers) <= 1 + 1e-12, text


@given(stores, specs)
def test_longer_lists_find_more(store: Kept, spec: Evaluation) -> None:
    found = run(store, spec).per_user.values
    for base in ("recall", "hit", "mrr", "map"):
        for shorter, longer in zip(KS, KS[1:], strict=False):
            assert np.all(found[f"{base}@{longer}"] >= found[f"{base}@{shorter}"])


@settings(max_examples=20)
@given(stores, specs, st.integers(1, 50), st.integers(1, 60))
def test_unchanged_by_batch_and_block(store: Kept, spec: Evaluation, batch_size: int, block: int) -> None:
    same = spec.model_copy(update={"batch_size": batch_size, "block": block})
    assert run(store, same).to_json() == run(store, spec).to_json()


Merge = Callable[[list[PerUser]], EvaluationResult]


def check_shards(store: Kept, spec: Evaluation, world: int, put_together: Merge = merge) -> None:
    model = Whole(len(store.catalog.popularity))
    parts = [measure(model, store, "test", spec, shard=(rank, world)) for rank in range(world)]
    assert put_together(parts).to_json() == run(store, spec).to_json()


@settings(max_examples=20)
@given(stores, specs, st.integers(1, 5))
def test_unchanged_by_rank_count(store: Kept, spec: Evaluation, world: int) -> None:
    check_shards(store, spec, world)


def test_every_default_metric_is_under_these_laws() -> None:
    found = run(Kept.random(5, 30), Evaluation(ks=KS))
    assert {parse_metric(n).base for n in found.metrics} == {parse_metric(f"{base}@1").base for base in DEFAULT}


def _mean_of_ranks(parts: list[PerUser]) -> EvaluationResult:
    """The planted fault, seen in the field: each rank's number, averaged."""
    alone = [
        merge([PerUser(p.users, p.values, p.lists, p.groups, {**p.protocol, "users": len(p.users)})]) for p in parts
    ]
    whole = merge(parts)
    metrics = {n: float(np.mean([a.metrics[n] for a in alone])) for n in whole.metrics}
    return EvaluationResult(metrics, whole.stderr, whole.interval, whole.slices, whole.protocol, whole.per_user)


def test_planted_fault_averaging_ranks_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_shards(Kept.random(31, 40), Evaluation(ks=KS, bootstrap=5), 2, _mean_of_ranks)
