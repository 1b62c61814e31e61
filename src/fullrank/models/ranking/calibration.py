"""Calibration of click probabilities: a rising function of the logit, behind a trained model.

`training/calibrate.py` fits it. A function that rises everywhere keeps the order of impressions:
auc, gauc and lists do not change. N rows, K knots.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from pydantic import Field, model_validator
from torch import Tensor, nn

from fullrank.core.constraints import LEAST_PROBABILITY, MOST_ENTRIES, MOST_VALUE, Count, Value
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec


class Calibration(Spec):
    """A fitted calibration: a rising function in pieces of lines, of logits to logits."""

    method: Literal["platt", "isotonic"]
    knots: tuple[tuple[Value, Value], ...] = Field(min_length=1, max_length=MOST_ENTRIES)
    """Logits and what they become, both rising."""
    slope: float = Field(gt=0, le=MOST_VALUE)
    """Slope before the first knot and behind the last."""
    rows: Count
    """Validation impressions that it was fitted on."""

    @model_validator(mode="after")
    def _rises(self) -> Calibration:
        if not all(a[0] < b[0] and a[1] < b[1] for a, b in zip(self.knots, self.knots[1:], strict=False)):
            raise UserError("the knots of a calibration have to rise, in both columns", code="calibration-not-rising")
        return self

    def build(self) -> CalibrationCurve:
        return CalibrationCurve(self)

    def inverse(self) -> Calibration:
        """The calibration that gives the logits back as they were."""
        return self.model_copy(update={"knots": tuple((y, x) for x, y in self.knots), "slope": 1 / self.slope})

    def of_probabilities(self, probabilities: Float64[np.ndarray, "N"]) -> Float64[np.ndarray, "N"]:
        """Calibrated probabilities; those nearer to 0 or 1 than LogLoss tells are first moved that far away."""
        calibrated: np.ndarray = self.build()(torch.from_numpy(logits_of(probabilities))).sigmoid().numpy()
        return calibrated


class CalibrationCurve(nn.Module):
    """Logits to calibrated logits, in double precision; it has no weights, and no part in the model's state."""

    def __init__(self, spec: Calibration):
        super().__init__()
        self.spec = spec
        self.knots: Float64[Tensor, "K 2"]
        self.register_buffer("knots", torch.tensor(spec.knots, dtype=torch.float64), persistent=False)

    def forward(self, logits: Float[Tensor, "N"]) -> Float64[Tensor, "N"]:
        x, y = self.knots.unbind(1)
        wide = logits.double()
        # beyond the knots the slope goes on; between them each piece adds its rise, or
        # the part up to the logit
        outside = (wide - x[0]).clamp(max=0) + (wide - x[-1]).clamp(min=0)
        inside = ((wide[:, None] - x[:-1]) / x.diff()).clamp(0, 1) * y.diff()
        return y[0] + self.spec.slope * outside + inside.sum(1)


def logits_of(probabilities: Float64[np.ndarray, "N"]) -> Float64[np.ndarray, "N"]:
    """log(p / (1 - p)), of probabilities clipped as far from 0 and 1 as LogLoss clips them."""
    clipped = np.clip(probabilities, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return np.log(clipped) - np.log1p(-clipped)
