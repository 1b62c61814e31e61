"""ItemToItem: no training. `fullrank train item_to_item --data data/beauty --out runs/item_to_item` (seconds)."""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.models.sequential.baselines.item_to_item import ItemToItem


class ItemToItemRecipe(Spec):
    """The baseline `item_to_item` with its defaults."""

    kind: Literal["item_to_item"] = "item_to_item"

    def build(self) -> Experiment:
        return Experiment(recipe="item_to_item", model=ItemToItem())
