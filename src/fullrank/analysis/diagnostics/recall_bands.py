"""Recall by the popularity of what people chose next: which users a model serves, which it costs, and items hardly
known.

Users are in the band of their target (`evaluation.statistics.popularity_bands`): head are the most popular items that
hold the first third of the training events, mid the next third, tail all others. A mean over users hides that a model
lives on the head.

Items without training events, or with few: whether they are found by those who chose them, and shown at all. The groups
are finer than those of the evaluation's slices (`cold` there is `none` here, the tail is far larger): users by the
training events of what they chose next, of several items the most popular. A model of item vectors knows nothing of an
item without events; one of semantic ids, texts or features may.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from jaxtyping import Int

from fullrank.analysis.diagnostics import (
    Claim,
    Figure,
    Missing,
    RunResult,
    Runs,
    Section,
    TableCell,
    bars,
    not_comparable,
)
from fullrank.evaluation.statistics import slice_labels
from fullrank.evaluation.targets import evaluated_users
from fullrank.metrics.names import split_name


class RecallByPopularity(Section):
    """Recall of head, mid and tail targets, with standard errors over users."""

    name = "recall_bands"
    told_by: ClassVar[str] = "target"
    """Slice of the evaluation."""
    what: ClassVar[str] = "popularity of what was chosen next"
    untold: ClassVar[str] = "it was evaluated with slices=false"
    claim = Claim(
        "Recall by popularity of the target",
        "Of the people whose next item is popular (head), less so (mid) or in the long tail, the share that finds it "
        "among the best items. Each band holds about a third of the training events; bars have two standard errors "
        "over users. A run whose tail bar is short serves people of common taste alone.",
        open=True,
    )

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return None if band_recall(result, cls.told_by) else cls.untold

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        why = not_comparable(there)
        if why is not None:
            return claim.missing(f"{why}.")
        chosen, by, metric = cls.what, cls.told_by, recall_name(there[0])
        values = {one.label: band_recall(one, by) for one in there}
        bands = [band for band in values[there[0].label] if all(band in one for one in values.values())]
        drawn = tuple(
            (one.label, band, recall, recall - error, recall + error)
            for one in there for band in bands
            for recall, error in ((values[one.label][band], band_error(one, band, by)),)
        )  # fmt: skip
        rows = [
            (
                one.label,
                *(TableCell(f"{values[one.label][band]:.4f}", f"± {band_error(one, band, by):.4f}") for band in bands),
            )
            for one in there
        ]
        counts = there[0].evaluation.slices[by]
        rows.append(("users", *(int(counts[band]["count"]) for band in bands)))
        chart = bars(chosen, metric, interval="y", percent=True, rows=drawn)
        return claim.figure(("run", *bands), rows, chart, more=f" The share is {metric}.")


class RecallByType(RecallByPopularity):
    """Recall by type of the target, where an evaluation tells types apart (`evaluation.targets`)."""

    name = "recall_types"
    told_by, what, untold = "type", "what was done next", ""
    claim = Claim(
        "Recall by type of event",
        "Of the people who did each next, the share that finds the item among the best. Bars have two standard errors "
        "over users.",
        open=True,
    )


def recall_name(one: RunResult) -> str:
    """Recall at the list length of the accuracy, where it was computed; else the accuracy itself."""
    name = f"recall@{split_name(one.accuracy)[1]}"
    return name if name in one.evaluation.metrics else one.accuracy


def band_recall(one: RunResult, by: str = "target") -> dict[str, float]:
    """Band -> recall of the users whose target is in it; empty where there is no such slice."""
    name = recall_name(one)
    return {band: float(part[name]) for band, part in one.evaluation.slices.get(by, {}).items() if name in part}


def band_error(one: RunResult, band: str, by: str = "target") -> float:
    """Two standard errors of a band's recall over its users."""
    rows = one.evaluation.per_user
    place = slice_labels(rows.protocol)[by].index(band)
    some = rows.values[recall_name(one)][rows.groups[by] == place]
    return float(2 * some.std(ddof=1) / len(some) ** 0.5) if len(some) > 1 else 0.0


FEW = 5
"""Items with fewer training events have few."""
GROUPS = ("none", f"1 to {FEW - 1}", f"{FEW} and more")
"""Training events of what was chosen next."""


class ColdItems(Section):
    """Recall by training events of the target, and how far up in lists items without any come."""

    name = "cold_items"

    claim = Claim("Items that training hardly knows", "", open=True)

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return "" if result.store is None or result.evaluation.per_user.lists is None else None

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | None:
        """Nothing where every item has training events, or the runs do not compare."""
        if not_comparable(there) or not any((one.store.catalog.popularity == 0).any() for one in there):
            return None
        groups = {one.key: target_groups(one) for one in there}
        counts = np.bincount(groups[there[0].key], minlength=len(GROUPS))
        rows = []
        for one in there:
            values, group = one.evaluation.per_user.values[recall_name(one)], groups[one.key]
            recall = [_mean(values[group == place]) for place in range(len(GROUPS))]
            rows.append((one.label, *recall, *shown(one)))
        cold = float((there[0].store.catalog.popularity == 0).mean())
        more = (
            f"{recall_name(there[0])} of people by how often what they chose next was used in training, and where "
            "items that were never used come in the lists of all people: the share of all places that they have "
            f"({cold:.1%} of the items are such), the share of people with at least one of them in their list, and the "
            "best place that one has in anybody's list."
        )
        people = (TableCell(name, f"{count:,} people") for name, count in zip(GROUPS, counts, strict=True))
        headers = ("run", *people, "share of places", "people who are shown one", "best place")
        return claim.figure(headers, rows, more=more)


def target_groups(one: RunResult) -> Int[np.ndarray, "U"]:
    """Each evaluated user's place in `GROUPS`."""
    whole = evaluated_users(one.store, one.evaluation.protocol)
    order = np.argsort(whole.users, kind="stable")
    users = whole.take(order[np.searchsorted(whole.users[order], one.evaluation.per_user.users)])
    events = np.maximum.reduceat(one.store.catalog.popularity[users.truth.flat()], users.truth.offsets[:-1])
    return np.searchsorted((1, FEW), events, side="right").astype(np.int64)


def shown(one: RunResult) -> tuple[float, float, int | None]:
    """Of items without training events: their share of places, the share of users with one, the best place of all."""
    lists = one.evaluation.per_user.lists
    assert lists is not None
    cold = (one.store.catalog.popularity == 0)[lists.clip(0)] & (lists >= 0)
    places = np.flatnonzero(cold.any(0))
    share = float(cold.sum() / max(1, (lists >= 0).sum()))
    return share, float(cold.any(1).mean()), int(places[0]) + 1 if len(places) else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
