"""Popularity: no training. `fullrank train popularity --data data/beauty --out runs/popularity` (seconds)."""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.sequential.baselines.popularity import Popularity


class PopularityRecipe(Spec):
    """The baseline `popularity` with its defaults."""

    kind: Literal["popularity"] = "popularity"

    def build(self) -> Experiment:
        return Experiment(recipe="popularity", model=Popularity())
