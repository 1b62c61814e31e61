"""Accuracy when the model does not get to see a share of each history's events (PLR, Sec. 6.5.1 and Figure 3).

Any model can be measured, so that one that reasons stands beside its base. Which events are hidden is the same for all
models and seeds of training (`evaluation.event_dropout`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fullrank.analysis.activations import device_of
from fullrank.analysis.diagnosis import Row, row
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.draw import from_zero, legend, look, panel
from fullrank.analysis.report.results import RunResult, legend_label, measured
from fullrank.evaluation import evaluate

SHARES = (0.0, 0.1, 0.2, 0.3)
"""Of each history's events."""
USERS = 2048
"""Most users measured: the first of the sample."""


class Robustness(Diagnostic):
    """The selection metric at each share of hidden events; `index` is the share in percent."""

    name = "robustness"
    runs_model = True

    def rows(self) -> list[Row]:
        model, store = self.context.model, self.context.first(USERS)
        found = []
        for share in SHARES:
            spec = self.context.evaluation.selection_alone().model_copy(update={"drop": share})
            metrics = evaluate(model, store, self.context.split, spec, device=device_of(model)).metrics
            found += [row(self.name, name, value, index=round(100 * share)) for name, value in metrics.items()]
        return found

    @classmethod
    def figure(cls, results: Sequence[RunResult]) -> Figure | Missing | None:
        """The selection metric by the share of events that are hidden."""
        name, title = "robustness", "Accuracy with part of the history missing"
        there, absent = measured(results, "robustness")
        if not there:
            return Missing(name, title, " ".join(absent))
        curves = {
            one.key: {row["index"]: row["value"] for row in one.diagnosis.of("robustness", one.accuracy)}
            for one in there
        }

        def paint(axes: Any) -> None:
            for one in there:
                values = curves[one.key]
                axes.plot(
                    list(values), list(values.values()), label=legend_label(one, results), **look(results.index(one))
                )
            axes.set_xticks(sorted({share for values in curves.values() for share in values}))
            from_zero(axes)
            legend(axes)

        metrics = list(dict.fromkeys(one.accuracy for one in there))
        word = metrics[0] if len(metrics) == 1 else "accuracy"
        caption = (
            "Everybody's history is read with some of its events hidden, the same ones for every run, as if they had "
            "never been recorded. A line that stays level belongs to a model that needs less to go on. What may be "
            "recommended does not change. Measured on a sample of people; the first points are not the table's figures "
            "of all."
        )
        alt = f"{word} by percent of events hidden: " + "; ".join(
            f"{key} from {values[min(values)]:.4f} to {values[max(values)]:.4f}"
            for key, values in curves.items()
            if values
        )
        rows = tuple(
            (one.label, share, value) for one in there for share, value in curves[one.key].items()
        )  # fmt: skip
        drawn = panel(name, paint, alt, x="percent of each history hidden", y=word)
        return Figure(name, title, caption, (drawn,), ("run", "percent hidden", word), rows, absent)
