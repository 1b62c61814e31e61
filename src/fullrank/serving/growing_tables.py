"""Tables of item vectors that grow while a version serves: rows of new items behind those of the run's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.serving.origins import Origin

SPARE = 1024
"""Rows that a table has room for, at least."""


class GrowingTables:
    """Tables of the V items of a run with room behind them.

    Items that come later are written behind the others, in the same memory, where no older table looks: a million items
    are copied when the first new one comes, and not for each. Not safe from several threads at once.
    """

    def __init__(self, base: int):
        self.base = base
        self._filled: dict[str, tuple[Tensor, tuple[Origin, ...]]] = {}

    def with_means(self, name: str, table: Float[Tensor, "V *D"], origins: tuple[Origin, ...]) -> Float[Tensor, "W *D"]:
        """A learned table, and behind it weighted means of the neighbours' rows, of all rows where there are none."""
        return self.behind(name, table, origins, lambda first: _means(origins[first:], table))

    def behind(
        self,
        name: str,
        table: Float[Tensor, "V *D"],
        origins: tuple[Origin, ...],
        make: Callable[[int], Float[Tensor, "n *D"]],
    ) -> Float[Tensor, "W *D"]:
        """A table, and behind it what `make` gives for the items from one on (0 is the first new one)."""
        whole, before = self._filled.get(name, (None, ()))
        if whole is None or origins[: len(before)] != before or len(whole) < self.base + len(origins):
            whole, before = table.new_empty(self.base + 2 * len(origins) + SPARE, *table.shape[1:]), ()
            whole[: self.base] = table
        low, high = self.base + len(before), self.base + len(origins)
        if low < high:
            whole[low:high] = make(len(before))
        self._filled[name] = whole, origins
        return whole[:high]


def _means(origins: Sequence[Origin], table: Float[Tensor, "V *D"]) -> Float[Tensor, "n *D"]:
    rows = torch.tensor([row for row, one in enumerate(origins) for _ in one.neighbours], dtype=torch.long)
    items = torch.tensor([item for one in origins for item in one.neighbours], dtype=torch.long)
    weights = torch.tensor([weight for one in origins for weight in one.weights], dtype=torch.float64)
    parts = table.flatten(1)[items.to(table.device)] if table.ndim > 1 else table[items.to(table.device), None]
    found = torch.zeros(len(origins), parts.shape[1], dtype=torch.float64).index_add_(
        0, rows, parts.double().cpu() * weights[:, None]
    )
    alone = torch.tensor([not one.neighbours for one in origins])
    if bool(alone.any()):
        found[alone] = table.double().mean(0).cpu().flatten()
    return found.to(table).view(len(origins), *table.shape[1:])
