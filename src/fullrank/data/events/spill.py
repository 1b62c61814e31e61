"""Events on their way to the parts of a store: columns that grow in files, one folder for each part.

A table is read in chunks, and each chunk's events go to the parts of their users in input order. What is held in memory
is `HELD` bytes at most, and one part when it is read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int, Int64, UInt8

from fullrank.core.files import NotWritten, put_array, reason_of
from fullrank.core.jagged import offsets_of, stable_order
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import write_table
from fullrank.data.events.table import Events
from fullrank.data.values import joined, take

HELD, EACH = 128 << 20, 1 << 18
"""Bytes that wait in memory before they are written: at most, and for each file that is opened for it."""
SUFFIX = ".column"
TEXT = "user_text"
"""The file of the bytes of user ids that are text; their lengths stand in `user`."""


ByPart = dict[str, tuple[np.ndarray, Int64[np.ndarray, "P1"]]]
"""Some events in order of their parts: by file the values, where those of each part begin, and where the last ends."""


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
        self.hold(self.by_part(part, users, columns))

    def by_part(self, part: Int[np.ndarray, "n"], users: pl.Series, columns: Mapping[str, np.ndarray]) -> ByPart:
        """The same events in order of their parts, for `hold`; any thread may do it."""
        order = stable_order(part)
        edges = offsets_of(np.bincount(part, minlength=self.parts))
        users = take(users, order, users.name)
        own = {name: (values[order], edges) for name, values in columns.items()}
        if users.dtype != pl.String:
            return {"user": (users.to_numpy(), edges), **own}
        lengths = users.str.len_bytes().to_numpy().astype(np.uint32)
        letters = np.frombuffer(joined(users), np.uint8), offsets_of(lengths)[edges]
        return {"user": (lengths, edges), **own, TEXT: letters}

    def hold(self, events: ByPart) -> None:
        """Have events wait behind those of each part that came before. Raises `UserError` as `flush`."""
        self.columns = {name: values.dtype.str for name, (values, _) in events.items() if name != TEXT}
        for name, (values, edges) in events.items():
            places = edges.tolist()
            for number in np.flatnonzero(np.diff(edges)).tolist():
                self._waiting.setdefault((number, name), []).append(values[places[number] : places[number + 1]])
            self._held += values.nbytes
        if self._held > min(HELD, EACH * len(self._waiting)):
            self.flush()

    def flush(self) -> None:
        """Write what waits. Raises `UserError` where the disk refuses."""
        try:
            for (part, name), waiting in self._waiting.items():
                folder = self.folder / f"{part:05}"
                folder.mkdir(parents=True, exist_ok=True)
                with open(folder / f"{name}{SUFFIX}", "ab") as file:
                    file.write(np.concatenate(waiting).data)
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


def _texts(lengths: Int64[np.ndarray, "n"], letters: UInt8[np.ndarray, "m"]) -> pl.Series:
    """Text of its bytes behind each other: cut where each ends."""
    import pyarrow as pa

    buffers = [pa.py_buffer(offsets_of(lengths)), pa.py_buffer(letters)]
    return pl.Series("user_id", pa.LargeStringArray.from_buffers(len(lengths), *buffers))


def largest_part(folder: Path) -> int:
    """Bytes of the largest part of those that lie in a folder."""
    return max((sum(file.stat().st_size for file in part.glob(f"*{SUFFIX}")) for part in folder.iterdir()), default=0)


def save_events(folder: Path, events: Events) -> None:
    """Write events of one part: their arrays, and the ids of its users.

    Whoever is killed reads the part anew, so nothing is flushed to disk. Files that are there may still be mapped: they
    are replaced, not written over.
    """
    folder.mkdir(exist_ok=True)
    for name in ("user", "item", "time", "weight", "type"):
        values = getattr(events, name)
        if values is not None:
            path = folder / f"{name}.npy"
            path.unlink(missing_ok=True)
            with open(path, "wb") as file:
                put_array(file, values)
    write_table(pl.DataFrame({"user_id": events.user_ids}), folder / "users.parquet")


def load_events(folder: Path, item_ids: pl.Series, type_names: tuple[str, ...]) -> Events:
    """What `save_events` wrote; arrays are mapped."""
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    users = read_parquet(folder / "users.parquet", "the users")["user_id"]
    return Events(**arrays, user_ids=users, item_ids=item_ids, type_names=type_names)
