"""Write a store of impressions: one pass fits the schema, a second encodes, each over chunks, all or nothing.

Rows are written in the order train, validation, test; inside a part they keep input order. Files grow at three places,
one for each part, whose beginnings the first pass has counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fullrank import __version__
from fullrank.core.files import write_json
from fullrank.core.jagged import Jagged
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.frames import Chunks
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.encoding import FieldEncoder, read_labels
from fullrank.data.impressions.fields import Schema
from fullrank.data.impressions.fitting import Fit
from fullrank.data.impressions.splits import PARTS, Cuts, GivenSplit, RandomSplit, TemporalSplit, TimeParts
from fullrank.data.impressions.store import FORMAT, FORMAT_VERSION, array_shapes, impressions_fingerprint
from fullrank.data.impressions.vocabulary import Vocabulary, canonical
from fullrank.data.values import seconds

Say = Callable[[str], None]


def write_impressions(
    folder: Path,
    scratch: Path,
    chunks: Chunks,
    schema: Schema,
    typed: bool,
    facts: dict[str, Any],
    say: Say,
) -> None:
    """Fill `folder` with the store of a table.

    `scratch`, which may lie in it, is removed in the end; `facts` go into the manifest.
    """
    row_parts = _RowParts(chunks, schema, typed, scratch)
    say(f"fit {chunks.rows:,} rows")
    fit = Fit(schema, typed)
    with open(scratch / "parts", "wb") as parts_file:
        for start, frame in chunks:
            part = row_parts.parts(start, frame)
            parts_file.write(part.tobytes())
            fit.add(start, frame, part, _where(chunks, start, frame))
    fit.check(chunks.name)
    encoder, names = fit.encoder(), fit.groups()
    groups = None if names is None else Vocabulary(names.cast(pl.String))
    say("encode and write")
    store = _Files(folder, encoder, fit)
    try:
        with open(scratch / "parts", "rb") as parts_file:
            for start, frame in chunks:
                part = np.frombuffer(parts_file.read(len(frame)), np.int8)
                store.add(part, _block(start, frame, schema, encoder, groups, typed, _where(chunks, start, frame)))
    finally:
        store.close()
    shutil.rmtree(scratch)
    _tables(folder, fit, names)
    _manifest(folder, schema, encoder, fit, facts)


def _block(
    start: int,
    frame: pl.DataFrame,
    schema: Schema,
    encoder: FieldEncoder,
    groups: Vocabulary | None,
    typed: bool,
    what: str,
) -> dict[str, Any]:
    """The arrays of some rows by file, in input order; those of a bag as a `Jagged`."""
    encoded = encoder.encode(frame, what)
    block: dict[str, Any] = {
        "labels": read_labels(frame[schema.label], schema.label_threshold, f"column {schema.label!r} of {what}"),
        "inputs": np.arange(start, start + len(frame), dtype=np.int64),
        "categorical": encoded.categorical,
        "numeric": encoded.numeric,
    }
    if groups is not None and schema.group is not None:
        block["groups"] = groups.ids(canonical(frame[schema.group], schema.group)) - np.int32(2)
    if schema.time is not None:
        block["times"] = seconds(frame[schema.time], schema.time, schema.time_unit, typed=typed)[0]
    return block | {f"bag{at}": bag for at, bag in enumerate(encoded.bags)}


class _RowParts:
    """The part of each row, chunk by chunk in input order, by the schema's rule."""

    def __init__(self, chunks: Chunks, schema: Schema, typed: bool, scratch: Path):
        self.chunks, self.schema, self.typed = chunks, schema, typed
        self.cut: TimeParts | None = None
        self.moments = schema.split.moments if isinstance(schema.split, TemporalSplit) else None
        if self.moments is not None:
            self.cut = TimeParts.at(self.moments)
        elif isinstance(schema.split, TemporalSplit):
            assert schema.time is not None
            cuts = Cuts(scratch / "times")
            for start, frame in chunks.of([schema.time]):
                cuts.add(self._times(start, frame), f"column {schema.time!r} of {chunks.name}")
            self.cut = cuts.borders(schema.split.shares)

    def parts(self, start: int, frame: pl.DataFrame) -> np.ndarray:
        split = self.schema.split
        if isinstance(split, GivenSplit):
            what = f"column {split.column!r} of {_where(self.chunks, start, frame)}"
            return split.parts(frame[split.column], what)
        if isinstance(split, RandomSplit):
            return split.parts(np.arange(start, start + len(frame)))
        assert self.cut is not None
        return self.cut.parts(self._times(start, frame))

    def _times(self, start: int, frame: pl.DataFrame) -> np.ndarray:
        name = self.schema.time
        assert name is not None
        what = f"column {name!r} of {_where(self.chunks, start, frame)}"
        whole, exact = seconds(frame[name], what, self.schema.time_unit, typed=self.typed)
        return exact if self.moments is None else whole


class _Files:
    """The arrays of a store while they are written."""

    def __init__(self, folder: Path, encoder: FieldEncoder, fit: Fit):
        rows = fit.rows
        wanted = array_shapes(
            int(rows.sum()),
            len(encoder.categorical),
            len(encoder.numeric),
            fit.schema,
            fit.lengths.sum(axis=1).tolist(),
        )
        self.files = {
            name: _Array(folder / f"{name}.npy", dtype, shape, rows)
            for name, (dtype, shape) in wanted.items()
            if not name.startswith("bag")
        }
        self.ends = np.cumsum(fit.lengths, axis=1) - fit.lengths
        """Values of each bag before the next row of each part."""
        for at in range(len(encoder.multivalued)):
            for name, sizes in ((f"bag{at}_ids", fit.lengths[at]), (f"bag{at}_offsets", rows)):
                self.files[name] = _Array(folder / f"{name}.npy", *wanted[name], sizes)
            self.files[f"bag{at}_offsets"].last(np.array([fit.lengths[at].sum()]))

    def add(self, part: np.ndarray, block: dict[str, Any]) -> None:
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
        for file in self.files.values():
            file.close()


class _Array:
    """A .npy file that grows at the beginning of each part. Written, not mapped: a full disk is an error, no signal."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...], sizes: np.ndarray):
        self.dtype = np.dtype(dtype)
        self.file = open(path, "wb")  # noqa: SIM115  # closed by `close`
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)
        width = self.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self.end = self.file.tell() + shape[0] * width
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.places = [self.file.tell() + int(start) * width for start in starts]

    def last(self, values: np.ndarray) -> None:
        """The values behind those of all parts."""
        self.file.seek(self.end - values.size * self.dtype.itemsize)
        self.file.write(np.ascontiguousarray(values, self.dtype).tobytes())

    def append(self, part: int, values: np.ndarray) -> None:
        self.file.seek(self.places[part])
        self.places[part] += self.file.write(np.ascontiguousarray(values, self.dtype).tobytes())

    def close(self) -> None:
        self.file.close()


def _tables(folder: Path, fit: Fit, groups: pl.Series | None) -> None:
    encoder_files.write_vocabulary(folder, fit.vocabularies())
    if groups is not None:
        write_table(pl.DataFrame({"value": groups}), folder / "groups.parquet")


def _manifest(folder: Path, schema: Schema, encoder: FieldEncoder, fit: Fit, facts: dict[str, Any]) -> None:
    files, state = manifests.describe_files(folder), encoder_files.encoder_state(encoder)
    tree = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "schema": state["schema"],
        "fields": [asdict(field) for field in encoder.fields],
        "fitted": state["fitted"],
        "counts": fit.counts(),
        **facts,
        "fingerprint": impressions_fingerprint(folder, files, schema),
        "content": manifests.content(files),
        "files": files,
    }
    write_json(folder / manifests.NAME, manifests.sealed(tree), indent=1, ensure_ascii=False)


def _where(chunks: Chunks, start: int, frame: pl.DataFrame) -> str:
    """The table in errors, with the rows where it is more than one chunk."""
    return chunks.name if chunks.rows == len(frame) else f"{chunks.name}, rows {start:,} to {start + len(frame) - 1:,},"
