"""Start from an earlier run's weights: same spec, items matched by external id, new items keep their first values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import Items
from fullrank.run import Run

ITEMS = "items."
"""What the names of the item module's tensors begin with."""


@torch.no_grad()
def copy_weights(model: nn.Module, catalog: Catalog, source: Run) -> int:
    """Fill `model` from a run. Returns how many of its items the run knew.

    What the item module learned per item is matched by external id, what it learned of features by their values
    (`Items.transferred`); its buffers are the new data's. All else is copied and must have the same shape.
    Raises `UserError` where no item is known or the run is of another model spec.
    """
    tensors = source.tensors()
    old = source.catalog
    place = np.asarray(old.lookup(catalog.ids))
    known, rows = torch.from_numpy(np.flatnonzero(place >= 0)), torch.from_numpy(place[place >= 0])
    if len(known) == 0:
        raise UserError(
            f"none of the {catalog.size} items is known to {source.path}; are the item ids of the same kind?",
            code="no-known-items",
        )
    own, learned = model.state_dict(), {name for name, _ in model.named_parameters()}
    absent = sorted(set(own) - set(tensors))
    if absent:
        raise UserError(
            f"{source.path} has no {absent[0]!r}; going on needs the same model spec", code="weights-differ-from-spec"
        )
    carried = _transferred(model, tensors, old, catalog)
    for name, tensor in own.items():
        of_items = name.startswith(ITEMS)
        if of_items and name not in learned:
            continue  # counts, codes and standardised numbers of the new data
        given = carried.get(name, tensors[name])
        per_item = of_items and name not in carried and _per_item(given, old) and _per_item(tensor, catalog)
        if given.shape[1:] == tensor.shape[1:] and per_item:
            tensor[known] = given[rows]
        elif given.shape == tensor.shape:
            tensor.copy_(given)
        else:
            raise UserError(
                f"{source.path}: {name!r} has shape {tuple(given.shape)}, needed {tuple(tensor.shape)}; "
                "going on needs the same model spec",
                code="weights-differ-from-spec",
            )
    return len(known)


def _transferred(model: nn.Module, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
    items = getattr(model, "items", None)
    if not isinstance(items, Items):
        return {}
    given = {name.removeprefix(ITEMS): tensor for name, tensor in tensors.items() if name.startswith(ITEMS)}
    return {ITEMS + name: tensor for name, tensor in items.transferred(given, old, new).items()}


def _per_item(tensor: Tensor, catalog: Catalog) -> bool:
    return tensor.ndim > 0 and len(tensor) == catalog.size
