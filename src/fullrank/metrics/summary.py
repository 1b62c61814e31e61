"""From one value per user to a mean, its standard error and a bootstrap interval over users.

Resampled users are drawn with replacement: sample s is a vector of how often each user was drawn, a pure function of
(seed, s), and the resampled means of all metrics are one matrix product.

Gini and coverage are no means over users. Resampling the lists themselves would mislead: a resample repeats users, so
it has fewer distinct lists, shows fewer items and centres elsewhere (at amazon-beauty's size by many standard errors).
They enter by each user's leave-one-out influence instead (Tukey's pseudo-values, shifted so that their mean is the
metric); by the inequality of Efron and Stein (1981) the variance so estimated is on average not too small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fullrank.metrics.coverage import exposures
from fullrank.metrics.names import PER_LIST, WITHOUT, Name

CELLS = 1 << 22
"""Counts (users x samples) held at once while resampling."""


@dataclass(frozen=True)
class Summary:
    """By metric name. The error and the interval are NaN where they cannot be told (one user, no resampling)."""

    mean: dict[str, float]
    stderr: dict[str, float]
    interval: dict[str, tuple[float, float]]


def summarise(
    values: Mapping[str, Float[np.ndarray, "U"]],
    lists: Int[np.ndarray, "U K"] | None,
    names: Sequence[Name],
    *,
    items: int,
    samples: int,
    seed: int,
    level: float = 0.95,
) -> Summary:
    """Mean, standard error and percentile interval of every name; `items` is the size of the catalogue."""
    table = np.stack([column(n, values, lists, items) for n in names], 1)
    users = len(table)
    drawn = resample(table, samples=samples, seed=seed)
    errors = table.std(0, ddof=1) / np.sqrt(users) if users > 1 else np.full(len(names), np.nan)
    mean, interval = {}, {}
    for place, name in enumerate(names):
        text = str(name)
        mean[text] = float(table[:, place].mean()) if name.per_user else whole(name, lists, items)
        low, high = bounds(drawn[:, place], level)
        if not name.per_user:  # linear in the users, so nothing else keeps them between the metric's bounds
            low, high = np.clip([low, high], 0, 1).tolist()
        interval[text] = low, high
    return Summary(mean, dict(zip((str(n) for n in names), errors.tolist(), strict=True)), interval)


def whole(name: Name, lists: Int[np.ndarray, "U K"] | None, items: int) -> float:
    """A metric of all lists together."""
    assert lists is not None, "this metric reads full lists"
    return float(PER_LIST[name.base](exposures(lists[:, : name.k], items)[None])[0])


def column(
    name: Name, values: Mapping[str, Float[np.ndarray, "U"]], lists: Int[np.ndarray, "U K"] | None, items: int
) -> Float[np.ndarray, "U"]:
    """One number per user whose mean is the metric; `items` is the size of the catalogue."""
    if name.per_user:
        return values[str(name)]
    assert lists is not None, "this metric reads full lists"
    without = WITHOUT[name.base](lists[:, : name.k], exposures(lists[:, : name.k], items))
    return whole(name, lists, items) + (len(lists) - 1) * (without.mean() - without)


def resample(table: Float[np.ndarray, "U M"], *, samples: int, seed: int) -> Float[np.ndarray, "S M"]:
    """The means of each bootstrap sample of the users."""
    users = len(table)
    drawn = [draws @ table / users for draws in _draws(users, samples, seed, max(CELLS // users, 1))]
    return np.concatenate([np.empty((0, table.shape[1])), *drawn])


def bounds(drawn: Float[np.ndarray, "S"], level: float) -> tuple[float, float]:
    """The percentile interval of bootstrap values, NaN without any."""
    if not len(drawn):
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _draws(users: int, samples: int, seed: int, at_once: int) -> Iterator[Float[np.ndarray, "s U"]]:
    for first in range(0, samples, at_once):
        some = range(first, min(first + at_once, samples))
        counts = np.empty((len(some), users))
        for row, sample in zip(counts, some, strict=True):
            row[:] = np.bincount(np.random.default_rng([seed, sample]).integers(users, size=users), minlength=users)
        yield counts
