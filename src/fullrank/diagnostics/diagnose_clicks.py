"""All diagnostics of a click model on a bounded sample of impressions, as the rows of a `Diagnosis`."""

from __future__ import annotations

from typing import cast

from fullrank.click import ClickModel
from fullrank.data.impressions import ImpressionStore
from fullrank.diagnostics import Row
from fullrank.diagnostics.click_reading import click_readings, drawn
from fullrank.diagnostics.diagnose import Diagnosis, about_rows
from fullrank.diagnostics.rank_theorems import RankTheorems
from fullrank.diagnostics.token_ranks import TokenRanks
from fullrank.errors import UserError
from fullrank.ops.plain import plain
from fullrank.retrieval.batches import Progress

IMPRESSIONS = 4096
"""Impressions of the sample: means to about 0.01 and some seconds on two cores."""


def diagnose_clicks(
    model: ClickModel,
    store: ImpressionStore,
    *,
    split: str = "test",
    impressions: int = IMPRESSIONS,
    seed: int = 0,
    weights: str | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Everything that applies to this model, measured on `impressions` impressions of a split.

    `weights` is the hash that the rows are kept under. Raises `UserError` where the split is unknown or empty, or the
    store's fields are not those that the model was trained on.
    """
    if tuple(store.fields) != tuple(model.embedding.fields):
        raise UserError(
            f"{store.path} has other fields than those that the model reads: give the store of its training"
        )
    rows = drawn(store, split, impressions, seed=seed)
    observers = (TokenRanks(), RankTheorems(model))
    for reading in click_readings(model, store, rows, progress):
        for observer in observers:
            observer.see(reading)
    found: list[Row] = list(about_rows("impressions", split, len(rows), seed, store.fingerprint, weights))
    for observer in observers:
        found += observer.rows()
    return Diagnosis(tuple(cast(list[Row], plain(found))))
