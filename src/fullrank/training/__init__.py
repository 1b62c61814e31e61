"""The only room that imports Lightning: fits a model to a store and writes a run folder.

`Callback` is what other rooms may hook into training with (diagnostics implement it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, runtime_checkable

from torch import nn

from fullrank.data.impressions.store import AnyStore
from fullrank.run import Run


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


class FolderKeywords(TypedDict, total=False):
    """What becomes of the folder that a run is written into, where it is trained, and what is shown of that."""

    resume: bool
    """Continue a run of the same spec and data that was cut off, to the same weights bit for bit (on the CPU, with one
    thread count)."""
    overwrite: bool
    """Replace the run that is there with the first checkpoint of the new one: until then it stays whole."""
    device: str
    progress: bool


class FitKeywords(FolderKeywords, total=False):
    """Options of a training beside its experiment and its data."""

    init_from: Run | str | Path | None
    """An earlier run whose weights training starts from. Items, and the values of a ranking model's fields, are matched
    by external id."""
    loggers: Sequence[str]
    callbacks: Sequence[Callback]
    checkpoints: str | None
    """A URL of fsspec that the folder is copied to at each checkpoint; `resume` goes on from there where the folder has
    fewer steps."""


class TrainKeywords(FitKeywords, total=False):
    """The options of `FitKeywords`, and the Ray cluster that trains."""

    ray: str | None
    workers: int | None
    min_workers: int | None
    worker_cpus: int | None


FOLDER_DEFAULTS: FolderKeywords = {"resume": False, "overwrite": False, "device": "auto", "progress": True}
FIT_DEFAULTS: FitKeywords = {
    "resume": False, "overwrite": False, "init_from": None, "loggers": (), "callbacks": (), "device": "auto",
    "progress": True, "checkpoints": None,
}  # fmt: skip
WORKERS = ("workers", "min_workers", "worker_cpus")
"""Options about the workers of a Ray cluster."""
TRAIN_DEFAULTS: dict[str, Any] = {**FIT_DEFAULTS, **dict.fromkeys(("ray", *WORKERS))}
"""What the options of `train` are where the caller says nothing; those of `fit` and `finetune` stand above."""
