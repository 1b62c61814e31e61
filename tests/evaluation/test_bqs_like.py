"""bqs_like: equal to plain loops over bands and users, at one half for the reference, and with an honest interval."""

import math

import numpy as np
import pytest

from fullrank.evaluation import Evaluation, EvaluationResult, compare
from fullrank.evaluation.compare import bqs_like_columns, bqs_like_quality
from fullrank.evaluation.slices import LABELS
from fullrank.evaluation.statistics import sign_flip
from refusals import refused
from tests.evaluation.test_compare import SPEC, run


def total(a: EvaluationResult, b: EvaluationResult) -> float:
    """From the slices that both report."""
    ours, theirs = (side.slices["target"] for side in (a, b))
    return sum(theirs[label]["ndcg@5"] - ours[label]["ndcg@5"] for label in ours)


def test_equals_the_definition() -> None:
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


def test_p_is_even_where_there_is_no_difference() -> None:
    """Below 0.1 one time in ten: 8 to 34 of 200 is about three standard deviations."""
    rng = np.random.default_rng(0)
    band = run(0).per_user.groups["target"]
    small = sum(
        sign_flip(bqs_like_columns(rng.normal(size=80), band)[0], 300, seed=trial) < 0.1 for trial in range(200)
    )
    assert 8 <= small <= 34


def test_what_it_needs() -> None:
    with refused("unknown-metric", "ndcg@7"):
        compare(run(0), run(1), "bqs_like@7")
    with refused("slices-needed", "slices=true"):
        compare(run(0, SPEC.override("slices=false")), run(1, SPEC.override("slices=false")), "bqs_like@5")
    with refused("metric-without-length", "bqs_like@10"):
        compare(run(0), run(1), "bqs_like")
    with refused("metric-of-two-runs", "fullrank evaluate A B --metric bqs_like@10"):
        Evaluation.parse({"metrics": ["bqs_like@10"]})
    assert bqs_like_quality("ndcg@5") is None and str(bqs_like_quality("bqs_like@5")) == "ndcg@5"
