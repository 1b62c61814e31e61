"""Sums (or means) of the vectors of some rows' tokens, where rows of tokens lie packed: all tokens, one offset per row.

A padded table of tokens has the width of its longest row; packed ones have no padding. A row's tokens are
``flat[offsets[i]:offsets[i + 1]]``; a row without tokens gives zeros.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def packed_bags(
    table: Float[Tensor, "N D"],
    flat: Int[Tensor, "E"],
    offsets: Int[Tensor, "V1"],
    rows: Int[Tensor, "m"],
    *,
    mean: bool = False,
) -> Float[Tensor, "m D"]:
    """One vector for each of `rows`."""
    starts = offsets[rows]
    counts = offsets[rows + 1] - starts
    ends = counts.cumsum(0)
    places = torch.repeat_interleave(starts - (ends - counts), counts)
    places += torch.arange(len(places), device=places.device)
    bounds = torch.cat([ends.new_zeros(1), ends])
    return F.embedding_bag(flat[places].long(), table, bounds, mode="mean" if mean else "sum", include_last_offset=True)


def packed_bags_reference(
    table: Float[Tensor, "N D"],
    flat: Int[Tensor, "E"],
    offsets: Int[Tensor, "V1"],
    rows: Int[Tensor, "m"],
    *,
    mean: bool = False,
) -> Float[Tensor, "m D"]:
    """The same, row by row."""
    found = []
    for row in rows.tolist():
        tokens = flat[int(offsets[row]) : int(offsets[row + 1])]
        total = table[tokens.long()].sum(0)
        found.append(total / max(1, len(tokens)) if mean else total)
    return torch.stack(found) if found else table[:0]
