"""Calibrate a ranking model on the validation split: a copy of its run whose probabilities are corrected.

Platt scaling (Platt 1999) is a line, a * logit + b, fitted by maximum likelihood to targets
drawn slightly inwards. Isotonic regression (Zadrozny and Elkan, KDD 2002) is the rising function
that fits click rates best.

Differs: isotonic regression is of at most `PARTS` parts of equally many rows, each with one more
row of the mean click rate, so that no probability becomes 0 or 1; between the centres of its steps
it is a line in logits, and beyond them it goes on with Platt's slope. So it rises everywhere and
keeps the order of impressions.

N rows, K knots.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Float64
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit, logit

from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError, unknown
from fullrank.core.log import Progress, untold
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.evaluation.ranking import predict_rows, split_rows
from fullrank.metrics import RowValues, ctr
from fullrank.models.ranking.calibration import Calibration, logits_of
from fullrank.run import Run, require_empty, store_of, write_copy

METHODS = get_args(Calibration.model_fields["method"].annotation)
PARTS, LEAST_ROWS = 200, 50
"""Most parts that isotonic regression looks at, and about the rows that each has at least."""


def calibrate(
    run: Run,
    out: Path,
    *,
    method: str = "isotonic",
    data: AnyStore | str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Run:
    """A copy of a ranking model's run in the new folder `out`, calibrated on the validation split of its store.

    A calibration that `run` has is replaced. Raises `UserError` for a recommender, for a run whose
    training has not ended or that is of format 1, and where there is nothing to fit.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("method", method, METHODS)
    require_empty(out)
    target = resolve_device(device)
    encoder = run.encoder(data)  # refuses a recommender
    if run.needs_store or run.manifest["finished"] is False:
        why = "is of run format 1" if run.needs_store else "has not ended its training"
        raise UserError(f"{run.path} {why}: train it again, or to the end, then calibrate it", code="run-not-finished")
    store = store_of(run, data)
    assert isinstance(store, ImpressionStore)  # its fingerprint is the run's
    model: Any = run.model(encoder).to(target)
    model.calibration = None
    assert run.spec.clicks is not None
    size = run.spec.clicks.batch_size
    rows = predict_rows(model, store, split_rows(store, "validation"), size, progress=progress or untold)
    calibration = fit_calibration(method, rows.probabilities, rows.labels)
    return write_copy(run, out, encoder, run.tensors(), {"calibrated_from": str(run.path)}, calibration)


def fit_calibration(method: str, probabilities: RowValues, labels: RowValues) -> Calibration:
    """The calibration that `platt` or `isotonic` fits.

    Raises `UserError` for rows of one class, and for probabilities that do not rise with the
    clicks.
    """
    clicks = int(labels.sum())
    if not 0 < clicks < len(labels):
        raise UserError(
            f"calibration needs clicks and others, and of {len(labels):,} validation impressions {clicks:,} were "
            "clicked: prepare a larger validation split",
            code="constant-labels",
        )
    scores = logits_of(probabilities)
    slope, shift = _platt(scores, labels)
    if slope <= 0:
        raise UserError(
            "the model's probabilities do not rise with the clicks of the validation split, so there is nothing to "
            "calibrate: train it further, and look at its auc",
            code="calibration-not-rising",
        )
    knots = ((0.0, shift),) if method == "platt" else _isotonic(scores, labels)
    return Calibration.parse({"method": method, "knots": knots, "slope": slope, "rows": len(labels)})


def _platt(scores: RowValues, labels: RowValues) -> tuple[float, float]:
    """a and b of a * logit + b. Targets of 1 are (n + 1) / (n + 2), those of 0 1 / (n
    + 2), n rows of that class."""
    clicks = labels.sum()
    targets = np.where(labels > 0, (clicks + 1) / (clicks + 2), 1 / (len(labels) - clicks + 2))

    def loss(line: Float64[np.ndarray, "2"]) -> tuple[float, Float64[np.ndarray, "2"]]:
        x = line[0] * scores + line[1]
        wrong = expit(x) - targets
        return float((np.logaddexp(0, x) - targets * x).mean()), np.array([(wrong * scores).mean(), wrong.mean()])

    slope, shift = minimize(loss, np.array([1.0, 0.0]), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return float(slope), float(shift)


def _isotonic(scores: RowValues, labels: RowValues) -> tuple[tuple[float, float], ...]:
    """Knots in logits: the centre of each step of isotonic regression, and the click rate there."""
    parts = ctr.reliability_curve(scores, labels, max(min(PARTS, len(scores) // LEAST_ROWS), 1))
    rows, means, rates = (np.array([getattr(part, name) for part in parts]) for name in ("rows", "probability", "rate"))
    rates = (rates * rows + labels.mean()) / (rows + 1)
    rising, step = np.unique(isotonic_regression(rates, weights=rows + 1.0).x, return_inverse=True)
    centres = np.bincount(step, means * rows) / np.bincount(step, rows)
    return tuple(zip(centres.tolist(), logit(rising).tolist(), strict=True))
