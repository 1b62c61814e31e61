"""Training curves: loss, validation metric and, where it was watched, collapse, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fullrank.analysis.diagnostics import Claim, Figure, RunResult, Runs, Section, lines
from fullrank.analysis.report import join_words
from fullrank.evaluation.spec import HISTORY


class RetrievalCurves(Section):
    """Loss, validation metric and, where it was watched, collapse share of each epoch."""

    name = "curves"
    watched: ClassVar[Mapping[str, str]] = {"watch/collapse_share": "collapse share"}
    """Figures that `--watch` adds to the log, and their words."""
    claim = Claim(
        "Training curves",
        "Each run after every pass over the data. The weights of the epoch with the best validation metric are the "
        "ones that a run keeps. Losses of different kinds cannot be compared.",
    )

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return None if result.epochs else "it was not trained in epochs"

    @classmethod
    def note(cls, there: Runs) -> str:
        """A sentence on how validation was measured."""
        seen = sorted({HISTORY[run.spec.lists.for_selection().seen] for run in there})
        return f" Validation is with the {join_words(seen)}."

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        words = {f"validation/{run.selected}": f"validation {run.selected}" for run in there}
        words |= {"train/loss": "training loss (without penalties)", **cls.watched}
        moments = [
            (run.label, row)
            for run in there
            for row in run.log
            if row.get("event") in ("epoch", "watch") and isinstance(row.get("epoch"), int | float)
        ]
        words = {
            key: word for key, word in words.items() if any(_number(row.get(key)) is not None for _, row in moments)
        }
        rows = [(label, row["epoch"], *(_number(row.get(key)) for key in words)) for label, row in moments]
        more = cls.note(there)
        if not set(cls.watched) & set(words):
            more += f" No run was watched: train with --watch to see the {next(iter(cls.watched.values()))} here."
        # an AUC has its floor at 0.5, a loss none
        charts = [lines("epoch", word, zero="@" in word) for word in words.values()]
        return claim.figure(("run", "epoch", *words.values()), rows, *charts, more=more)


class RankingCurves(RetrievalCurves):
    """Loss, validation metric and, where it was watched, effective rank of each epoch."""

    problem = "ranking"
    watched: ClassVar[Mapping[str, str]] = {
        "watch/last_layer_stable_rank": "stable rank behind the last layer",
        "watch/last_layer_entropy_rank": "entropy rank behind the last layer",
    }

    @classmethod
    def note(cls, there: Runs) -> str:
        return ""


def _number(value: Any) -> float | None:
    """A finite number of the log, which may hold anything; None for everything else."""
    return float(value) if isinstance(value, int | float) and abs(value) < float("inf") else None
