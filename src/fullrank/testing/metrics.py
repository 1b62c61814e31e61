"""Checks of every metric of lists: a finite number for each user, of that user's first k places alone.

A metric registered as one of accuracy is given the places of targets alone, as in the sampled
protocol.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fullrank.metrics import Metric, MetricInputs
from fullrank.metrics.names import ACCURACY

USERS, PLACES, ITEMS = 9, 12, 40
KS = (1, 3, PLACES, 2 * PLACES)
"""Lengths of lists, one of them beyond the places that there are."""


def table(metric: Metric) -> MetricInputs:
    """Drawn lists of distinct items, some short, one empty, with all that a metric may read."""
    draw = np.random.default_rng(3)
    ids = np.stack([draw.permutation(ITEMS)[:PLACES] for _ in range(USERS)])
    ids[np.arange(PLACES) >= np.linspace(0, 2 * PLACES, USERS)[:, None]] = -1
    hits, filled = draw.random(ids.shape) < 0.3, ids >= 0
    places = MetricInputs(hits & filled, (hits & filled).sum(1) + draw.integers(1, 4, USERS))
    if any(metric is ACCURACY[name] for name in ACCURACY):
        return places
    return replace(
        places,
        ids=ids,
        popularity=draw.integers(0, 50, ITEMS),
        history=draw.integers(0, 50, USERS).astype(np.float64),
        repeats=filled & (draw.random(ids.shape) < 0.3),
        categories=draw.integers(-1, 5, (ITEMS, 2)),
    )


def check_values(metric: Metric, device: torch.device) -> None:
    """One finite float for each user, at every length."""
    for k in KS:
        values = metric(table(metric), k)
        assert values.shape == (USERS,), f"at {k} it gives the shape {values.shape} for {USERS} users"
        assert values.dtype == np.float64, f"at {k} it gives {values.dtype}, not float64"
        assert np.isfinite(values).all(), f"at {k} it gives {values}"


def check_users_alone(metric: Metric, device: torch.device) -> None:
    """A user's number is that of the user alone."""
    for k in KS:
        whole = table(metric)
        alone = [metric(_changed(whole, lambda part, at=at: part[at : at + 1]), k) for at in range(USERS)]
        same = np.allclose(np.concatenate(alone), metric(whole, k))
        assert same, f"at {k} a user's number depends on the other users"


def check_first_places(metric: Metric, device: torch.device) -> None:
    """Positions behind k have no effect."""
    for k in KS:
        whole = table(metric)
        cut = _changed(whole, lambda part, k=k: part[:, :k] if part.ndim == 2 else part)
        assert np.allclose(metric(cut, k), metric(whole, k)), f"at {k} it reads what stands behind place {k}"


def check_reads_lists(metric: Metric, device: torch.device) -> None:
    """It tells users apart."""
    assert len({*metric(table(metric), PLACES).tolist()}) > 1, "every user has the same number"


def _changed(inputs: MetricInputs, change: Any) -> MetricInputs:
    """The inputs with each user's arrays changed; popularity and categories belong to items."""
    per_user = {name: part for name, part in vars(inputs).items() if name not in ("popularity", "categories")}
    return replace(inputs, **{name: change(part) for name, part in per_user.items() if part is not None})


CHECKS = (check_values, check_users_alone, check_first_places, check_reads_lists)
