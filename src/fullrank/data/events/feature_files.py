"""The files of features: beside the events of a store, and beside the items of a run.

    event_categorical.npy, ...    arrays [E, F], [E, X], [E, Y] beside items.npy (`ARRAYS`), of events
    request_categorical.npy, ...  and of requests, for the kinds of fields that there are
    lists.parquet                 the ids of the lists of events, by field and number; list 0 is empty
    vocabulary.parquet            the values of each field, in the order of their ids
    features.json                 in a run: the schema and the fitted statistics, which a store has in
                                  its manifest, as `features`

No file is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, write_array
from fullrank.core.jagged import Jagged
from fullrank.core.parted import Flat, stretches
from fullrank.core.readers import read_json
from fullrank.core.tables import write_table
from fullrank.data.events.features import FeatureEncoder, Features, encoder_of
from fullrank.data.features import FeatureTable
from fullrank.data.impressions.encoder_files import (
    VOCABULARY,
    encoder_state,
    read_columns,
    restore_encoder,
    vocabularies,
    write_vocabulary,
)
from fullrank.data.manifest import AGAIN, RUN_AGAIN, damaged_file

KEY = "features"
"""The key of the fitted features in a store's manifest."""
NAME = "features.json"
"""The file of the fitted features in a run."""
LISTS = "lists.parquet"
OfEvents = Literal["event", "request"]
OF_EVENTS: tuple[OfEvents, ...] = ("event", "request")
"""The roles whose features lie beside the events."""
ARRAYS: Mapping[str, str] = {
    f"{role}_{kind}": dtype
    for role in OF_EVENTS
    for kind, dtype in (("categorical", "<i4"), ("numeric", "<f4"), ("lists", "<i4"))
}
"""Name -> dtype of every array; the file is ``NAME.npy``."""
FILES = (LISTS, VOCABULARY, *(f"{name}.npy" for name in ARRAYS))
_LISTS: dict[str, Any] = {"field": pl.String, "list": pl.Int32, "ids": pl.List(pl.Int32)}


@dataclass(frozen=True)
class StoredFeatures:
    """The fitted features of a store, and their encoded rows beside its events."""

    encoder: FeatureEncoder
    tables: Mapping[OfEvents, FeatureTable]
    """Rows beside the events."""

    def take(self, rows: Any) -> StoredFeatures:
        """Select events, by a mask."""
        return StoredFeatures(self.encoder, {role: table.select(rows) for role, table in self.tables.items()})

    def write(self, folder: Path) -> JsonObject:
        """Write the files, and return the entry of the manifest."""
        lists = [pl.DataFrame(schema=_LISTS)]
        for role, table in self.tables.items():
            for kind in ("categorical", "numeric", "lists"):
                array = np.ascontiguousarray(getattr(table, kind), ARRAYS[f"{role}_{kind}"])
                if array.shape[1]:
                    write_array(folder / f"{role}_{kind}.npy", array)
            for number, field in enumerate(encoder_of(self.encoder, role).multivalued):
                lists.append(_used(field.name, table.bags[number], np.asarray(table.lists[:, number])))
        write_table(pl.concat(lists), folder / LISTS)
        write_vocabulary(folder, vocabularies(self.encoder))
        return encoder_state(self.encoder)


def _used(field: str, bag: Jagged, lists: np.ndarray) -> pl.DataFrame:
    """The lists of a bag that occur in `lists`, by their numbers."""
    import pyarrow as pa

    numbers = np.unique(lists)
    numbers = numbers[numbers > 0]
    used = bag.take(numbers)
    ids = pa.LargeListArray.from_arrays(used.offsets, pa.array(np.ascontiguousarray(used.flat(), np.int32)))
    return pl.DataFrame({"field": [field] * len(numbers), "list": numbers, "ids": pl.Series(ids)}, schema=_LISTS)


def array_widths(encoder: FeatureEncoder) -> dict[str, int]:
    """The number of columns of each array that a store has, by name."""
    widths = {}
    for role in OF_EVENTS:
        part = encoder_of(encoder, role)
        for kind, fields in (("categorical", part.categorical), ("numeric", part.numeric), ("lists", part.multivalued)):
            if fields:
                widths[f"{role}_{kind}"] = len(fields)
    return widths


def read_encoder(path: Path, state: JsonObject, again: str = AGAIN) -> FeatureEncoder:
    """The fitted features of a `state`, as the JSON file `path` holds it; the
    vocabulary lies beside that file."""
    return restore_encoder(path, state, again, Features)


def encoder_beside(folder: Path) -> FeatureEncoder | None:
    """The fitted features of a run's folder; None where it has none."""
    path = folder / NAME
    return read_encoder(path, read_json(path), RUN_AGAIN) if path.is_file() else None


@lru_cache(maxsize=16)  # compares whole vocabularies, and each request on a store asks
def same_encoding(first: FeatureEncoder | None, second: FeatureEncoder | None) -> bool:
    """Whether two encoders give the same ids and numbers."""
    if first is None or second is None:
        return first is second
    if encoder_state(first) != encoder_state(second):
        return False
    ours, theirs = vocabularies(first), vocabularies(second)
    return all(ours[name].equals(theirs[name]) for name in ours)


def require_same_encoding(path: str, theirs: FeatureEncoder | None, ours: FeatureEncoder | None) -> None:
    """Raise `UserError` where the store at `path` encodes features as the model's items do not."""
    if ours is not None and not same_encoding(theirs, ours):
        raise UserError(
            f"{path} has other features than the model's items know, or fitted them on other data: give the store that "
            "it was trained on, or the events as a table",
            code="other-features",
        )


def read_tables(
    folders: Sequence[Path], arrays: Mapping[str, Flat | None], encoder: FeatureEncoder, events: int
) -> dict[OfEvents, FeatureTable]:
    """The features beside the events of a store, whose arrays and lists lie in these folders.

    Raises `UserError` for ids and numbers that no encoder gives.
    """
    tables: dict[OfEvents, FeatureTable] = {}
    lists = pl.concat([read_columns(folder / LISTS, _LISTS) for folder in folders])
    lists = lists.unique(["field", "list"], keep="first", maintain_order=True)  # several parts have the same ones
    for role in OF_EVENTS:
        part = encoder_of(encoder, role)
        if not part.fields:
            continue
        size = {info.name: info.size for info in part.fields}
        bags = [_bag(folders[0] / LISTS, lists, field.name, size[field.name]) for field in part.multivalued]
        limits = {"categorical": [size[field.name] for field in part.categorical], "lists": list(map(len, bags))}
        columns: dict[str, Any] = {}
        for kind in ("categorical", "numeric", "lists"):
            path = folders[0] / f"{role}_{kind}.npy"
            array = arrays.get(path.stem)
            columns[kind] = np.zeros((events, 0), ARRAYS[path.stem]) if array is None else array
            _check(columns[kind], limits.get(kind), path)
        tables[role] = FeatureTable(**columns, bags=tuple(bags))
    return tables


def _check(array: Flat, sizes: list[int] | None, path: Path) -> None:
    """Raise `UserError` unless ids lie below the size of their column; numbers (`sizes`
    None) are finite or missing."""
    if not array.shape[1]:
        return
    for block in stretches(array):
        wrong = np.isinf(block) if sizes is None else (block < 0) | (block >= np.array(sizes))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            allowed = "finite numbers" if sizes is None else f"0 .. {sizes[column] - 1}"
            raise damaged_file(path, f"column {column} holds {block[row, column]}, allowed are {allowed}")


def _bag(path: Path, lists: pl.DataFrame, field: str, size: int) -> Jagged:
    """The ids of each list of a field by its number. Raises `UserError` for
    numbers below 1 and unknown ids."""
    rows = lists.filter(pl.col("field") == field)
    lengths, ids, numbers = rows["ids"].list.len().fill_null(0), rows["ids"].explode(), rows["list"].fill_null(0)
    empty = ids.null_count() or (lengths < 1).any() or (numbers < 1).any()
    if empty or not ids.is_between(0, size - 1).all():
        raise damaged_file(path, f"the lists of {field!r} hold numbers or ids that it has not")
    at = numbers.to_numpy()
    starts, ends = np.zeros((2, int(at.max(initial=0)) + 1), np.int64)  # numbers that no row has are empty lists
    packed = Jagged.from_lengths(ids.to_numpy(), lengths.to_numpy().astype(np.int64))
    starts[at], ends[at] = packed.starts, packed.ends
    return Jagged(packed.values, starts, ends)
