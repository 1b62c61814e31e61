"""Vectors -> semantic ids: K small numbers for each item, like items with like numbers.

The room's contract: a Spec whose ``fit(x, seed, tick)`` gives a `Quantiser`, and whose ``restore(tensors)`` gives it
back from a file. A learner sees vectors alone: where they come from is `items.vectors`, what is done about items with
the same codes is `collisions.py`, what a good code is says `measure.py`, and the folder on disk is `folder.py`. `Codes`
(`reader.py`) is what the rest of the library reads.

RQ-VAE (TIGER, arXiv:2305.05065) and LETTER (arXiv:2405.07314) are learners too: they come as `rqvae.py` and
`letter.py` and give a residual quantiser (`quantisers.py`) behind their encoder.

Letters: N items, D width, K levels, C codes of a level.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor


@runtime_checkable
class Quantiser(Protocol):
    """Codebooks that turn vectors into codes and back. Every row is treated alone: codes depend on no other row."""

    sizes: tuple[int, ...]
    """Codes of each level."""
    dim: int
    """D, the width of the vectors."""
    codebooks: Float[Tensor, "K C d"]
    """Codewords; d is D, or D / K where each level describes a part of the (rotated) vector."""

    def encode(self, x: Float[Tensor, "N D"]) -> Int64[Tensor, "N K"]: ...
    def decode(self, codes: Int64[Tensor, "N K"]) -> Float[Tensor, "N D"]: ...
    def last(self, x: Float[Tensor, "N D"], codes: Int64[Tensor, "N K"]) -> Float[Tensor, "N C"]:
        """Squared error of each row up to a constant of its own, with each code in the last level's place."""
        ...

    def tensors(self) -> dict[str, Tensor]: ...
