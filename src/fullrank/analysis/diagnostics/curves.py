"""How training went: loss, validation metric and, where it was watched, collapse, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fullrank.analysis.diagnostics import Section
from fullrank.analysis.report import Figure, Missing, Shown, join_words
from fullrank.analysis.report.draw import from_zero, integer_ticks
from fullrank.analysis.report.lines import ends, line_panel
from fullrank.analysis.report.results import RunResult, Runs
from fullrank.metrics.names import HISTORY

COLLAPSE = {"watch/collapse_share": "collapse share"}
RANKS = {
    "watch/last_layer_stable_rank": "stable rank behind the last layer",
    "watch/last_layer_entropy_rank": "entropy rank behind the last layer",
}


class RetrievalCurves(Section):
    """Loss, validation metric and, where it was watched, collapse share of each epoch."""

    name = "curves"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        seen = sorted({HISTORY[one.run.spec.lists.for_selection().seen] for one in results if one.epochs})
        return training_curves(results, COLLAPSE, f" Validation is with the {join_words(seen)}.")


class RankingCurves(Section):
    """Loss, validation metric and, where it was watched, effective rank of each epoch."""

    name = "curves"
    problem = "ranking"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        return training_curves(results, RANKS)


def training_curves(results: Runs, watched: Mapping[str, str], note: str = "") -> Figure | Missing:
    """One panel for each figure that any run has; `watched` are those that `--watch` adds, with their words.

    `note` is a sentence on how validation was measured.
    """
    name, title = "curves", "Training curves"
    there = [one for one in results if one.epochs]
    absent = tuple(
        f"Run {one.key} ({one.name}) is not shown: it was not trained in epochs." for one in results if not one.epochs
    )
    if not there:
        return Missing(name, title, " ".join(absent))
    figures = {
        **{f"validation/{metric}": f"validation {metric}" for metric in dict.fromkeys(one.selected for one in there)},
        "train/loss": "training loss (without penalties)",
        **watched,
    }
    lines = {key: {one.key: line for one in there if (line := _line(one, key))} for key in figures}
    kept = {key: word for key, word in figures.items() if lines[key]}
    panels = tuple(
        line_panel(
            f"{name}-{place}", results, lines[key], f"{word} by epoch: {ends(lines[key], '.4g')}", x="epoch", y=word,
            # an AUC has its floor at 0.5, a loss none
            finish=(from_zero, integer_ticks) if "@" in key else (integer_ticks,),
            marker=lambda points: "" if points > 30 else ".",
        )
        for place, (key, word) in enumerate(kept.items())
    )  # fmt: skip
    caption = (
        "Each run after every pass over the data. The weights of the epoch with the best validation metric are the "
        "ones that a run keeps. Losses of different kinds cannot be compared."
    ) + note
    if not set(watched) & set(kept):
        caption += f" No run was watched: train with --watch to see the {next(iter(watched.values()))} here."
    rows = tuple(
        (one.label, row["epoch"], *(_number(row.get(key)) for key in kept))
        for one in there for row in one.epochs
    )  # fmt: skip
    return Figure(name, title, caption, panels, ("run", "epoch", *kept.values()), rows, absent)


def _line(one: RunResult, key: str) -> dict[float, float]:
    """Epoch -> value."""
    return {
        row["epoch"]: value
        for row in one.log
        if row.get("event") in ("epoch", "watch")
        and isinstance(row.get("epoch"), int | float)
        and (value := _number(row.get(key))) is not None
    }


def _number(value: Any) -> float | None:
    """A log is read as it lies on disk: what is no finite number is left out."""
    return float(value) if isinstance(value, int | float) and abs(value) < float("inf") else None
