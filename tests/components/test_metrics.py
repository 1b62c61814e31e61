"""Laws of every metric: bounded, and the same number whatever the user batch, the item block and the rank count."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate, measure, merge
from fullrank.metrics import Metric, MetricInputs, lists
from fullrank.metrics.names import ACCURACY, DEFAULT, EXPOSURE, PER_LIST, parse_metric
from fullrank.testing import check_component

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


def run(store, spec) -> EvaluationResult:
    return evaluate(Whole(len(store.catalog.popularity)), store, "test", spec)


@given(stores, specs)
def test_bounded(store, spec) -> None:
    found = run(store, spec)
    for text, value in found.metrics.items():
        numbers = [value, *found.interval[text], *found.per_user.values.get(text, [])]
        assert all(math.isfinite(n) and n >= 0 for n in numbers), text
        if parse_metric(text).base in UNIT:
            assert max(numbers) <= 1 + 1e-12, text


@given(stores, specs)
def test_longer_lists_find_more(store, spec) -> None:
    found = run(store, spec).per_user.values
    for base in ("recall", "hit", "mrr", "map"):
        for shorter, longer in zip(KS, KS[1:], strict=False):
            assert np.all(found[f"{base}@{longer}"] >= found[f"{base}@{shorter}"])


@settings(max_examples=20)
@given(stores, specs, st.integers(1, 50), st.integers(1, 60))
def test_unchanged_by_batch_and_block(store, spec, batch_size, block) -> None:
    same = spec.model_copy(update={"batch_size": batch_size, "block": block})
    assert run(store, same).to_json() == run(store, spec).to_json()


@settings(max_examples=20)
@given(stores, specs, st.integers(1, 5))
def test_unchanged_by_rank_count(store, spec, world) -> None:
    model = Whole(len(store.catalog.popularity))
    parts = [measure(model, store, "test", spec, shard=(rank, world)) for rank in range(world)]
    assert merge(parts).to_json() == run(store, spec).to_json()


def test_every_default_metric_is_under_these_laws() -> None:
    found = run(Kept.random(5, 30), Evaluation(ks=KS))
    assert {parse_metric(n).base for n in found.metrics} == {parse_metric(f"{base}@1").base for base in DEFAULT}


@pytest.mark.parametrize("name", [*ACCURACY, *EXPOSURE])
def test_every_metric_passes_the_checks_of_metrics(name: str) -> None:
    check_component((ACCURACY if name in ACCURACY else EXPOSURE)[name])


def of_both(table: MetricInputs, k: int) -> np.ndarray:
    """Planted: in relation to the mean of all users."""
    return lists.recall(table, k) - lists.recall(table, k).mean()


FAULTS: dict[str, Callable[[MetricInputs, int], np.ndarray]] = {
    "values": lambda table, k: lists.recall(table, k).mean(keepdims=True),
    "users_alone": of_both,
    "first_places": lambda table, k: lists.recall(table, k + 1),
    "reads_lists": lambda table, k: np.full(len(table.hits), 1 / k),
}
"""Check -> what it catches."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_by_its_check(name: str) -> None:
    fault: Metric = FAULTS[name]
    with pytest.raises(AssertionError, match=f"check '{name}'"):
        check_component(fault)


@pytest.mark.parametrize(("value", "said"), [(np.nan, "gives"), (1, "float64")])
def test_what_is_no_finite_float_is_caught(value: float, said: str) -> None:
    with pytest.raises(AssertionError, match=f"check 'values'.*{said}"):
        check_component(lambda table, k: np.full(len(table.hits), value))
