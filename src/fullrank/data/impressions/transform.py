"""New rows of a table as tensors, by a fitted encoder: that of a store of impressions, or of a trained run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from jaxtyping import Int32, UInt8

from fullrank.data.frames import Source
from fullrank.data.impressions import encoding
from fullrank.data.impressions.encoding import Encoder
from fullrank.data.impressions.fields import Schema
from fullrank.data.impressions.vocabulary import FIRST, Vocabulary, canonical

if TYPE_CHECKING:
    from fullrank.data.batch import Impressions


def require_fields(source: Source, schema: Schema) -> None:
    """Raise `UserError` unless a table has the column of every field."""
    for field in schema.fields:
        source.require(field.name, "the model reads it: add it (a column of nulls says that it is missing)")


def fresh(
    encoder: Encoder,
    frame: pl.DataFrame,
    what: str,
    *,
    labels: UInt8[np.ndarray, "R"] | None = None,
    groups: Int32[np.ndarray, "R"] | None = None,
) -> Impressions:
    """The rows of a frame that has the columns of the fields, in its order. `what` names it in errors."""
    from fullrank.data.impressions.tensors import tensors

    encoded = encoder.encode(frame, what)
    return tensors(
        encoded.categorical, encoded.numeric, encoded.bags, labels=labels, groups=groups, rows=np.arange(len(frame))
    )  # fmt: skip


def known_labels(schema: Schema, frame: pl.DataFrame, what: str) -> UInt8[np.ndarray, "R"] | None:
    """The labels of a frame; None where it has no such column, or one with gaps."""
    if schema.label not in frame.columns or frame[schema.label].null_count():
        return None
    return encoding.labels(frame[schema.label], schema.label_threshold, f"column {schema.label!r} of {what}")


def known_groups(column: pl.Series, known: pl.Series) -> Int32[np.ndarray, "R"] | None:
    """Groups by their place among the `known` ones; new ones get numbers behind them. None where one is missing."""
    group = canonical(column, f"column {column.name!r}").cast(pl.String)
    if group.null_count():
        return None
    found = Vocabulary(known.cast(pl.String)).ids(group) - FIRST
    new = found < 0
    found[new] = len(known) + group.filter(pl.Series(new)).rank("dense").to_numpy().astype(np.int32) - 1
    return found
