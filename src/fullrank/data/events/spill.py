"""Events on their way to the parts of a store: columns that grow in files, one folder for each part.

A table is read in chunks, and each chunk's events go to the parts of their users in input order. What is held in memory
is `HELD` bytes, and one part when it is read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.files import NotWritten, reason_of, write_array
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import write_table
from fullrank.data.events.table import Events

HELD = 128 << 20
"""Bytes that wait in memory before they are written."""
SUFFIX = ".column"
TEXT = "user_text"
"""The file of the bytes of user ids that are text; their lengths stand in `user`."""


class Spill:
    """Columns of P parts, appended to and read back whole."""

    def __init__(self, folder: Path, parts: int):
        self.folder, self.parts = folder, parts
        self._waiting: dict[tuple[int, str], list[np.ndarray]] = {}
        self._held = 0
        self.columns: dict[str, str] = {}
        """The dtype of each column, once there are events."""

    def add(self, part: Int[np.ndarray, "n"], users: pl.Series, columns: Mapping[str, np.ndarray]) -> None:
        """Some events: the part of each, its user's id, and its other columns."""
        order = np.argsort(part, kind="stable")
        edges = np.searchsorted(part[order], np.arange(self.parts + 1))
        text = users.dtype == pl.String
        sorted_users = users[order]
        numbers = sorted_users.str.len_bytes().to_numpy() if text else sorted_users.to_numpy()
        own = {"user": numbers.astype(np.uint32) if text else numbers, **{n: c[order] for n, c in columns.items()}}
        self.columns = {name: values.dtype.str for name, values in own.items()}
        for number in np.flatnonzero(np.diff(edges)).tolist():
            low, high = int(edges[number]), int(edges[number + 1])
            for name, values in own.items():
                self._hold(number, name, values[low:high])
            if text:
                joined = "".join(sorted_users[low:high].to_list()).encode()
                self._hold(number, TEXT, np.frombuffer(joined, np.uint8))
        if self._held > HELD:
            self.flush()

    def flush(self) -> None:
        """Write what waits. Raises `UserError` where the disk refuses."""
        try:
            for (part, name), waiting in self._waiting.items():
                folder = self.folder / f"{part:05}"
                folder.mkdir(parents=True, exist_ok=True)
                with open(folder / f"{name}{SUFFIX}", "ab") as file:
                    for values in waiting:
                        file.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise NotWritten(self.folder, reason_of(error), folder=True) from error
        self._waiting, self._held = {}, 0

    def read(self, part: int, columns: Mapping[str, str], *, text: bool) -> tuple[pl.Series, dict[str, np.ndarray]]:
        """The user ids and the other `columns` (name -> dtype) of a part's events, in input order; `text`: of ids."""
        folder = self.folder / f"{part:05}"

        def column(name: str, dtype: str) -> np.ndarray:
            path = folder / f"{name}{SUFFIX}"
            return np.fromfile(path, np.dtype(dtype)) if path.exists() else np.empty(0, np.dtype(dtype))

        found = {name: column(name, dtype) for name, dtype in columns.items()}
        users = found.pop("user")
        if not text:
            return pl.Series("user_id", users), found
        return _texts(users.astype(np.int64), column(TEXT, "u1")), found

    def _hold(self, part: int, name: str, values: np.ndarray) -> None:
        self._waiting.setdefault((part, name), []).append(values)
        self._held += values.nbytes


def _texts(lengths: np.ndarray, letters: np.ndarray) -> pl.Series:
    """Text of its bytes behind each other: cut where each ends."""
    ends = np.cumsum(lengths)
    whole = letters.tobytes()
    starts = (ends - lengths).tolist()
    return pl.Series("user_id", [whole[a:b].decode() for a, b in zip(starts, ends.tolist(), strict=True)])


def save_events(folder: Path, events: Events) -> None:
    """Write events of one part: their arrays, and the ids of its users."""
    folder.mkdir(exist_ok=True)
    for name in ("user", "item", "time", "weight", "type"):
        values = getattr(events, name)
        if values is not None:
            write_array(folder / f"{name}.npy", values)
    write_table(pl.DataFrame({"user_id": events.user_ids}), folder / "users.parquet")


def load_events(folder: Path, item_ids: pl.Series, type_names: tuple[str, ...]) -> Events:
    """What `save_events` wrote; arrays are mapped."""
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    users = read_parquet(folder / "users.parquet", "the users")["user_id"]
    return Events(**arrays, user_ids=users, item_ids=item_ids, type_names=type_names)
