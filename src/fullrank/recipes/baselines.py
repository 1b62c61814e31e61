"""Recommenders without training, at their defaults: what every trained model has to beat.

Sources: item_to_item is that of Sarwar et al. 2001 in its session form (Ludewig & Jannach, arXiv:1803.09587).

Command: ``fullrank train popularity --data data/beauty --out runs/popularity`` (or `recency`, `item_to_item`).
Cost: seconds. Numbers: `results/sequence/`.
"""

from __future__ import annotations

from typing import Literal

from fullrank.experiment import Experiment
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.models.sequential.baselines.popularity import Popularity, Recency
from fullrank.recipes import RecipeSpec


class PopularityRecipe(RecipeSpec):
    """Popularity: the items with the most training events, for everybody; no training."""

    kind: Literal["popularity"] = "popularity"

    def build(self) -> Experiment:
        return Experiment(recipe="popularity", model=Popularity())


class RecencyRecipe(RecipeSpec):
    """Recent popularity: training events that lose half their weight every 30 days; no training, needs times."""

    kind: Literal["recency"] = "recency"

    def build(self) -> Experiment:
        return Experiment(recipe="recency", model=Recency())


class ItemToItemRecipe(RecipeSpec):
    """Item-to-item: co-occurrence with the last events of a history (Sarwar et al. 2001); no training."""

    kind: Literal["item_to_item"] = "item_to_item"

    def build(self) -> Experiment:
        return Experiment(recipe="item_to_item", model=ItemToItem())
