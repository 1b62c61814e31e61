"""Comparing two evaluations: paired, honest about chance, and only where the protocols agree; bqs_like equals loops."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, compare, evaluate
from fullrank.evaluation.compare import bqs_like_columns, bqs_like_quality
from fullrank.evaluation.statistics import LABELS, sign_flip
from refusals import refused

STORE = Kept.random(80, 40)
SPEC = Evaluation(bootstrap=0, ks=(5,))


def run(seed: int, spec: Evaluation = SPEC, store: Kept = STORE) -> EvaluationResult:
    return evaluate(Whole(40, seed=seed), store, "test", spec)


def test_difference_and_interval_are_paired() -> None:
    a, b = run(0), run(1)
    found = compare(a, b, "ndcg@5")
    gap = b.per_user.values["ndcg@5"] - a.per_user.values["ndcg@5"]
    assert (found.a, found.b) == (a.metrics["ndcg@5"], b.metrics["ndcg@5"])
    assert found.difference == pytest.approx(gap.mean())
    half = 1.96 * gap.std() / 80**0.5
    assert found.interval == pytest.approx((gap.mean() - half, gap.mean() + half), abs=0.25 * half)
    turned = compare(b, a, "ndcg@5")
    assert turned.difference == pytest.approx(-found.difference) and turned.p == pytest.approx(found.p, abs=0.03)
    assert "sign-flip" in found.test and found.users == 80


def test_p_equals_all_sign_flips_of_few_users() -> None:
    gap = np.array([0.5, -0.1, 0.3, 0.0, 0.2, 0.4, -0.2, 0.1])
    signs = np.array(list(itertools.product([1, -1], repeat=len(gap))))
    exact = np.mean(np.abs(signs @ gap) >= abs(gap.sum()) - 1e-12)
    assert sign_flip(gap, 20_000, seed=0) == pytest.approx(exact, abs=0.012)


def test_p_is_even_where_there_is_no_difference() -> None:
    """Without a difference p is below 0.1 one time in ten: 8 to 34 of 200 is about three standard deviations."""
    rng = np.random.default_rng(0)
    small = sum(sign_flip(rng.normal(size=40), 300, seed=trial) < 0.1 for trial in range(200))
    assert 8 <= small <= 34


def test_p_sees_a_planted_difference() -> None:
    gap = np.random.default_rng(0).normal(0.5, 1, 200)
    assert sign_flip(gap, 5000, seed=0) < 0.001
    assert sign_flip(np.zeros(10), 100, seed=0) == 1.0


def test_seeds_count_as_their_mean_user_by_user() -> None:
    ours, theirs = [run(seed) for seed in (0, 1, 2)], [run(seed) for seed in (3, 4)]
    found = compare(ours, theirs, "ndcg@5")
    means = [np.mean([one.per_user.values["ndcg@5"] for one in side], axis=0) for side in (ours, theirs)]
    gap = means[1] - means[0]
    assert found.difference == pytest.approx(gap.mean()) and found.users == 80
    assert found.p == sign_flip(gap, 10_000, seed=0)
    one = compare(ours[0], theirs[0], "ndcg@5")
    assert found.interval[1] - found.interval[0] < one.interval[1] - one.interval[0]
    assert compare([ours[0]], [theirs[0]], "ndcg@5") == one
    with refused("no-evaluations"):
        compare([], theirs, "ndcg@5")
    with refused("protocols-differ"):
        compare([ours[0], run(1, SPEC.override("seen=keep"))], theirs, "ndcg@5")


def test_equal_runs_do_not_differ() -> None:
    for metric in ("ndcg@5", "gini@5"):
        found = compare(run(0), run(0), metric)
        assert (found.difference, found.interval, found.p) == (0, (0, 0), 1)


@pytest.mark.parametrize("metric", ["gini@5", "coverage@5"])
def test_metrics_of_all_lists_are_compared_by_influence(metric: str) -> None:
    """A model that shows everybody the same few items covers less, beyond chance."""

    class Narrow(Whole):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.table = self.table.abs() * (torch.arange(self.num_items) < 3)[:, None]

    found = compare(run(0), evaluate(Narrow(40), STORE, "test", SPEC), metric)
    assert found.p < 0.01 and found.interval[0] * found.interval[1] > 0
    assert found.interval[0] < found.difference < found.interval[1]
    assert "influences" in found.test


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("seen=keep", "seen"),
        ("popularity=all", "popularity"),
        ("protocol=sampled", "candidates"),
        ("drop=0.5", "dropped"),
    ],
)
def test_other_protocols_are_refused_by_name(settings: str, key: str) -> None:
    with refused("protocols-differ", f"{key} ("):
        compare(run(0), run(0, SPEC.override(settings)), "ndcg@5")


def test_another_split_is_refused() -> None:
    with refused("protocols-differ", "kept", "other"):
        compare(run(0), run(0, store=replace(STORE, fingerprint="other")), "ndcg@5")


def test_other_intervals_and_metrics_do_not_matter() -> None:
    """What else was computed, and with how many samples, is no reason to refuse."""
    other = run(1, SPEC.override("bootstrap=7", "ks=[5, 10]"))
    assert compare(run(0), other, "ndcg@5").difference == pytest.approx(compare(run(0), run(1), "ndcg@5").difference)


def total(a: EvaluationResult, b: EvaluationResult) -> float:
    """From the slices that both report."""
    ours, theirs = (side.slices["target"] for side in (a, b))
    return sum(theirs[label]["ndcg@5"] - ours[label]["ndcg@5"] for label in ours)


def test_bqs_like_equals_the_definition() -> None:
    a, b = run(0), run(1)
    assert set(a.slices["target"]) == set(LABELS["target"])
    found = compare(a, b, " bqs_like@05")
    assert found.metric == "bqs_like@5" and "stand-in, not BQS" in found.test
    assert found.a == 0.5 and found.b == pytest.approx(1 / (1 + math.exp(-total(a, b))))
    assert found.difference == pytest.approx(found.b - 0.5)
    assert found.interval[0] < found.difference < found.interval[1] and 0 < found.b < 1
    turned = compare(b, a, "bqs_like@5")
    assert turned.b == pytest.approx(1 - found.b)


def test_the_reference_with_itself_is_one_half() -> None:
    found = compare(run(0), run(0), "bqs_like@5")
    assert (found.a, found.b, found.difference, found.interval, found.p) == (0.5, 0.5, 0, (0, 0), 1)


def test_a_band_counts_by_its_mean_and_not_by_its_users() -> None:
    """A gain for the few users of rare targets outweighs a smaller loss of many, where the plain mean does not."""
    band = np.repeat([0, 1, 2], [60, 30, 10])
    gap = np.where(band == 2, 0.4, -0.1)
    parts, influences = bqs_like_columns(gap, band)
    assert gap.mean() < 0 and parts.mean() == pytest.approx(0.4 - 0.1 - 0.1)
    assert influences == pytest.approx(np.full(100, 0.2)), "all users of a band alike: only its size is chance"


def test_a_band_without_users_adds_nothing() -> None:
    parts, influences = bqs_like_columns(np.array([0.1, 0.3, -0.5]), np.array([0, 0, 2]))
    assert parts.mean() == pytest.approx(0.2 - 0.5) == influences.mean()


def test_the_interval_is_that_of_new_users() -> None:
    """Against the spread of the sum over 400 fresh draws of users with their bands."""
    rng = np.random.default_rng(0)

    def drawn() -> tuple[np.ndarray, np.ndarray]:
        band = rng.choice(3, 300, p=[0.6, 0.3, 0.1])
        return rng.normal(np.array([0.5, 0.0, -0.4])[band], 0.2), band

    spread = np.std([sum(gap[band == code].mean() for code in range(3)) for gap, band in (drawn() for _ in range(400))])
    parts, influences = bqs_like_columns(*drawn())
    assert influences.std() / 300**0.5 == pytest.approx(spread, rel=0.2)
    assert parts.std() / 300**0.5 > 1.3 * spread, "the planted fault: the parts move with the sizes of the bands"


def test_p_of_bqs_like_is_even_where_there_is_no_difference() -> None:
    """Below 0.1 one time in ten: 8 to 34 of 200 is about three standard deviations."""
    rng = np.random.default_rng(0)
    band = run(0).per_user.groups["target"]
    small = sum(
        sign_flip(bqs_like_columns(rng.normal(size=80), band)[0], 300, seed=trial) < 0.1 for trial in range(200)
    )
    assert 8 <= small <= 34


def test_what_bqs_like_needs() -> None:
    with refused("unknown-metric", "ndcg@7"):
        compare(run(0), run(1), "bqs_like@7")
    with refused("slices-needed", "slices=true"):
        compare(run(0, SPEC.override("slices=false")), run(1, SPEC.override("slices=false")), "bqs_like@5")
    with refused("metric-without-length", "bqs_like@10"):
        compare(run(0), run(1), "bqs_like")
    with refused("metric-of-two-runs", "fullrank evaluate A B --metric bqs_like@10"):
        Evaluation.parse({"metrics": ["bqs_like@10"]})
    assert bqs_like_quality("ndcg@5") is None and str(bqs_like_quality("bqs_like@5")) == "ndcg@5"
