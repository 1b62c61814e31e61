"""The constants of SRT (SIGIR 2024), as a reference: Eqs. 3 and 5, NDCG@5 against 10,000 drawn items on Amazon.

FLOPs there are those of a profiler: multiply-adds of linear layers and norms in one forward pass, neither attention nor
backward. N of Eq. 5 is read as all parameters and T as the interactions of the data set, under which its constants
predict the published runs best.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fullrank.core.errors import UserError
from fullrank.scaling.fit import Law
from fullrank.scaling.forms import FORMS

SRT: dict[str, dict[str, float]] = {
    "sigmoid": {"a": 0.396, "k": 0.18, "x0": 24.44, "c": -0.247},
    "power": {"E": 0.163, "A": 18.56, "alpha": 0.376, "B": 2.9, "beta": 0.364},
}
"""Form -> the paper's parameters."""


def srt(form: str, **at: Any) -> np.ndarray:
    """The paper's law at some place, as `Law.predict`."""
    if form not in SRT:
        raise UserError(f"SRT gives no constants of the form {form!r} (allowed: {', '.join(SRT)})")
    shape = FORMS[form]
    x = np.log(np.stack(np.broadcast_arrays(*(np.atleast_1d(np.asarray(at[axis], float)) for axis in shape.axes)), 1))
    return shape.value(np.array(list(SRT[form].values())), x)


def gap(law: Law, points: int = 400) -> float:
    """The largest distance of a law from the paper's on the range that the law was fitted on."""
    axes = [np.geomspace(*law.reach[axis], points if len(law.form.axes) == 1 else 40) for axis in law.form.axes]
    at = dict(zip(law.form.axes, (grid.ravel() for grid in np.meshgrid(*axes)), strict=True))
    return float(abs(law.predict(**at) - srt(law.form.name, **at)).max())
