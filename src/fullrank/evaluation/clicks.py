"""A click model and a store of impressions in, metrics, intervals and a reliability curve out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int

from fullrank.batch import Impressions
from fullrank.click import ClickModel, checked
from fullrank.errors import UserError, unknown
from fullrank.evaluation.clicks_result import Clicked, ClickRows, summarised
from fullrank.evaluation.clicks_spec import Clicks, Selection
from fullrank.evaluation.measure import Split
from fullrank.metrics import ctr
from fullrank.retrieval.batches import evaluating

Progress = Callable[[int, int], None]


@runtime_checkable
class Shown(Protocol):
    """What evaluation reads of a store of impressions."""

    @property
    def fingerprint(self) -> str: ...
    def split(self, name: Any) -> range: ...
    def batch(self, rows: Any) -> Impressions: ...


def evaluate_clicks(
    model: ClickModel,
    store: Shown,
    split: str,
    spec: Clicks | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Clicked:
    """The model's metrics on all impressions of a split. Raises `UserError` where there are none, or no labels."""
    spec = spec or Clicks()
    rows = score(model, store, rows_of(store, split), spec.batch_size, device=device, progress=progress)
    return summarised(rows, spec, split, store.fingerprint)


def selected(rows: ClickRows, selection: Selection) -> float:
    """The value of a selection metric."""
    if selection == "logloss":
        return float(ctr.losses(rows.probabilities, rows.labels).mean())
    if selection == "gauc":
        if rows.groups is None:
            raise UserError("the selection metric gauc needs a group column: prepare the store with one, or select auc")
        return ctr.gauc(rows.probabilities, rows.labels, rows.groups).value
    area = ctr.auc(rows.probabilities, rows.labels)
    return area if selection == "auc" else area - float(ctr.losses(rows.probabilities, rows.labels).mean())


def rows_of(store: Shown, split: str) -> Int[np.ndarray, "N"]:
    """Row numbers of a split."""
    if split not in get_args(Split):
        raise unknown("split", split, get_args(Split))
    found = store.split(split)
    if not len(found):
        raise UserError(f"the store has no impressions in the split {split!r}: prepare it with another split")
    return np.arange(found.start, found.stop)


def score(
    model: ClickModel,
    store: Shown,
    rows: Int[np.ndarray, "N"],
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> ClickRows:
    """Probability, label and group of some rows of a store."""
    probabilities, labels, groups = [], [], []
    for batch in _batches(store, rows, batch_size, progress):
        labels.append(checked(batch.labels).numpy())
        if batch.groups is not None:
            groups.append(batch.groups.numpy())
        probabilities.append(probable(model, batch, device))
    whose = np.concatenate(groups).astype(np.int64) if groups else None
    return ClickRows(rows, np.concatenate(probabilities), np.concatenate(labels).astype(np.float64), whose)


@torch.inference_mode()
def probable(model: ClickModel, batch: Impressions, device: torch.device | str = "cpu") -> Float[np.ndarray, "B"]:
    """The model's probabilities for a batch. Raises `UserError` where they are no numbers."""
    with evaluating(model):
        found: np.ndarray = model.probabilities(batch.to(device)).cpu().numpy()
    if not np.isfinite(found).all():
        raise UserError("the model gives probabilities that are not finite: its training diverged; lower training.lr")
    return found


def _batches(store: Shown, rows: np.ndarray, size: int, progress: Progress | None) -> Iterator[Impressions]:
    for low in range(0, len(rows), size):
        yield store.batch(rows[low : low + size])
        if progress is not None:
            progress(min(low + size, len(rows)), len(rows))
