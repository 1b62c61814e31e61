"""Popularity and recent popularity by hand."""

import pytest

from fullrank.models.sequential.baselines.popularity import Recency
from fullrank.testing.baselines import fitted
from parts import Popularity
from refusals import refused
from tiny import padded, store

DAY = 86_400
ROWS = [[0, 1, 1, 2, 3], [1, 2, 0, 3]]
"""Trained on: 0, 1, 1 and 1, 2."""


TIMES = [[0, 10 * DAY, 20 * DAY, 90 * DAY, 99 * DAY], [15 * DAY, 5 * DAY, 50 * DAY, 60 * DAY]]


def scores(spec, times=TIMES) -> list:
    return fitted(spec, store(ROWS, 5, times=times)).answer(padded([[4]])).block(0, 5)[0].tolist()


def test_popularity() -> None:
    assert scores(Popularity()) == [1, 3, 1, 0, 0]


def test_half_life() -> None:
    """Ages in days before the last training event: 0 at 20, 1 at 10 and 0 and 5, 2 at 15."""
    assert scores(Recency(half_life_days=10)) == pytest.approx([0.5**2, 0.5**1 + 1 + 0.5**0.5, 0.5**1.5, 0, 0])
    assert scores(Recency(half_life_days=1e9)) == pytest.approx(scores(Popularity()))


def test_the_last_days() -> None:
    """Newest training event at day 20: 1 day holds it alone, 6 days that of day 15, 10 days not yet those of day 10."""
    assert scores(Popularity(days=1)) == [0, 1, 0, 0, 0]
    assert [sum(scores(Popularity(days=days))) for days in (6, 10, 10.5)] == [2, 2, 3]
    assert scores(Popularity(days=1e9)) == scores(Popularity())


def test_ages_need_times() -> None:
    for spec, name in ((Recency(), "recency"), (Popularity(days=7), "popularity of the last days")):
        with refused("missing-times", name):
            scores(spec, None)
