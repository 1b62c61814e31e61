"""From one value per user to a mean, its standard error and a bootstrap interval over users.

Resampled users are drawn with replacement: sample s is a vector of how often each user was drawn, a pure function of
(seed, s). A mean of per-user values is then one matrix product; metrics of all lists together are recomputed from
exposures weighted by the same draws, so that every metric of one evaluation is resampled alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fullrank.metrics.coverage import exposures
from fullrank.metrics.names import PER_LIST, Name

CELLS = 1 << 22
"""Numbers held at once while resampling (users, or places of lists, x samples)."""


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
    users = len(lists) if lists is not None else len(next(iter(values.values())))
    drawn = resample(values, lists, names, items=items, samples=samples, seed=seed)
    mean, stderr, interval = {}, {}, {}
    for name in names:
        text = str(name)
        if name.per_user:
            mean[text] = float(values[text].mean())
            stderr[text] = float(values[text].std(ddof=1) / np.sqrt(users)) if users > 1 else np.nan
        else:
            assert lists is not None
            mean[text] = float(PER_LIST[name.base](exposures(lists[:, : name.k], items)[None])[0])
            stderr[text] = float(drawn[text].std(ddof=1)) if samples > 1 else np.nan
        interval[text] = bounds(drawn[text], level)
    return Summary(mean, stderr, interval)


def resample(
    values: Mapping[str, Float[np.ndarray, "U"]],
    lists: Int[np.ndarray, "U K"] | None,
    names: Sequence[Name],
    *,
    items: int,
    samples: int,
    seed: int,
) -> dict[str, Float[np.ndarray, "S"]]:
    """The metric of each bootstrap sample, by name."""
    users = len(lists) if lists is not None else len(next(iter(values.values())))
    per_user = [str(n) for n in names if n.per_user]
    per_list = [n for n in names if not n.per_user]
    table = np.stack([values[n] for n in per_user], 1) if per_user else np.zeros((users, 0))
    parts: dict[str, list[np.ndarray]] = {str(n): [] for n in names}
    shown = _shown(lists, sorted({n.k for n in per_list})) if lists is not None else []
    cells = max(users, *(len(s.users) for s in shown), 1)
    for draws in _draws(users, samples, seed, max(CELLS // cells, 1)):
        for name, column in zip(per_user, (draws @ table).T / users, strict=True):
            parts[name].append(column)
        for k, exposure in _exposures(shown, draws, items):
            for listed in (n for n in per_list if n.k == k):
                parts[str(listed)].append(PER_LIST[listed.base](exposure))
    return {n: np.concatenate([np.empty(0), *p]) for n, p in parts.items()}


def bounds(drawn: Float[np.ndarray, "S"], level: float) -> tuple[float, float]:
    """The percentile interval of bootstrap values, NaN without any."""
    if not len(drawn):
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _draws(users: int, samples: int, seed: int, at_once: int) -> Iterator[Float[np.ndarray, "S U"]]:
    for first in range(0, samples, at_once):
        some = range(first, min(first + at_once, samples))
        counts = np.empty((len(some), users))
        for row, sample in zip(counts, some, strict=True):
            row[:] = np.bincount(np.random.default_rng([seed, sample]).integers(users, size=users), minlength=users)
        yield counts


@dataclass(frozen=True)
class Shown:
    """The filled places of all lists from one k to the next, sorted by item."""

    k: int
    items: Int[np.ndarray, "I"]
    """The distinct items, ascending."""
    starts: Int[np.ndarray, "I"]
    """Where each item's users begin."""
    users: Int[np.ndarray, "P"]


def _shown(lists: Int[np.ndarray, "U K"], ks: Sequence[int]) -> list[Shown]:
    found, done = [], 0
    for k in ks:
        users, places = np.nonzero(lists[:, done:k] >= 0)
        items = lists[users, places + done]
        order = np.argsort(items, kind="stable")
        starts = np.flatnonzero(np.diff(items[order], prepend=-1))
        found.append(Shown(k, items[order][starts], starts, users[order]))
        done = k
    return found


def _exposures(
    shown: Sequence[Shown], draws: Float[np.ndarray, "S U"], items: int
) -> Iterator[tuple[int, Int[np.ndarray, "S V"]]]:
    """For ascending k, how often each item occurs in the first k places when users count as often as drawn."""
    total = np.zeros((len(draws), items), dtype=np.int32)
    weights = draws.astype(np.int32)
    for more in shown:
        if len(more.items):
            total[:, more.items] += np.add.reduceat(np.take(weights, more.users, axis=1), more.starts, axis=1)
        yield more.k, total
