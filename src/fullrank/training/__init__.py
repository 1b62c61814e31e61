"""The only room that imports Lightning: fits a model to a store and writes a run folder.

`Callback` is what other rooms may hook into training with (diagnostics implement it).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from fullrank.data.impressions.store import AnyStore


@dataclass(frozen=True)
class TrainState:
    """Where training stands when a callback is asked."""

    model: nn.Module
    store: AnyStore
    out: Path
    step: int
    epoch: int


@runtime_checkable
class Callback(Protocol):
    """What else it may have: `headline`, the name of the figure (or names, of which one is there) that the epoch's line
    shows; `check(model, store)`, asked before anything is written, which raises `UserError` where it cannot serve;
    `every`, optimizer steps between rows `watch` inside an epoch, whose figures `on_epoch` gives too (None is none).
    """

    def on_epoch(self, state: TrainState) -> dict[str, Any]:
        """Figures for this epoch's row of metrics.jsonl; called after validation, on the first process."""
        ...
