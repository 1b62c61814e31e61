"""New rows of a table as tensors, by what was fitted on a store of impressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fullrank.data.encoding import labels
from fullrank.data.fields import Schema
from fullrank.data.frames import Source
from fullrank.data.vocabulary import FIRST, Vocabulary, canonical

if TYPE_CHECKING:
    from fullrank.batch import Impressions
    from fullrank.data.impressions import ImpressionStore


def require_fields(source: Source, schema: Schema) -> None:
    """Raise `UserError` unless a table has the column of every field."""
    for field in schema.fields:
        source.require(field.name, "the model reads it: add it (a column of nulls says that it is missing)")


def fresh(store: ImpressionStore, frame: pl.DataFrame, what: str, *, truth: bool = True) -> Impressions:
    """The rows of a frame that has the columns of the fields, in its order. `what` names it in errors.

    Labels and groups are there where it has their columns without gaps, and where the `truth` is wanted at all.
    """
    from fullrank.data.tensors import tensors

    schema = store.schema
    encoded = store.encoder.encode(frame, what)
    known = groups = None
    if truth and schema.label in frame.columns and frame[schema.label].null_count() == 0:
        known = labels(frame[schema.label], schema.label_threshold, f"column {schema.label!r} of {what}")
    if truth and schema.group is not None and schema.group in frame.columns:
        groups = _groups(store, frame[schema.group])
    return tensors(
        encoded.categorical, encoded.numeric, encoded.bags, labels=known, groups=groups, rows=np.arange(len(frame))
    )  # fmt: skip


def _groups(store: ImpressionStore, column: pl.Series) -> np.ndarray | None:
    """Numbers of groups; a new one gets a number behind the known ones. None where one is missing."""
    group = canonical(column, f"column {column.name!r}").cast(pl.String)
    if group.null_count():
        return None
    known = Vocabulary(store.group_values.cast(pl.String)).ids(group) - FIRST
    new = known < 0
    fresh = group.filter(pl.Series(new)).rank("dense").to_numpy().astype(np.int32)
    known[new] = store.num_groups + fresh - 1
    return known
