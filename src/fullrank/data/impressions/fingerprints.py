"""Fingerprints of stores of impressions: what a ranker can see, whichever engine or file format it came from.

That of a store in one is a hash of its files. A store in parts is cut into `BLOCKS` stretches of input rows, the same
whatever the number of parts; whoever writes a part hashes its blocks, and the fingerprint is made of all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64

from fullrank.core.jagged import Jagged
from fullrank.core.parquet import read_parquet
from fullrank.core.spec import spec_tree
from fullrank.data.impressions.fields import Schema
from fullrank.data.values import hash_ids

TABLES = ("vocabulary.parquet", "groups.parquet")
BLOCKS = 4096


def fingerprint(folder: Path, files: Iterable[str], schema: Schema, arrays: str) -> str:
    """SHA-256 of what a ranker can see: schema, arrays and vocabularies; neither engine nor file format enter.

    `arrays` are `array_lines`, of a store in parts `parts.bucket_lines` of its blocks.
    """
    # without later settings: a store is what it was before them
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
    """Where each of `count` parts of so many rows begins, and where the last ends: parts are blocks in a row."""
    return np.asarray(block_edges(rows)[-(-np.arange(count + 1) * BLOCKS // count)])


class BlockHashes:
    """The SHA-256 of each block, from one chunk of rows after another in input order."""

    def __init__(self, rows: int):
        self.edges = block_edges(rows)
        self._states: dict[int, dict[str, Any]] = {}

    def add(self, start: int, part: Int8[np.ndarray, "R"], block: Mapping[str, Any]) -> None:
        """Some rows from row `start` of the table on: the part of the split of each, and their arrays by file."""
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
        found = {}
        for number, state in self._states.items():
            lines = "".join(f"{name} {state[name].hexdigest()}\n" for name in sorted(state))
            found[number] = hashlib.sha256(lines.encode()).hexdigest()
        return found
