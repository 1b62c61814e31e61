"""Write a store of impressions, encoded in a pass over chunks behind the one that fits the schema.

Rows are written in the order train, validation, test; inside a part they keep input order. Files
grow at three places, one for each part, whose beginnings the first pass has counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged, offsets_of
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.arrays import array_lines, array_shapes, fingerprint
from fullrank.data.impressions.encoding import FieldEncoder, read_labels
from fullrank.data.impressions.fitting import Fit, RowCounts
from fullrank.data.impressions.schema import PARTS, GivenSplit, RandomSplit, Schema, TemporalSplit, TimeParts
from fullrank.data.impressions.store import FORMS
from fullrank.data.impressions.vocabulary import FIRST, Vocabulary, canonical
from fullrank.data.values import seconds

Say = Callable[[str], None]
Block = dict[str, Any]
"""The arrays of some rows by file; those of a bag as a `Jagged`."""


@dataclass(frozen=True)
class RowCoder:
    """Rows of a table as the arrays of a store."""

    encoder: FieldEncoder[Schema]
    groups: pl.Series | None
    typed: bool

    @cached_property
    def _groups(self) -> Vocabulary | None:
        return None if self.groups is None else Vocabulary(self.groups.cast(pl.String))

    def block(self, start: int, frame: pl.DataFrame, what: str) -> Block:
        """The arrays of some rows by file, in input order; those of a bag as a `Jagged`."""
        schema, encoded = self.encoder.schema, self.encoder.encode(frame, what)
        block: Block = {
            "labels": read_labels(frame[schema.label], schema.label_threshold, what),
            "inputs": np.arange(start, start + len(frame), dtype=np.int64),
            "categorical": encoded.categorical,
            "numeric": encoded.numeric,
        }
        if self._groups is not None and schema.group is not None:
            block["groups"] = self._groups.ids(canonical(frame[schema.group], what)) - np.int32(FIRST)
        if schema.time is not None:
            block["times"] = seconds(frame[schema.time], what, schema.time_unit, typed=self.typed)[0]
        return block | {f"bag{at}": bag for at, bag in enumerate(encoded.bags)}


@dataclass(frozen=True)
class RowSplit:
    """The part of each row by the schema's rule; chunks come once, in input order."""

    schema: Schema
    typed: bool
    cut: TimeParts | None
    """The borders of the temporal split; None for the others."""

    def parts(self, start: int, frame: pl.DataFrame, what: str) -> np.ndarray:
        """The part of each row: int8 [R]."""
        split = self.schema.split
        if isinstance(split, GivenSplit):
            return split.parts(frame[split.column], what)
        if isinstance(split, RandomSplit):
            return split.parts(np.arange(start, start + len(frame)))
        assert self.cut is not None
        return self.cut.parts(split_times(self.schema, self.typed, frame, what))


def split_times(schema: Schema, typed: bool, frame: pl.DataFrame, what: str) -> np.ndarray:
    """Times as the temporal split compares them: in full, or in seconds with moments."""
    assert isinstance(schema.split, TemporalSplit) and schema.time is not None
    whole, exact = seconds(frame[schema.time], what, schema.time_unit, typed=typed)
    return exact if schema.split.moments is None else whole


class StoreFiles:
    """The arrays of a store while they are written."""

    def __init__(self, folder: Path, encoder: FieldEncoder[Schema], counted: RowCounts):
        rows = counted.rows
        wanted = array_shapes(
            int(rows.sum()),
            len(encoder.categorical),
            len(encoder.numeric),
            encoder.schema,
            counted.lengths.sum(axis=1).tolist(),
        )
        bags = {f"bag{at}_ids": lengths for at, lengths in enumerate(counted.lengths)}
        self.files = {
            name: _Array(folder / f"{name}.npy", dtype, shape, bags.get(name, rows))
            for name, (dtype, shape) in wanted.items()
        }
        self.ends = np.cumsum(counted.lengths, axis=1) - counted.lengths
        """Values of each bag before the next row of each part."""
        for at, lengths in enumerate(counted.lengths):
            self.files[f"bag{at}_offsets"].last(np.array([lengths.sum()]))

    def add(self, part: np.ndarray, block: Block) -> None:
        """Some rows: each goes behind the earlier rows of its part."""
        for number in range(len(PARTS)):
            chosen = part == number
            for name, values in block.items():
                if name in self.files:
                    self.files[name].append(number, values[chosen])
            for at in range(len(self.ends)):
                bag: Jagged = block[f"bag{at}"].take(chosen)
                self.files[f"bag{at}_ids"].append(number, bag.flat())
                offsets = self.ends[at, number] + bag.offsets
                self.files[f"bag{at}_offsets"].append(number, offsets[:-1])
                self.ends[at, number] = offsets[-1]

    def close(self) -> None:
        for array in self.files.values():
            array.file.close()


class _Array:
    """A .npy file that grows at three positions. Not mapped: a full disk is an error, no signal."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...], sizes: np.ndarray):
        self.dtype = np.dtype(dtype)
        self.file = open(path, "wb")  # closed by `StoreFiles.close`
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)
        width = self.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self.end = self.file.tell() + shape[0] * width
        self.positions = [self.file.tell() + start * width for start in offsets_of(sizes)[:-1].tolist()]

    def last(self, values: np.ndarray) -> None:
        """The values behind those of all parts."""
        self.file.seek(self.end - values.size * self.dtype.itemsize)
        self.file.write(np.ascontiguousarray(values, self.dtype).tobytes())

    def append(self, part: int, values: np.ndarray) -> None:
        """Values of the next rows of a part of the split."""
        self.file.seek(self.positions[part])
        self.positions[part] += self.file.write(np.ascontiguousarray(values, self.dtype).tobytes())


def write_tables(folder: Path, fit: Fit, groups: pl.Series | None) -> None:
    """Write the vocabularies of the fields, and the groups."""
    encoder_files.write_vocabulary(folder, fit.vocabularies)
    if groups is not None:
        write_table(pl.DataFrame({"value": groups}), folder / "groups.parquet")


def write_store_manifest(folder: Path, encoder: FieldEncoder[Schema], counts: JsonObject, facts: JsonObject) -> None:
    """Write the manifest of a folder that holds all else."""
    files, state = manifests.describe_files(folder), encoder_files.encoder_state(encoder)
    tree = {
        "schema": state["schema"],
        "fields": [asdict(field) for field in encoder.fields],
        "fitted": state["fitted"],
        "counts": counts,
        **facts,
        "fingerprint": fingerprint(folder, files, encoder.schema, array_lines(files)),
    }
    manifests.write_manifest(folder, FORMS[0], tree, files)
