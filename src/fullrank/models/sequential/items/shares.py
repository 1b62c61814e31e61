"""Shares of the training events, for the correction by log q and for draws by popularity.

What takes time linear in the catalogue, the sum of the counts and their running sum, is made once for as long as the
counts stay: a training step that reads a few thousand items costs the same whatever the catalogue's size.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_AT_ONCE = 1 << 22
"""Counts that are added up together: bounds what is held beside them."""


class Shares:
    """Of counts [V]; an item without events counts as one event. Holds what is made of all of them."""

    def __init__(self, counts: Float[Tensor, "V"], cumulative: Float[Tensor, "V"] | None = None):
        """`cumulative`: the running sum, where somebody has it already (in a mapped file, say)."""
        self.total = torch.stack([part.clamp_min(1.0).sum() for part in counts.split(_AT_ONCE)]).sum()
        self.version = _version(counts)
        self._cumulative = cumulative

    def log(self, counts: Float[Tensor, "V"], ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Log share of some items."""
        return (counts[ids].clamp_min(1.0) / self.total).log()

    def cumulative(self, counts: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
        """Share of the items up to each, in double precision; the last is 1."""
        if self._cumulative is None:
            running = (counts.clamp_min(1.0) / self.total).log().double().exp().cumsum(0)
            self._cumulative = running / running[-1]
        return self._cumulative


_KEPT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def shares(counts: Float[Tensor, "V"]) -> Shares:
    """The shares of these counts, made anew where they have changed."""
    kept: Shares | None = _KEPT.get(counts)
    if kept is None or kept.version != _version(counts):
        kept = Shares(counts)
        keep(counts, kept)
    return kept


def keep(counts: Float[Tensor, "V"], made: Shares) -> None:
    """Have `shares` give these. Counts without a version (made under inference mode) are not kept."""
    if made.version is not None:
        _KEPT[counts] = made


def _version(counts: Tensor) -> int | None:
    return None if counts.is_inference() else counts._version
