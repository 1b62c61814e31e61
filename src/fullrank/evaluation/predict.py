"""New impressions in, their click probabilities out, beside the columns that they came with."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch

from fullrank.click import ClickModel
from fullrank.data.frames import Source
from fullrank.data.impressions import ImpressionStore
from fullrank.errors import UserError
from fullrank.evaluation.clicks import Progress, probable

ROWS = 1 << 16
"""Rows encoded and scored at once."""


def predict(
    model: ClickModel,
    store: ImpressionStore,
    impressions: Any,
    *,
    column: str = "probability",
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> pl.DataFrame:
    """The table with one more column. Raises `UserError` where a field is missing or the column is there already."""
    source = Source(impressions, "impressions")
    if column in source.columns:
        raise UserError(f"the impressions have a column {column!r} already: name another one for the probabilities")
    frame = source.read(list(source.columns))
    parts = [np.empty(0)]
    for low in range(0, len(frame), ROWS):
        parts.append(probable(model, store.encode(frame.slice(low, ROWS)), device))
        if progress is not None:
            progress(min(low + ROWS, len(frame)), len(frame))
    return frame.with_columns(pl.Series(column, np.concatenate(parts), pl.Float64))
