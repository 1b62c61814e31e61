"""How much memory the preparation of a file of events takes in one, said before it is taken; in parts where too much.

A file of 2 MB can hold 200 million rows, since compression writes equal rows once. What would take more than is free,
or more than `MOST` and a thousand times its file, is read in pieces and becomes a store in parts (`stream.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.log import logger
from fullrank.core.memory import available_bytes, gibibytes
from fullrank.data.events.parts import MOST_PARTS
from fullrank.data.events.spill import SUFFIX
from fullrank.data.events.stream import identity_of
from fullrank.data.frames import InputTable

log = logger(__name__)

ROW_OF_TEXT, ROW = 95, 65
"""Bytes at the peak for each event of a text file and of others, measured on five million."""
SAID = 2**30
"""Bytes from which on the estimate is said."""
MOST, MOST_RATIO = 2**32, 1000
SHORTEST = 4
"""Bytes of the shortest row of a text file."""
INFLATED = 1032
"""Times its size that a .gz file can hold."""


@dataclass(frozen=True)
class Fitting:
    """In how many parts a table has to be prepared, and the bytes that one of them may take."""

    parts: int
    room: int

    def require(self, folder: Path) -> None:
        """Raise `UserError` where a part was spilled into `folder` that takes more: a user lies in one part."""
        for items in folder.glob(f"*/item{SUFFIX}"):
            events = items.stat().st_size // 4
            if events * ROW > self.room:
                raise UserError(
                    f"{events:,} events lie in one of {self.parts:,} parts, since the events of a user do: it takes "
                    f"about {gibibytes(events * ROW)} of memory and may take {gibibytes(self.room)}. Is there an id "
                    "for all who have none? drop its rows",
                    code="too-large-for-memory",
                )


def parts_to_fit(source: InputTable, *, users: bool) -> Fitting | None:
    """How a table on disk has to be prepared in parts; None where it fits into memory in one.

    Rows are counted where there may be many. With a table of `users`, which no store in parts has, raises `UserError`.
    """
    native = source.frame.to_native()
    if source.path is None or not isinstance(native, pl.LazyFrame):
        return None
    row, size = (ROW if source.typed else ROW_OF_TEXT), sum(one[1] for one in identity_of(source.path))
    text = not (source.sliced or source.path.is_dir())
    if text and size * (INFLATED if source.path.suffix == ".gz" else 1) // SHORTEST * row < SAID:
        return None
    rows = int(source.attempt(lambda: native.select(pl.len()).collect(engine="streaming").item()))
    needed, free = rows * row, available_bytes()
    room = max(MOST, MOST_RATIO * size) if free is None else min(free, max(MOST, MOST_RATIO * size))
    if needed < min(SAID, room):
        return None
    said = f"{source.name} has {rows:,} rows; to prepare them in one takes about {gibibytes(needed)} of memory"
    if needed <= room:
        log.info(said)
        return None
    count = min(max(2, -(-needed // SAID)), MOST_PARTS)
    said += f", and {gibibytes(room)} are {'free' if room == free else 'the most for a file of that size'}"
    if users:
        raise UserError(
            f"{said}; a store in parts takes less and keeps no table of users: leave out users",
            code="too-large-for-memory",
        )
    log.info(f"{said}: it is read in pieces, to a store in {count:,} parts")
    return Fitting(count, room)
