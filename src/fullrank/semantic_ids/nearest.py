"""The nearest codeword of each vector. Fast by one matrix product; exact where that leaves a doubt.

A product's rounding depends on how many rows it has, so alone it would give an item other codes in another chunk. It
only proposes the two best codewords; their distances are then taken directly, in float64, and equal ones go to the
smaller index. `nearest_codeword_reference` is the readable twin.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

ROWS = 4096


def nearest_codeword(x: Float[Tensor, "N d"], codebook: Float[Tensor, "C d"], rows: int = ROWS) -> Int64[Tensor, "N"]:
    """Index of the codeword with the least squared distance, `rows` vectors at a time."""
    half = codebook.pow(2).sum(1) / 2
    found = [_refined(part, codebook, torch.addmm(half, part, codebook.T, alpha=-1)) for part in x.split(rows)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)


def nearest_codeword_reference(x: Float[Tensor, "N d"], codebook: Float[Tensor, "C d"]) -> Int64[Tensor, "N"]:
    """The same by the distances themselves."""
    far = (x.double()[:, None] - codebook.double()).pow(2).sum(-1)
    return far.argmin(1)


def _refined(
    x: Float[Tensor, "N d"], codebook: Float[Tensor, "C d"], scores: Float[Tensor, "N C"]
) -> Int64[Tensor, "N"]:
    two = scores.topk(min(2, len(codebook)), largest=False).indices.sort(1).values
    far = (x.double()[:, None] - codebook.double()[two]).pow(2).sum(-1)
    return two.gather(1, far.argmin(1, keepdim=True)).squeeze(1)
