"""Recency: no training. `fullrank train recency --data data/beauty --out runs/recency` (seconds)."""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.sequential.baselines.recency import Recency


class RecencyRecipe(Spec):
    """The baseline `recency` with its defaults."""

    kind: Literal["recency"] = "recency"

    def build(self) -> Experiment:
        return Experiment(recipe="recency", model=Recency())
