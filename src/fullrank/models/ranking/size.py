"""How large a click model is and what one impression costs, counted on paper.

Parameters are those of the look-ups (tables, vectors of numbers, first-order weights) and the dense ones, which every
impression passes through. FLOPs are those of one impression's forward pass: two for each multiplication with its
addition in a matrix product. Biases, norms, activations, sums, element-wise products and look-ups are not counted, so
that lr and fm have none; training takes about three times as many. `ops/flop_count.py` counts the same while it runs.

Differs: the paper compares seconds per epoch and memory (Figure 4), which depend on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn

Flops = dict[str, int | None]
"""By component, in the order of computing; None for one that does not say (a ranker of another package)."""


@runtime_checkable
class Counted(Protocol):
    """A ranker that knows what it costs."""

    def flops(self) -> Flops: ...


@dataclass(frozen=True)
class Size:
    """Parameters and FLOPs of a click model."""

    embedding: int
    """Parameters that are looked up."""
    dense: int
    """All others."""
    flops: Mapping[str, int | None]
    """Of one impression, forward, by component."""

    @property
    def total_flops(self) -> int | None:
        """Their sum; None where a component does not say."""
        parts = [part for part in self.flops.values() if part is not None]
        return sum(parts) if len(parts) == len(self.flops) else None

    def dump(self) -> dict[str, Any]:
        """As it stands in a run's manifest and in the rows of a sweep."""
        total = {"flops": self.total_flops, "flops_by_component": dict(self.flops)}
        return {"embedding_parameters": self.embedding, "dense_parameters": self.dense, **total}


def of_linear(layer: nn.Linear, times: int = 1) -> int:
    """FLOPs of a linear layer on `times` vectors."""
    return 2 * layer.weight.numel() * times


def of_part(module: nn.Module) -> int | None:
    """FLOPs of a part that knows them (a mixing, a feed-forward), else None."""
    count = getattr(module, "flops", None)
    return None if count is None else int(count())
