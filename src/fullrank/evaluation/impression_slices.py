"""Metrics of click probabilities by the values of a field, which an average over all impressions hides.

A row stands in the slice of its value, and of a bag in those of all its values. The `MOST` values with the most rows
have a slice each, the others share one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int64

from fullrank.core.errors import UserError, unknown
from fullrank.data.impressions.encoding import FieldEncoder, is_categorical
from fullrank.data.impressions.fields import AnyField, BagOf, Numeric
from fullrank.data.impressions.vocabulary import FIRST, MISSING, UNKNOWN, Vocabulary

MOST = 20
CHUNK = 1 << 16
"""Rows that are read at once."""


def slice_fields(encoder: FieldEncoder, names: Sequence[str]) -> list[AnyField]:
    """The fields of these names. Raises `UserError` for a name that is none, and where few rows share a value."""
    fields = {field.name: field for field in encoder.schema.fields}
    for name in names:
        if name not in fields:
            raise unknown("field", name, fields)
        field = fields[name]
        if not is_categorical(field) and not isinstance(field, BagOf):
            raise UserError(
                f"the field {name!r} is {'numbers' if isinstance(field, Numeric) else 'a sequence'}, of which few rows "
                "share a value: slices are of categorical fields, bags, and numbers with transform=bucket",
                code="field-without-slices",
            )
    return [fields[name] for name in names]


def slice_rows(store: Any, rows: Int64[np.ndarray, "N"], field: AnyField) -> Iterator[tuple[str, Int[np.ndarray, "n"]]]:
    """Each slice of a field: its label, and the places in `rows` of its rows; the slices of most rows first."""
    place, ids = _pairs(store, rows, field)
    counts = np.bincount(ids)
    ordered = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
    labels: set[str] = set()
    for value in ordered[:MOST].tolist():
        label = _label(store.encoder, field, value)
        label = f"{label} (id {value})" if label in labels else label  # a value may be called "(missing)"
        labels.add(label)
        yield label, place[ids == value]
    if len(ordered) > MOST:
        others = np.unique(place[np.isin(ids, ordered[MOST:])])
        yield f"({len(ordered) - MOST:,} other values)", others


def _pairs(
    store: Any, rows: Int64[np.ndarray, "N"], field: AnyField
) -> tuple[Int64[np.ndarray, "P"], Int64[np.ndarray, "P"]]:
    """Places of rows and the id of a value that each has; of a bag without values the missing one."""
    encoder: FieldEncoder = store.encoder
    places, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low in range(0, len(rows), CHUNK):
        batch = store.batch(rows[low : low + CHUNK])
        if not isinstance(field, BagOf):
            ids.append(batch.categorical[:, encoder.categorical.index(field)].numpy())
            places.append(np.arange(len(ids[-1])) + low)
            continue
        bag = batch.bags[encoder.multivalued.index(field)]
        table, lengths = bag.ids.numpy(), bag.lengths.numpy()
        row, column = np.nonzero(np.arange(table.shape[1]) < lengths[:, None])
        bare = np.flatnonzero(lengths == 0)
        pairs = np.stack([np.append(row, bare), np.append(table[row, column], np.full(len(bare), MISSING))])
        row, value = np.unique(pairs, axis=1)
        places.append(row + low)
        ids.append(value)
    return np.concatenate(places), np.concatenate(ids)


def _label(encoder: FieldEncoder, field: AnyField, value: int) -> str:
    if value in (MISSING, UNKNOWN):
        return "(missing)" if value == MISSING else "(unknown)"
    place = value - FIRST
    if isinstance(field, Numeric):
        edges = encoder.fitted[field.name]["edges"]
        low = f"{edges[place - 1]:g} <= " if place else ""
        return f"{low}{field.name}" + (f" < {edges[place]:g}" if place < len(edges) else "")
    lookup = encoder.lookup(field)
    return str(lookup.values[place]) if isinstance(lookup, Vocabulary) else f"hash bucket {place}"
