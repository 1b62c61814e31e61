"""Statistics: bootstrap intervals over users or impressions, tests of paired differences, and means of slices.

A bootstrap sample draws units (users, impressions, or whole groups of impressions) with
replacement: sample s is a vector of how often each unit was drawn, a pure function of (seed, s).
Resampled means of all metrics are one matrix product; a resampled AUC is the AUC of weighted rows,
which costs no sort.

Gini and coverage are not means over users. Resampling the lists themselves would mislead: a
resample repeats users, so it has fewer distinct lists, shows fewer items and centres elsewhere (at
amazon-beauty's size by many standard errors). They enter by each user's leave-one-out influence
instead (Tukey's pseudo-values, shifted so that their mean is the metric); by the inequality of
Efron and Stein (1981) the variance so estimated is on average not too small.

Slices are metrics by kind of user, by history length and by popularity of the target, which an average hides.
The slice `target` is where per-band quality stands: recall of `tail` is the share of tail targets that were
found. A user with several targets (global-time splits) stands in the band of the most popular one, with all
of them. The slice `cold` sets apart the users none of whose targets has a training event, and `type` divides
users by the type of what they are to find (`evaluation.targets`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Bool, Float, Int

from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.metrics import ItemCounts, RankedIds, RowValues, UserValues, ctr
from fullrank.metrics.lists import exposures
from fullrank.metrics.names import PER_LIST, WITHOUT, Name

CELLS = 1 << 22
"""Counts (units x samples), or random signs, held at once."""
RESAMPLED = ("auc", "logloss", "auc-logloss", "gauc")
"""Metrics of impressions that have intervals; gauc where there are groups."""


@dataclass(frozen=True)
class Summary:
    """Mean, error and interval by metric name. The last two are NaN where they do not exist (one user, no samples)."""

    mean: dict[str, float]
    stderr: dict[str, float]
    interval: dict[str, tuple[float, float]]


def summarise(
    values: Mapping[str, UserValues],
    lists: RankedIds | None,
    names: Sequence[Name],
    *,
    items: int,
    samples: int,
    seed: int,
    level: float = 0.95,
) -> Summary:
    """Mean, standard error and percentile interval over users of every name; `items`
    is the size of the catalogue."""
    table = np.stack([metric_values(n, values, lists, items) for n in names], 1)
    users = len(table)
    drawn = resample(table, samples=samples, seed=seed)
    errors = table.std(0, ddof=1) / np.sqrt(users) if users > 1 else np.full(len(names), np.nan)
    mean, interval = {}, {}
    for column, name in enumerate(names):
        text = str(name)
        mean[text] = float(table[:, column].mean()) if name.per_user else list_metric(name, lists, items)
        low, high = bounds(drawn[:, column], level)
        if not name.per_user:  # linear in the users, so nothing else keeps them between the metric's bounds
            low, high = np.clip([low, high], 0, 1).tolist()
        interval[text] = low, high
    return Summary(mean, dict(zip((str(n) for n in names), errors.tolist(), strict=True)), interval)


def list_metric(name: Name, lists: RankedIds | None, items: int) -> float:
    """A metric of all lists together."""
    assert lists is not None, "this metric reads full lists"
    return float(PER_LIST[name.base](exposures(lists[:, : name.k], items)[None])[0])


def metric_values(name: Name, values: Mapping[str, UserValues], lists: RankedIds | None, items: int) -> UserValues:
    """One number per user whose mean is the metric; `items` is the size of the catalogue."""
    if name.per_user:
        return values[str(name)]
    assert lists is not None, "this metric reads full lists"
    without = WITHOUT[name.base](lists[:, : name.k], exposures(lists[:, : name.k], items))
    return list_metric(name, lists, items) + (len(lists) - 1) * (without.mean() - without)


def resample(table: Float[np.ndarray, "U M"], *, samples: int, seed: int) -> Float[np.ndarray, "S M"]:
    """The means of each bootstrap sample of the users."""
    users = len(table)
    at_once, counts = max(CELLS // users, 1), draws(users, samples, seed)
    means = []
    while chunk := list(islice(counts, at_once)):
        means.append(np.stack(chunk) @ table / users)
    return np.concatenate([np.empty((0, table.shape[1])), *means])


def resample_clicks(
    probabilities: RowValues,
    labels: RowValues,
    groups: Int[np.ndarray, "N"] | None = None,
    *,
    by_group: bool = False,
    samples: int,
    seed: int,
) -> dict[str, Float[np.ndarray, "S"]]:
    """The metrics `RESAMPLED` of each bootstrap sample of the impressions, or of whole groups (`by_group`).

    gauc is a mean over groups, so its samples are always of groups: of those with both classes,
    which it reads. They depend on labels and groups alone, so that two models are resampled alike.
    """
    unit = ctr.dense_ranks(groups) if by_group and groups is not None else None
    units = len(labels) if unit is None else int(unit.max()) + 1
    ranks, losses = ctr.dense_ranks(probabilities), ctr.losses(probabilities, labels)
    area, loss = np.empty((2, samples))
    for s, counts in enumerate(draws(units, samples, seed)):
        weights = counts if unit is None else counts[unit]
        area[s] = ctr.weighted_auc(ranks, labels, weights)
        loss[s] = (losses * weights).sum() / weights.sum()
    drawn = {"auc": area, "logloss": loss, "auc-logloss": area - loss}
    if groups is not None:
        value, sizes = ctr.group_aucs(probabilities, labels, groups)
        table = np.stack([value * sizes, sizes], 1) if len(sizes) else np.full((1, 2), np.nan)
        sums = resample(table, samples=samples, seed=seed)
        drawn["gauc"] = sums[:, 0] / sums[:, 1]
    return drawn


def draws(units: int, samples: int, seed: int) -> Iterator[UserValues]:
    """Counts of each unit in each bootstrap sample."""
    for sample in range(samples):
        drawn = np.random.default_rng([seed, sample]).integers(units, size=units)
        yield np.bincount(drawn, minlength=units).astype(np.float64)


def bounds(drawn: Float[np.ndarray, "S"], level: float) -> tuple[float, float]:
    """The percentile interval of bootstrap values, NaN without any."""
    if not len(drawn):
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_p(differences: Float[np.ndarray, "S"]) -> float:
    """Two-sided p value: from the share of paired bootstrap samples in which the difference has the other sign.

    NaN where a sample has no difference, since a metric is not defined on it.
    """
    if np.isnan(differences).any():
        return np.nan
    one_side = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (one_side + 1) / (len(differences) + 1))


def sign_flip(gap: UserValues, samples: int, seed: int) -> float:
    """p value: share of random signs with a summed difference at least as large, the observed one counted.

    Users without a difference contribute nothing whatever their sign, so only the others are drawn.
    """
    gap = gap[gap != 0]
    if not len(gap):
        return 1.0
    observed = abs(gap.sum()) * (1 - 1e-9)  # equal sums in another order of addition must count as equal
    rng = np.random.default_rng([seed, len(gap)])
    at_once = max(CELLS // len(gap), 1)
    reached = 0
    for first in range(0, samples, at_once):
        rows = min(at_once, samples - first)
        bits = np.unpackbits(rng.integers(256, size=(rows, -(-len(gap) // 8)), dtype=np.uint8), axis=1)[:, : len(gap)]
        sums = gap.sum() - 2 * (bits @ gap)
        reached += int(np.sum(np.abs(sums) >= observed))
    return (reached + 1) / (samples + 1)


LENGTHS = (0, 1, 5, 10, 20, 50)
"""First history length (events) of each band."""
HEAD, MID = 1 / 3, 2 / 3
"""Head: the most popular items that hold the first third of training events; mid: the next third;
tail: all others."""

LABELS = {
    "users": ("known", "new"),
    "history": (*(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in zip(LENGTHS, LENGTHS[1:], strict=False)), "50+"),
    "target": ("head", "mid", "tail"),
    "cold": ("trained", "cold"),
}


def slice_labels(protocol: JsonObject) -> dict[str, Sequence[str]]:
    """The labels of each slice of an evaluation with this protocol."""
    return {**LABELS, **protocol.get("slices", {})}


def slice_codes(
    lengths: Int[np.ndarray, "U"], new: Bool[np.ndarray, "U"], truth: Jagged, popularity: ItemCounts
) -> dict[str, Int[np.ndarray, "U"]]:
    """The index of each user's label in `LABELS`. `new`: no event in training. Target: the most popular one."""
    band, items, first = popularity_bands(popularity), truth.flat(), truth.offsets[:-1]
    return {
        "users": new.astype(np.int8),
        "history": (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.int8),
        "target": np.minimum.reduceat(band[items], first).astype(np.int8),
        "cold": np.minimum.reduceat(popularity[items] == 0, first).astype(np.int8),
    }


def popularity_bands(popularity: ItemCounts) -> Int[np.ndarray, "V"]:
    """0 head, 1 mid, 2 tail for each item. An item belongs to the band in which its share of events begins."""
    order = np.argsort(-popularity, kind="stable")
    # share of events of more popular items
    before = (np.cumsum(popularity[order]) - popularity[order]) / max(int(popularity.sum()), 1)
    band = np.empty(len(popularity), dtype=np.int8)
    band[order] = (before >= HEAD).astype(np.int8) + (before >= MID)
    band[popularity == 0] = 2
    return band


def slice_means(
    values: Mapping[str, UserValues],
    codes: Mapping[str, Int[np.ndarray, "U"]],
    labels: Mapping[str, Sequence[str]] = LABELS,
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Slice -> label -> metric -> mean over the label's users, and their `count`; labels
    without users are left out."""
    means: dict[str, dict[str, dict[str, float | int]]] = {}
    for slice_name, code in codes.items():
        counts = np.bincount(code, minlength=len(labels[slice_name]))
        sums = {m: np.bincount(code, weights=v, minlength=len(counts)) for m, v in values.items()}
        means[slice_name] = {
            label: {"count": int(counts[i]), **{m: float(s[i] / counts[i]) for m, s in sums.items()}}
            for i, label in enumerate(labels[slice_name])
            if counts[i]
        }
    return means
