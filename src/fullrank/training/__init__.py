"""The only room that imports Lightning: fits a model to a store and writes a run folder.

`Callback` is what other rooms may hook into training with (diagnostics implement it).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from fullrank.data.stores import AnyStore


@dataclass(frozen=True)
class Moment:
    """Where training stands when a callback is asked."""

    model: nn.Module
    store: AnyStore
    out: Path
    step: int
    epoch: int


@runtime_checkable
class Callback(Protocol):
    """An attribute `headline`, where it has one, names the figure that the epoch's line shows."""

    def on_epoch(self, moment: Moment) -> dict[str, Any]:
        """Figures for this epoch's row of metrics.jsonl; called after validation, on the first process."""
        ...
