"""The only room that imports Lightning: fits a model to a store and writes a run folder.

`Callback` is what other rooms may hook into training with (diagnostics implement it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, runtime_checkable

from torch import nn

from fullrank.core.files import JsonObject
from fullrank.data.impressions.store import AnyStore
from fullrank.run import Run


@dataclass(frozen=True)
class TrainState:
    """The state of training when a callback is called."""

    model: nn.Module
    store: AnyStore
    out: Path
    step: int
    epoch: int


@runtime_checkable
class Callback(Protocol):
    """A hook of training: figures for each epoch.

    It may also have `headline`, the name of the figure (or names, of which one is there) that the
    epoch's line shows; `check(model, store)`, called before anything is written, which raises
    `UserError` where it cannot serve; `every`, optimizer steps between rows `watch` inside an
    epoch, whose figures `on_epoch` gives too (None where there are none).
    """

    def on_epoch(self, state: TrainState) -> JsonObject:
        """Figures for this epoch's row of metrics.jsonl; called after validation, on the first process."""
        ...


class FolderKeywords(TypedDict, total=False):
    """Options of the folder that a run is written into, of the device and of the progress shown."""

    resume: bool
    """Continue a run of the same spec and data that was cut off, to the same weights bit for bit
    (on the CPU, with one thread count)."""
    overwrite: bool
    """Replace the run that is there with the first checkpoint of the new one: until then it stays whole."""
    device: str
    progress: bool


class FitKeywords(FolderKeywords, total=False):
    """Options of a training beside its experiment and its data."""

    init_from: Run | str | Path | None
    """An earlier run whose weights training starts from. Items, and the values of a ranking model's
    fields, are matched by external id."""
    loggers: Sequence[str]
    callbacks: Sequence[Callback]
    checkpoints: str | None
    """A URL of fsspec that the folder is copied to at each checkpoint; `resume` goes on from there
    where the folder has fewer steps."""


class TrainKeywords(FitKeywords, total=False):
    """The options of `FitKeywords`, and the Ray cluster that trains."""

    ray: str | None
    workers: int | None
    min_workers: int | None
    worker_cpus: int | None


FOLDER_DEFAULTS: FolderKeywords = {"resume": False, "overwrite": False, "device": "auto", "progress": True}
FIT_DEFAULTS: FitKeywords = {
    "resume": False,
    "overwrite": False,
    "init_from": None,
    "loggers": (),
    "callbacks": (),
    "device": "auto",
    "progress": True,
    "checkpoints": None,
}
WORKERS = ("workers", "min_workers", "worker_cpus")
"""Options about the workers of a Ray cluster."""
TRAIN_DEFAULTS: JsonObject = {**FIT_DEFAULTS, **dict.fromkeys(("ray", *WORKERS))}
"""Defaults of the options of `train`; those of `fit` and `finetune` stand above."""
