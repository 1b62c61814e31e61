"""The arrays of a store of impressions: fingerprints, shapes on disk, and parts read as if they were of one store.

A fingerprint stands for what a ranker can see, whichever engine or file format it came from. That
of a store in one is a hash of its files. A store in parts is cut into `BLOCKS` stretches of input
rows, the same whatever the number of parts; whoever writes a part hashes its blocks, and the
fingerprint is made of the hashes of all blocks.

A store holds train, validation and test behind each other. Of a store in parts these are train of
the first part, train of the second, ..., then validation of each and test of each: rows in input
order inside a split, as in one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Int8, Int64

from fullrank.core.jagged import Jagged
from fullrank.core.parquet import read_parquet
from fullrank.core.parted import Flat, PartedArray
from fullrank.core.spec import spec_tree
from fullrank.data.impressions.schema import PARTS, Schema
from fullrank.data.manifest import damaged_file, incomplete_manifest, map_array
from fullrank.data.values import hash_ids

TABLES = ("vocabulary.parquet", "groups.parquet")
BLOCKS = 4096


def fingerprint(folder: Path, files: Iterable[str], schema: Schema, arrays: str) -> str:
    """SHA-256 of what a ranker can see: schema, arrays and vocabularies; neither engine nor file format enter.

    `arrays` is the text of `array_lines`, or for a store in parts that of
    `parts.bucket_lines` for its blocks.
    """
    # `spec_tree` leaves out settings that came later: a store is what it was before them
    state = hashlib.sha256((json.dumps(spec_tree(schema), indent=2) + "\n" + arrays).encode())
    for name in TABLES:
        if name in files:
            for column in read_parquet(folder / name, "the table"):
                hash_ids(state, column)
    return state.hexdigest()


def array_lines(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The arrays of a store with their hashes, a line each."""
    return "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files) if name.endswith(".npy"))


def block_edges(rows: int) -> Int64[np.ndarray, "edges"]:
    """Where each of the `BLOCKS` stretches of so many rows begins, and where the last ends."""
    return np.arange(BLOCKS + 1) * rows // BLOCKS


def part_edges(rows: int, count: int) -> Int64[np.ndarray, "edges"]:
    """Where each of `count` parts of these rows begins, and where the last ends: runs of whole blocks."""
    return np.asarray(block_edges(rows)[-(-np.arange(count + 1) * BLOCKS // count)])  # shares of blocks, rounded up


class BlockHashes:
    """The SHA-256 of each block, from one chunk of rows after another in input order."""

    def __init__(self, rows: int):
        self.edges = block_edges(rows)
        self._states: dict[int, dict[str, Any]] = {}

    def add(self, start: int, part: Int8[np.ndarray, "R"], block: Mapping[str, Any]) -> None:
        """Add rows from row `start` of the table on: each one's split, and arrays by file."""
        columns: dict[str, tuple[np.ndarray, np.ndarray | None]] = {"split": (part, None)}
        for name, values in block.items():
            if isinstance(values, Jagged):
                columns[f"{name}_lengths"] = values.lengths.astype("<i8"), None
                columns[f"{name}_ids"] = np.ascontiguousarray(values.flat(), "<i4"), values.offsets
            elif values.size:  # and one form of NaN
                plain = np.where(np.isnan(values), np.float32(np.nan), values) if values.dtype.kind == "f" else values
                columns[name] = np.ascontiguousarray(plain), None
        first, last = np.searchsorted(self.edges, [start, start + len(part) - 1], side="right") - 1
        for number in range(int(first), int(last) + 1):
            low = max(int(self.edges[number]) - start, 0)
            high = min(int(self.edges[number + 1]) - start, len(part))
            if low < high:
                state = self._states.setdefault(number, {})
                for name, (values, offsets) in columns.items():
                    a, b = (low, high) if offsets is None else (int(offsets[low]), int(offsets[high]))
                    state.setdefault(name, hashlib.sha256()).update(np.ascontiguousarray(values[a:b]).data)

    def done(self) -> dict[int, str]:
        """The hash of each block that has rows."""
        hashes = {}
        for number, state in self._states.items():
            lines = "".join(f"{name} {state[name].hexdigest()}\n" for name in sorted(state))
            hashes[number] = hashlib.sha256(lines.encode()).hexdigest()
        return hashes


def array_shapes(
    rows: int, categorical: int, numeric: int, schema: Schema, bag_values: Sequence[int]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of every array that a store of this schema has, in ``NAME.npy``."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"labels": ("|u1", (rows,)), "inputs": ("<i8", (rows,))}
    if categorical:
        shapes["categorical"] = ("<i4", (rows, categorical))
    if numeric:
        shapes["numeric"] = ("<f4", (rows, numeric))
    if schema.group is not None:
        shapes["groups"] = ("<i4", (rows,))
    if schema.time is not None:
        shapes["times"] = ("<i8", (rows,))
    for at, values in enumerate(bag_values):
        shapes[f"bag{at}_ids"] = ("<i4", (values,))
        shapes[f"bag{at}_offsets"] = ("<i8", (rows + 1,))
    return shapes


@dataclass(frozen=True)
class BagRows:
    """The ids of a bag, and where those of each row lie among the ids of its folder."""

    ids: Flat
    starts: PartedArray
    ends: PartedArray
    first: Int64[np.ndarray, "stretches"]
    """Ids before those of the folder, for each stretch of rows."""
    sizes: Int64[np.ndarray, "stretches"]
    """Ids of the folder."""


@dataclass(frozen=True)
class StoreArrays:
    """The mapped files of a store."""

    folders: tuple[Path, ...]
    """Its own, or those of its parts in order."""
    files: Mapping[str, Flat]
    """The arrays by name (`array_shapes`)."""
    bags: tuple[BagRows, ...]

    @classmethod
    def of_folder(cls, folder: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]], listed: Any) -> StoreArrays:
        """Map the arrays of a store in one folder; `listed` are the files in its manifest."""
        missing = [name for name in shapes if f"{name}.npy" not in listed]
        if missing:
            raise incomplete_manifest(folder, f"does not list {missing[0]}.npy")
        files = {name: map_array(folder / f"{name}.npy", dtype, shape) for name, (dtype, shape) in shapes.items()}
        bags = []
        for number in range(sum(name.endswith("_offsets") for name in files)):
            ids, offsets = files[f"bag{number}_ids"], files[f"bag{number}_offsets"]
            places = PartedArray([offsets[:-1]]), PartedArray([offsets[1:]])
            bags.append(BagRows(ids, *places, np.zeros(1, np.int64), np.array([len(ids)])))
        return cls((folder,), files, tuple(bags))

    @classmethod
    def behind_each_other(cls, parts: Sequence[StoreArrays], rows: Int64[np.ndarray, "parts 3"]) -> StoreArrays:
        """Join the arrays of parts; `rows` are each part's train, validation and test rows."""
        ends = np.cumsum(rows, axis=1)
        stretches = [
            (number, slice(int(ends[number, split] - rows[number, split]), int(ends[number, split])))
            for split in range(len(PARTS))
            for number in range(len(parts))
        ]
        files: dict[str, Flat] = {}
        for name in parts[0].files:
            if not name.startswith("bag"):
                files[name] = cast(Flat, PartedArray([parts[number].files[name][at] for number, at in stretches]))
        bags = []
        for number in range(len(parts[0].bags)):
            part_bags = [part.bags[number] for part in parts]
            files[f"bag{number}_ids"] = ids = cast(Flat, PartedArray([bag.ids for bag in part_bags]))
            starts, stops = (
                PartedArray([getattr(part_bags[at], name).parts[0][rows] for at, rows in stretches])
                for name in ("starts", "ends")
            )
            sizes = np.array([len(bag.ids) for bag in part_bags], np.int64)
            first = np.cumsum(sizes) - sizes
            bags.append(BagRows(ids, starts, stops, *(np.tile(each, len(PARTS)) for each in (first, sizes))))
        return cls(tuple(part.folders[0] for part in parts), files, tuple(bags))

    def folder_of(self, row: int) -> Path:
        """The folder that holds a row."""
        if len(self.folders) == 1:
            return self.folders[0]
        stretch = int(cast(PartedArray, self.files["labels"]).owners(np.array([row]))[0])
        return self.folders[stretch % len(self.folders)]

    def bag(self, number: int, rows: Int64[np.ndarray, "n"]) -> Jagged:
        """The ids of some rows of a bag, uncopied. Raises `UserError` for wrong offsets."""
        bag = self.bags[number]
        starts, ends, owner = bag.starts.take(rows), bag.ends.take(rows), bag.starts.owners(rows)
        most = bag.sizes[owner]
        wrong = (starts < 0) | (ends < starts) | (ends > most)
        if wrong.any():
            reason = f"its offsets {starts.min()} .. {ends.max()} must rise from 0 to the {most.max()} values"
            raise damaged_file(self.folder_of(int(rows[wrong.argmax()])) / f"bag{number}_offsets.npy", reason)
        return Jagged(bag.ids, starts + bag.first[owner], ends + bag.first[owner])
