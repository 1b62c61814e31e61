"""Recall by the popularity of what people chose next: which users a model serves, and which it costs.

Users are in the band of their target (`evaluation.slices.popularity_bands`): head are the most popular items that hold
the first third of the training events, mid the next third, tail all others. A mean over users hides that a model lives
on the head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fullrank.analysis.diagnostics import Section
from fullrank.analysis.report import Figure, Missing, Shown, TableCell
from fullrank.analysis.report.draw import from_zero, legend, look, panel
from fullrank.analysis.report.results import RunResult, Runs, legend_label, not_comparable
from fullrank.evaluation.slices import LABELS
from fullrank.metrics.names import split_name

BANDS = LABELS["target"]


class RecallByPopularity(Section):
    """Recall of head, mid and tail targets, with standard errors over users."""

    name = "recall_bands"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        title = "Recall by popularity of the target"
        why = not_comparable(results)
        if why is not None:
            return Missing(cls.name, title, f"{why}.")
        there = [one for one in results if band_recall(one)]
        absent = tuple(
            f"Run {one.key} ({one.name}) is not shown: it was evaluated with slices=false."
            for one in results if one not in there
        )  # fmt: skip
        if not there:
            return Missing(cls.name, title, " ".join(absent))
        metric, values = recall_name(there[0]), {one.key: band_recall(one) for one in there}
        bands = [band for band in BANDS if band in values[there[0].key]]

        def paint(axes: Any) -> None:
            thick = 0.84 / len(there)
            for place, one in enumerate(there):
                at = np.arange(len(bands)) + (place - (len(there) - 1) / 2) * thick
                heights = [100 * values[one.key][band] for band in bands]
                reach = [100 * band_error(one, band) for band in bands]
                axes.bar(at, heights, thick * 0.92, yerr=reach, error_kw={"lw": 0.8, "ecolor": "#444444"},
                         color=look(results.index(one))["color"], label=legend_label(one, results))  # fmt: skip
            axes.set_xticks(range(len(bands)), bands)
            from_zero(axes)
            legend(axes)

        counts = {band: int(there[0].evaluation.slices["target"][band]["count"]) for band in bands}
        caption = (
            f"Of the people whose next item is popular (head), less so (mid) or in the long tail, the share that finds "
            f"it among the best {split_name(metric)[1]} ({metric}). Each band holds about a third of the training "
            "events; bars have two standard errors over users. A run whose tail bar is short serves people of common "
            "taste alone."
        )
        alt = f"Bars of {metric} by popularity band: " + "; ".join(
            f"{one.key} " + ", ".join(f"{band} {values[one.key][band]:.3f}" for band in bands) for one in there
        )
        rows = (
            *((one.label, *(_cell(one, values[one.key][band], band) for band in bands)) for one in there),
            ("users", *(counts[band] for band in bands)),
        )
        drawn = panel(cls.name, paint, alt, x="popularity of what was chosen next", y=f"{metric} (%)")
        return Figure(cls.name, title, caption, (drawn,), ("run", *bands), rows, absent, open=True)


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


def _cell(one: RunResult, value: float, band: str) -> TableCell:
    return TableCell(f"{value:.4f}", f"± {band_error(one, band):.4f}")
