"""Popularity and recent popularity by hand."""

from __future__ import annotations

import torch

from fullrank.core.spec import Spec
from fullrank.models.sequential.baselines.popularity import Popularity, Recency
from refusals import refused
from tiny import padded, store

DAY = 86_400
ROWS = [[0, 1, 1, 2, 3], [1, 2, 0, 3]]
"""Trained on: 0, 1, 1 and 1, 2."""


def scores(spec: Spec, times: list[list[int]] | None = None) -> list[float]:
    data = store(ROWS, 5, times=times)
    model = spec.build(data.catalog)  # type: ignore[attr-defined]
    model.fit(data)
    return model.answer(padded([[4]])).block(0, 5)[0].tolist()


def test_popularity() -> None:
    assert scores(Popularity()) == [1, 3, 1, 0, 0]


def test_half_life() -> None:
    """Ages in days before the last training event: 0 at 20, 1 at 10 and 0 and 5, 2 at 15."""
    times = [[0, 10 * DAY, 20 * DAY, 90 * DAY, 99 * DAY], [15 * DAY, 5 * DAY, 50 * DAY, 60 * DAY]]
    found = scores(Recency(half_life_days=10), times)
    wanted = [0.5**2, 0.5**1 + 1 + 0.5**0.5, 0.5**1.5, 0, 0]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))
    slow = scores(Recency(half_life_days=1e9), times)
    torch.testing.assert_close(torch.tensor(slow), torch.tensor(scores(Popularity())))


def test_recency_needs_times() -> None:
    with refused("missing-times", "recency"):
        scores(Recency())


def test_the_last_days() -> None:
    """Newest training event at day 20: 1 day holds it alone, 6 days that of day 15, 10 days not yet those of day 10."""
    times = [[0, 10 * DAY, 20 * DAY, 90 * DAY, 99 * DAY], [15 * DAY, 5 * DAY, 50 * DAY, 60 * DAY]]
    assert scores(Popularity(days=1), times) == [0, 1, 0, 0, 0]
    found = scores(Popularity(days=6), times)
    assert sum(found) == 2
    assert sum(scores(Popularity(days=10), times)) == 2 and sum(scores(Popularity(days=10.5), times)) == 3
    assert scores(Popularity(days=1e9), times) == scores(Popularity())


def test_the_last_days_need_times() -> None:
    with refused("missing-times", "popularity of the last days"):
        scores(Popularity(days=7))
