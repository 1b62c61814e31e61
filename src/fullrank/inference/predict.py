"""Prediction: click probabilities of new impressions as one more column of their table, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float

from fullrank.core.checks import check_path, check_type
from fullrank.core.device import device_of
from fullrank.core.errors import UserError
from fullrank.core.files import scratch_folder
from fullrank.core.log import Progress, untold
from fullrank.core.tables import TableWriter
from fullrank.data.batch import Impressions
from fullrank.data.frames import Chunks, InputTable
from fullrank.data.impressions.encoding import FieldEncoder, require_fields, transform
from fullrank.data.impressions.joined import UserColumns, users_table
from fullrank.inference.batches import evaluating
from fullrank.inference.requests import to_caller_type
from fullrank.models.ranking import ClickModel

ROWS = 1 << 14
"""Rows encoded and scored at once: as many as evaluation takes."""


@dataclass(frozen=True)
class PredictionFile:
    """The file that `predict_file` wrote."""

    out: Path
    rows: int
    mean: float | None
    """Mean of the probabilities; None without rows."""


@torch.inference_mode()
def predict_batch(model: ClickModel, batch: Impressions) -> Float[np.ndarray, "B"]:
    """The model's probabilities for a batch. Raises `UserError` where they are not finite."""
    with evaluating(model):
        probabilities: np.ndarray = model.probabilities(batch.to(device_of(model))).cpu().numpy()
    if not np.isfinite(probabilities).all():
        raise UserError(
            "the model gives probabilities that are not finite: its training diverged (lower training.lr), or a number "
            "lies far outside of those that it was trained on",
            code="probabilities-not-finite",
            public=True,
        )
    return probabilities


def predict(
    model: ClickModel,
    encoder: FieldEncoder,
    impressions: Any,
    *,
    users: Any = None,
    column: str = "probability",
    progress: Progress = untold,
) -> Any:
    """The table with one more column, as the caller's type of DataFrame; polars of a file and of a lazy frame.

    Fields that it lacks are read of the table `users`. Raises `UserError` where a field is missing
    or the column is there already.
    """
    with _predictions(model, encoder, impressions, users, column, progress) as (source, frames):
        return to_caller_type(source.frame)(pl.concat(list(frames)))


def predict_file(
    model: ClickModel,
    encoder: FieldEncoder,
    impressions: Any,
    out: str | Path,
    *,
    users: Any = None,
    column: str = "probability",
    progress: Progress = untold,
) -> PredictionFile:
    """Write `predict`'s table to a file (.parquet, .csv or .jsonl) that appears whole or not at all.

    Memory is that of a chunk, whatever the number of rows. Raises `UserError` as `predict` does,
    and where the file cannot be written; one that was there stays then.
    """
    path = check_path("out", out)
    writer = TableWriter(path)
    total = 0.0
    with _predictions(model, encoder, impressions, users, column, progress) as (_, frames), writer:
        for frame in frames:
            writer.add(frame)
            total += float(frame[column].sum())
    return PredictionFile(path, writer.rows, total / writer.rows if writer.rows else None)


@contextmanager
def _predictions(
    model: ClickModel, encoder: FieldEncoder, impressions: Any, users: Any, column: str, progress: Progress
) -> Iterator[tuple[InputTable, Iterator[pl.DataFrame]]]:
    """The table, and its chunks with their probabilities while they are read."""
    source = InputTable(impressions, "impressions")
    check_type("column", column, str, "the name of a column")
    if column in source.columns:
        raise UserError(
            f"the impressions have a column {column!r} already: name another one for the probabilities",
            code="column-exists",
        )
    user_columns = UserColumns()
    if users is not None:
        user_columns = UserColumns.of(users_table(users, encoder.schema), encoder.schema, source, users, needed=True)
        source.require(user_columns.group, "users= are found by it")
    require_fields(source, encoder.schema, user_columns.names)
    with scratch_folder() as scratch:
        chunks = Chunks(source, source.columns, scratch)
        yield source, _predicted(model, encoder, chunks, user_columns, column, progress)


def _predicted(
    model: ClickModel,
    encoder: FieldEncoder,
    chunks: Chunks,
    user_columns: UserColumns,
    column: str,
    progress: Progress,
) -> Iterator[pl.DataFrame]:
    """The chunks with their probabilities; one without rows where the table has none."""
    if chunks.rows == 0:
        yield chunks.empty.with_columns(pl.Series(column, [], pl.Float64))
    for start, frame in chunks:
        parts = []
        for low in range(0, len(frame), ROWS):
            rows = frame.slice(low, ROWS)
            last = start + low + len(rows) - 1
            what = chunks.name if chunks.rows <= ROWS else f"{chunks.name}, rows {start + low:,} to {last:,},"
            parts.append(predict_batch(model, transform(encoder, user_columns.joined(rows), what)))
            progress(start + low + len(rows), chunks.rows)
        yield frame.with_columns(pl.Series(column, np.concatenate(parts), pl.Float64))
