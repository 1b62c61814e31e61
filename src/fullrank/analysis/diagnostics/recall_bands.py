"""Recall by the popularity of the item chosen next: the users that a model serves, and items hardly known.

Users are in the band of their target (`evaluation.statistics.popularity_bands`): head are the most
popular items that hold the first third of the training events, mid the next third, tail all others.
A mean over users hides that a model lives on the head.

Items without training events, or with few: whether they are found by those who chose them, and
shown at all. The groups are finer than those of the evaluation's slices (`cold` there is `none`
here, the tail is far larger): users by the training events of their target, of several targets the
most popular. A model of item vectors knows nothing of an item without events; one of semantic ids,
texts or features may.
"""

from __future__ import annotations

from typing import Any, ClassVar

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
    slice_name: ClassVar[str] = "target"
    """Slice of the evaluation that has the bands."""
    axis: ClassVar[str] = "popularity of what was chosen next"
    why_missing: ClassVar[str] = "it was evaluated with slices=false"
    claim = Claim(
        "Recall by popularity of the target",
        "Of the people whose next item is popular (head), less so (mid) or in the long tail, the share that finds it "
        "among the best items. Each band holds about a third of the training events; bars have two standard errors "
        "over users. A run whose tail bar is short serves people of common taste alone.",
        open=True,
    )

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return None if band_recall(result, cls.slice_name) else cls.why_missing

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        why = not_comparable(there)
        if why is not None:
            return claim.missing(f"{why}.")
        metric, slices = recall_name(there[0]), there[0].evaluation.slices[cls.slice_name]
        recalls = [band_recall(run, cls.slice_name) for run in there]
        bands = [band for band in recalls[0] if all(band in of_run for of_run in recalls)]
        rows: list[list[Any]] = []
        drawn = []
        for run, of_run in zip(there, recalls, strict=True):
            rows.append([run.label])
            for band in bands:
                recall, error = of_run[band], band_error(run, band, cls.slice_name)
                drawn.append((run.label, band, recall, recall - error, recall + error))
                rows[-1].append(TableCell(f"{recall:.4f}", f"± {error:.4f}"))
        rows.append(["users", *(int(slices[band]["count"]) for band in bands)])
        chart = bars(cls.axis, metric, interval="y", percent=True, rows=drawn)
        return claim.figure(("run", *bands), rows, chart, more=f" The share is {metric}.")


class RecallByType(RecallByPopularity):
    """Recall by type of the target, where an evaluation tells types apart."""

    name = "recall_types"
    slice_name, axis, why_missing = "type", "what was done next", ""
    claim = Claim(
        "Recall by type of event",
        "Of the people who did each next, the share that finds the item among the best. Bars have two standard errors "
        "over users.",
        open=True,
    )


def recall_name(run: RunResult) -> str:
    """Name of the recall at the length of the accuracy's lists; else of the accuracy."""
    name = f"recall@{split_name(run.accuracy)[1]}"
    return name if name in run.evaluation.metrics else run.accuracy


def band_recall(run: RunResult, by: str = "target") -> dict[str, float]:
    """Band -> recall of the users whose target is in it; empty where there is no such slice."""
    name = recall_name(run)
    return {band: float(part[name]) for band, part in run.evaluation.slices.get(by, {}).items() if name in part}


def band_error(run: RunResult, band: str, by: str = "target") -> float:
    """Two standard errors of a band's recall over its users."""
    rows = run.evaluation.per_user
    number = slice_labels(rows.protocol)[by].index(band)
    recalls = rows.values[recall_name(run)][rows.groups[by] == number]
    return float(2 * recalls.std(ddof=1) / len(recalls) ** 0.5) if len(recalls) > 1 else 0.0


FEW = 5
"""An item with fewer training events has few."""
GROUPS = ("none", f"1 to {FEW - 1}", f"{FEW} and more")
"""Groups of users, by the training events of their target."""


class ColdItems(Section):
    """Recall by training events of the target, and the positions in lists of items without any."""

    name = "cold_items"

    claim = Claim("Items that training hardly knows", "", open=True)

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return "" if result.store is None or result.evaluation.per_user.lists is None else None

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | None:
        """A table; None where every item has training events, or the runs cannot be compared."""
        if not_comparable(there) or not any((run.store.catalog.popularity == 0).any() for run in there):
            return None
        rows, groups = [], [target_groups(run) for run in there]
        counts = np.bincount(groups[0], minlength=len(GROUPS))
        for run, group in zip(there, groups, strict=True):
            recall = run.evaluation.per_user.values[recall_name(run)]
            rows.append((run.label, *(_mean(recall[group == number]) for number in range(len(GROUPS))), *shown(run)))
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


def target_groups(run: RunResult) -> Int[np.ndarray, "U"]:
    """Group of each evaluated user, as an index of `GROUPS`."""
    eval_set = evaluated_users(run.store, run.evaluation.protocol)
    order = np.argsort(eval_set.users, kind="stable")
    users = eval_set.take(order[np.searchsorted(eval_set.users[order], run.evaluation.per_user.users)])
    # [U] the largest count among the targets of each user
    events = np.maximum.reduceat(run.store.catalog.popularity[users.truth.flat()], users.truth.offsets[:-1])
    return np.searchsorted((1, FEW), events, side="right").astype(np.int64)


def shown(run: RunResult) -> tuple[float, float, int | None]:
    """Share of lists, share of users, and best position of items without training events."""
    lists = run.evaluation.per_user.lists
    assert lists is not None
    cold = (run.store.catalog.popularity == 0)[lists.clip(0)] & (lists >= 0)
    positions = np.flatnonzero(cold.any(0))
    share = float(cold.sum() / max(1, (lists >= 0).sum()))
    return share, float(cold.any(1).mean()), int(positions[0]) + 1 if len(positions) else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
