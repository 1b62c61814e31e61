"""Popularity: no training. `fullrank train popularity --data data/beauty --out runs/popularity` (seconds)."""

from __future__ import annotations

from typing import Literal

from fullrank.baselines.popularity import Popularity
from fullrank.experiment import Experiment
from fullrank.spec import Spec


class PopularityRecipe(Spec):
    """The baseline `popularity` with its defaults."""

    kind: Literal["popularity"] = "popularity"

    def build(self) -> Experiment:
        return Experiment(recipe="popularity", model=Popularity())
