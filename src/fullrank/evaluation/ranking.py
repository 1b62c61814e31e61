"""Evaluation of a ranking model: metrics of click probabilities, their intervals, and a reliability curve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int

from fullrank.core.errors import UserError, unknown
from fullrank.core.progress import Progress
from fullrank.data.batch import Impressions
from fullrank.evaluation.result import EvaluationResult, PerImpression
from fullrank.evaluation.retrieval import Split
from fullrank.evaluation.spec import RankingEvaluation, Selection
from fullrank.evaluation.statistics import bounds, resample_clicks
from fullrank.inference.predict import predict_batch
from fullrank.metrics import ctr
from fullrank.models.ranking.model import RankingModule, checked_labels


@runtime_checkable
class ImpressionEvalStore(Protocol):
    """What evaluation reads of a store of impressions."""

    @property
    def fingerprint(self) -> str: ...
    def split(self, name: Any) -> range: ...
    def batch(self, rows: Any) -> Impressions: ...


def evaluate_ranking(
    model: RankingModule,
    store: ImpressionEvalStore,
    split: str,
    spec: RankingEvaluation | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> EvaluationResult:
    """The model's metrics on all impressions of a split. Raises `UserError` where there are none, or no labels."""
    spec = spec or RankingEvaluation()
    rows = predict_rows(model, store, split_rows(store, split), spec.batch_size, device=device, progress=progress)
    return ranking_result(rows, spec, split, store.fingerprint)


def ranking_result(rows: PerImpression, spec: RankingEvaluation, split: str, fingerprint: str) -> EvaluationResult:
    """Metrics, intervals and protocol of some rows."""
    if spec.unit == "group" and rows.groups is None:
        raise UserError(
            "unit=group resamples groups and this store has no group column: use unit=row", code="no-group-column"
        )
    curve = ctr.reliability_curve(rows.probabilities, rows.labels, spec.bins)
    area, loss = ctr.auc(rows.probabilities, rows.labels), float(ctr.losses(rows.probabilities, rows.labels).mean())
    clicks = float(rows.labels.sum())
    pcoc = float(rows.probabilities.sum()) / clicks if clicks else math.nan
    metrics = {"auc": area, "logloss": loss, "auc-logloss": area - loss, "ece": ctr.ece(curve), "pcoc": pcoc}
    protocol = {
        "kind": "clicks", "split": split, "fingerprint": fingerprint, "rows": len(rows.rows), "clicks": int(clicks),
        "ties": "one half", "bins": spec.bins, "gauc_groups": None, "gauc_left_out": None,
        "bootstrap": {"samples": spec.bootstrap, "level": spec.level, "seed": spec.seed, "unit": spec.unit},
    }  # fmt: skip
    if rows.groups is not None:
        within = ctr.gauc(rows.probabilities, rows.labels, rows.groups)
        metrics["gauc"] = within.value
        protocol |= {"gauc_groups": within.groups, "gauc_left_out": within.left_out}
    whose = rows.groups if spec.unit == "group" else None
    drawn = resample_clicks(rows.probabilities, rows.labels, whose, samples=spec.bootstrap, seed=spec.seed)
    stderr = {n: float(v.std(ddof=1)) if len(v) > 1 else math.nan for n, v in drawn.items()}
    interval = {n: bounds(v, spec.level) for n, v in drawn.items()}
    return EvaluationResult(metrics, stderr, interval, {}, protocol, rows, curve)


def selection_value(rows: PerImpression, selection: Selection) -> float:
    """The value of a selection metric."""
    if selection == "logloss":
        return float(ctr.losses(rows.probabilities, rows.labels).mean())
    if selection == "gauc":
        if rows.groups is None:
            raise UserError(
                "the selection metric gauc needs a group column: prepare the store with one, or select auc",
                code="no-group-column",
            )
        return ctr.gauc(rows.probabilities, rows.labels, rows.groups).value
    area = ctr.auc(rows.probabilities, rows.labels)
    return area if selection == "auc" else area - float(ctr.losses(rows.probabilities, rows.labels).mean())


def split_rows(store: ImpressionEvalStore, split: str) -> Int[np.ndarray, "N"]:
    """Row numbers of a split."""
    if split not in get_args(Split):
        raise unknown("split", split, get_args(Split))
    found = store.split(split)
    if not len(found):
        raise UserError(
            f"the store has no impressions in the split {split!r}: prepare it with another split",
            code="no-impressions-in-split",
        )
    return np.arange(found.start, found.stop)


def predict_rows(
    model: RankingModule,
    store: ImpressionEvalStore,
    rows: Int[np.ndarray, "N"],
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> PerImpression:
    """Probability, label and group of some rows of a store."""
    probabilities, labels, groups = [], [], []
    for batch in _batches(store, rows, batch_size, progress):
        labels.append(checked_labels(batch.labels).numpy())
        if batch.groups is not None:
            groups.append(batch.groups.numpy())
        probabilities.append(predict_batch(model, batch, device))
    whose = np.concatenate(groups).astype(np.int64) if groups else None
    return PerImpression(rows, np.concatenate(probabilities), np.concatenate(labels).astype(np.float64), whose)


def _batches(
    store: ImpressionEvalStore, rows: np.ndarray, size: int, progress: Progress | None
) -> Iterator[Impressions]:
    for low in range(0, len(rows), size):
        yield store.batch(rows[low : low + size])
        if progress is not None:
            progress(min(low + size, len(rows)), len(rows))
