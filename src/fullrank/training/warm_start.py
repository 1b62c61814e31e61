"""Start from an earlier run's weights: same spec, items matched by external id, new items keep their first values."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fullrank.data.catalog import Catalog
from fullrank.errors import UserError
from fullrank.ops.safe_files import read_tensors
from fullrank.run import Run


@torch.no_grad()
def copy_weights(model: nn.Module, catalog: Catalog, source: Run) -> int:
    """Fill `model` from a run. Returns how many of its items the run knew."""
    tensors = read_tensors(source.path / "weights.safetensors")
    old = source.catalog
    place = np.asarray(old.lookup(catalog.ids))
    known = torch.from_numpy(np.flatnonzero(place >= 0))
    rows = torch.from_numpy(place[place >= 0])
    if len(known) == 0:
        raise UserError(
            f"none of the {catalog.size} items is known to {source.path}; are the item ids of the same kind?"
        )
    own = model.state_dict()
    for name, tensor in own.items():
        if name.endswith("popularity"):
            continue  # counts of the new data
        if name not in tensors:
            raise UserError(f"{source.path} has no {name!r}; going on needs the same model spec")
        given = tensors[name]
        if given.shape == tensor.shape and not (tensor.ndim and len(tensor) == catalog.size):
            tensor.copy_(given)
        elif (
            given.ndim
            and given.shape[1:] == tensor.shape[1:]
            and len(given) == old.size
            and len(tensor) == catalog.size
        ):
            tensor[known] = given[rows]
        else:
            raise UserError(
                f"{source.path}: {name!r} has shape {tuple(given.shape)}, needed {tuple(tensor.shape)}; "
                "going on needs the same model spec"
            )
    return len(known)
