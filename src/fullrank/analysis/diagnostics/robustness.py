"""Robustness: accuracy when a share of each history's events is hidden (PLR, Sec. 6.5.1 and Figure 3).

Any model can be measured, so that one that reasons stands beside its base. The same events are
hidden for all models and seeds of training (`evaluation.event_dropout`).
"""

from __future__ import annotations

from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, Runs, accuracy_word, lines
from fullrank.evaluation import evaluate

SHARES = (0.0, 0.1, 0.2, 0.3)
"""Shares of each history's events that are hidden."""
USERS = 2048
"""Most users that are measured: the first of the sample."""


class Robustness(Diagnostic):
    """The selection metric at each share of hidden events; `index` is the share in percent."""

    name = "robustness"
    claim = Claim(
        "Accuracy with part of the history missing",
        "Everybody's history is read with some of its events hidden, the same ones for every run, as if they had "
        "never been recorded. A line that stays level belongs to a model that needs less to go on. What may be "
        "recommended does not change. Measured on a sample of people; the first points are not the table's figures "
        "of all.",
    )
    runs_model = True

    def rows(self) -> list[Row]:
        model, store = self.context.model, self.context.first(USERS)
        rows = []
        for share in SHARES:
            spec = self.context.evaluation.selection_alone().model_copy(update={"drop": share})
            metrics = evaluate(model, store, self.context.split, spec).metrics
            rows += self.rows_of(metrics, index=round(100 * share))
        return rows

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        hidden, word = "percent of each history hidden", accuracy_word(there)
        rows = [
            (run.label, *point)
            for run in there
            for point in run.diagnosis.values(cls.name, run.accuracy, "index").items()
        ]
        return claim.figure(("run", hidden, word), rows, lines(hidden, word, zero=True))
