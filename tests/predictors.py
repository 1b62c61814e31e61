"""A predictor over the small catalogue: of a model that nobody trained, or of a baseline that was fitted to rows."""

from collections.abc import Sequence
from typing import Any

import torch

from fullrank.inference.predictor import Predictor
from tiny import catalog, shaken, store


def predictor_of(spec: Any, rows: Sequence[Sequence[int]]) -> Predictor:
    known = catalog()
    torch.manual_seed(0)
    model = spec.build(known)
    if hasattr(model, "fit"):
        model.fit(store([*rows] * 3))
    else:
        shaken(model)
    return Predictor(model, known, device="cpu")
