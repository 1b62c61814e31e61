"""Accuracy when the model does not get to see a share of each history's events (PLR, Sec. 6.5.1 and Figure 3).

Any model can be asked, so that one that reasons stands beside its base. Which events are hidden is the same for all
models and seeds of training (`evaluation.dropped`).
"""

from __future__ import annotations

from fullrank.analysis import Row, row
from fullrank.analysis.ablation import Chosen
from fullrank.analysis.reading import Sample, device_of
from fullrank.data.batch import Model
from fullrank.data.events.store import Store
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.retrieval import Split

SHARES = (0.0, 0.1, 0.2, 0.3)
"""Of each history's events."""
USERS = 2048
"""Most users measured: the first of the sample."""


def robustness_rows(model: Model, store: Store, sample: Sample, split: Split, spec: Evaluation) -> list[Row]:
    """The selection metric at each share; `index` is the share in percent."""
    asked = Chosen(store, sample.first(USERS).users)
    found = []
    for share in SHARES:
        light = spec.for_selection().model_copy(update={"drop": share})
        metrics = evaluate(model, asked, split, light, device=device_of(model)).metrics
        found += [row("robustness", name, value, index=round(100 * share)) for name, value in metrics.items()]
    return found
