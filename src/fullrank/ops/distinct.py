"""The distinct ones of many ids, in rising order, without sorting them.

Marking the ids in a table of truth values and reading it takes time linear in its size, which is less than a sort while
the table has not many more rows than there are ids.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

ROWS_PER_ID = 64
"""Rows of the table for each id, above which sorting is taken."""


def distinct(ids: Int[Tensor, "n"], size: int) -> Int[Tensor, "m"]:
    """The ids that occur, each once; all are in 0 .. size - 1."""
    if size > ROWS_PER_ID * len(ids):
        return torch.unique(ids)
    seen = torch.zeros(size, dtype=torch.bool, device=ids.device)
    seen[ids] = True
    return seen.nonzero().squeeze(1)


def distinct_and_places(ids: Int[Tensor, "*n"], size: int) -> tuple[Int[Tensor, "m"], Int[Tensor, "*n"]]:
    """The ids that occur, in rising order, and where among them each given one stands.

    Marking needs a table of places besides, so sorting is taken sooner: in tables with more rows than there are ids.
    """
    if size > ids.numel():
        return torch.unique(ids, return_inverse=True)
    found = distinct(ids.flatten(), size)
    places = torch.empty(size, dtype=torch.long, device=ids.device)
    places[found] = torch.arange(len(found), device=ids.device)
    return found, places[ids]
