"""Accuracy when the model does not get to see a share of each history's events (PLR, Sec. 6.5.1 and Figure 3).

Any model can be measured, so that one that reasons stands beside its base. Which events are hidden is the same for all
models and seeds of training (`evaluation.event_dropout`).
"""

from __future__ import annotations

from typing import Any

from fullrank.analysis.activations import device_of
from fullrank.analysis.diagnosis import Row, rows_of
from fullrank.analysis.diagnostics import RunsFigure
from fullrank.analysis.report import Figure
from fullrank.analysis.report.draw import from_zero
from fullrank.analysis.report.lines import ends, line_panel
from fullrank.analysis.report.results import Runs, accuracy_word
from fullrank.evaluation import evaluate

SHARES = (0.0, 0.1, 0.2, 0.3)
"""Of each history's events."""
USERS = 2048
"""Most users measured: the first of the sample."""


class Robustness(RunsFigure):
    """The selection metric at each share of hidden events; `index` is the share in percent."""

    name = "robustness"
    title = "Accuracy with part of the history missing"
    runs_model = True

    def rows(self) -> list[Row]:
        model, store = self.context.model, self.context.first(USERS)
        found = []
        for share in SHARES:
            spec = self.context.evaluation.selection_alone().model_copy(update={"drop": share})
            metrics = evaluate(model, store, self.context.split, spec, device=device_of(model)).metrics
            found += rows_of(self.name, metrics, index=round(100 * share))
        return found

    @classmethod
    def draw(cls, there: Runs, results: Runs) -> Figure:
        """The selection metric by the share of events that are hidden."""
        lines = {one.key: one.diagnosis.values(cls.name, one.accuracy, "index") for one in there}

        def shares(axes: Any) -> None:
            axes.set_xticks(sorted({share for line in lines.values() for share in line}))

        word = accuracy_word(there)
        caption = (
            "Everybody's history is read with some of its events hidden, the same ones for every run, as if they had "
            "never been recorded. A line that stays level belongs to a model that needs less to go on. What may be "
            "recommended does not change. Measured on a sample of people; the first points are not the table's figures "
            "of all."
        )
        alt = f"{word} by percent of events hidden: {ends(lines, '.4f')}"
        rows = tuple((one.label, share, value) for one in there for share, value in lines[one.key].items())
        drawn = line_panel(
            cls.name, results, lines, alt, x="percent of each history hidden", y=word, finish=(shares, from_zero)
        )
        return Figure(cls.name, cls.title, caption, (drawn,), ("run", "percent hidden", word), rows)
