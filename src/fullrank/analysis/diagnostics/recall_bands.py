"""Recall by the popularity of what people chose next: which users a model serves, and which it costs.

Users are in the band of their target (`evaluation.slices.popularity_bands`): head are the most popular items that hold
the first third of the training events, mid the next third, tail all others. A mean over users hides that a model lives
on the head.
"""

from __future__ import annotations

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
from fullrank.evaluation.slices import LABELS
from fullrank.metrics.names import split_name

BANDS = LABELS["target"]


class RecallByPopularity(Section):
    """Recall of head, mid and tail targets, with standard errors over users."""

    name = "recall_bands"
    claim = Claim(
        "Recall by popularity of the target",
        "Of the people whose next item is popular (head), less so (mid) or in the long tail, the share that finds it "
        "among the best items. Each band holds about a third of the training events; bars have two standard errors "
        "over users. A run whose tail bar is short serves people of common taste alone.",
        open=True,
    )

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return None if band_recall(result) else "it was evaluated with slices=false"

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        why = not_comparable(there)
        if why is not None:
            return claim.missing(f"{why}.")
        chosen, metric = "popularity of what was chosen next", recall_name(there[0])
        values = {one.label: band_recall(one) for one in there}
        bands = list(values[there[0].label])
        drawn = tuple(
            (one.label, band, recall, recall - error, recall + error)
            for one in there for band, recall in values[one.label].items() for error in (band_error(one, band),)
        )  # fmt: skip
        rows = [
            (
                one.label,
                *(TableCell(f"{values[one.label][band]:.4f}", f"± {band_error(one, band):.4f}") for band in bands),
            )
            for one in there
        ]
        counts = there[0].evaluation.slices["target"]
        rows.append(("users", *(int(counts[band]["count"]) for band in bands)))
        chart = bars(chosen, metric, interval="y", percent=True, rows=drawn)
        return claim.figure(("run", *bands), rows, chart, more=f" The share is {metric}.")


def recall_name(one: RunResult) -> str:
    """Recall at the list length of the accuracy, where it was computed; else the accuracy itself."""
    name = f"recall@{split_name(one.accuracy)[1]}"
    return name if name in one.evaluation.metrics else one.accuracy


def band_recall(one: RunResult) -> dict[str, float]:
    """Band -> recall of the users whose target is in it; empty where there are no slices."""
    slices, name = one.evaluation.slices.get("target", {}), recall_name(one)
    return {band: float(slices[band][name]) for band in BANDS if name in slices.get(band, {})}


def band_error(one: RunResult, band: str) -> float:
    """Two standard errors of a band's recall over its users."""
    rows = one.evaluation.per_user
    some = rows.values[recall_name(one)][rows.groups["target"] == BANDS.index(band)]
    return float(2 * some.std(ddof=1) / len(some) ** 0.5) if len(some) > 1 else 0.0
