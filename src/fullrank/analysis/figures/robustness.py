"""What becomes of accuracy when a model does not see a part of each history (PLR, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fullrank.analysis.figures.inside import having
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.draw import legend, look, panel
from fullrank.analysis.report.findings import Finding


def robustness(findings: Sequence[Finding]) -> Figure | Missing:
    """The selection metric by the share of events that are hidden."""
    name, title = "robustness", "When part of the history is missing"
    there, absent = having(findings, "robustness")
    if not there:
        return Missing(name, title, " ".join(absent))
    curves = {
        one.key: {row["index"]: row["value"] for row in one.diagnosis.of("robustness", one.accuracy)} for one in there
    }

    def paint(axes: Any) -> None:
        for one in there:
            values = curves[one.key]
            axes.plot(list(values), list(values.values()), label=one.key, **look(findings.index(one)))
        axes.set_xticks(sorted({share for values in curves.values() for share in values}))
        legend(axes)

    metrics = list(dict.fromkeys(one.accuracy for one in there))
    word = metrics[0] if len(metrics) == 1 else "accuracy"
    caption = (
        "Everybody's history is read with some of its events hidden, the same ones for every run, as if they had never "
        "been recorded. A line that stays level belongs to a model that needs less to go on. What may be recommended "
        "does not change. Measured on a sample of people; the first points are not the table's figures of all."
    )
    alt = f"{word} by percent of events hidden: " + "; ".join(
        f"{key} from {values[min(values)]:.4f} to {values[max(values)]:.4f}" for key, values in curves.items() if values
    )
    rows = tuple(
        (f"{one.key} {one.name}", share, value) for one in there for share, value in curves[one.key].items()
    )  # fmt: skip
    drawn = panel(name, paint, alt, x="percent of each history hidden", y=word)
    return Figure(name, title, caption, (drawn,), ("run", "percent hidden", word), rows, absent)
