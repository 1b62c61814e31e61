"""Histories as a caller has them (external ids; a mapping, lists or a DataFrame), read into flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.data import values
from fullrank.data.catalog import Catalog
from fullrank.errors import UserError, nearest

Histories = Mapping[Any, Sequence[Any]] | Sequence[Sequence[Any]] | Any
"""{user: items}, a list of item lists (users are then 0, 1, ...), or a DataFrame with user and item columns."""
STEP = 86_400
"""Seconds between events whose times are not known, where those are taken as even."""


@dataclass(frozen=True)
class Asked:
    """The histories items[starts[u]:ends[u]] of the items that the catalogue knows, by time."""

    users: pl.Series
    """External ids."""
    items: Int[np.ndarray, "E"]
    starts: Int[np.ndarray, "U"]
    ends: Int[np.ndarray, "U"]
    times: Int[np.ndarray, "E"] | None = None
    named: bool = True
    """Whether the caller named the users; else they are numbered."""
    give: Callable[[pl.DataFrame], Any] = lambda frame: frame
    """A polars frame as the caller's type of DataFrame."""

    def __len__(self) -> int:
        return len(self.users)

    def part(self, low: int, high: int) -> Asked:
        """The users low .. high - 1."""
        some = slice(low, high)
        return replace(self, users=self.users[some], starts=self.starts[some], ends=self.ends[some])


def read(
    histories: Histories,
    catalog: Catalog,
    *,
    unknown: str = "skip",
    untimed: str = "error",
    columns: Sequence[str] = ("user_id", "item_id", "timestamp"),
    time_unit: values.Unit = "s",
    timed: bool = False,
) -> Asked:
    """The histories in flat arrays. `timed`: a model reads when events happened. The rest is as in `recommend`."""
    named("unknown", unknown, ("skip", "error"))
    named("untimed", untimed, ("error", "even"))
    users, lengths, items, times, give = _flat(histories, columns, catalog, time_unit if timed else None)
    if timed and times is None and lengths.any():
        times = _even(lengths, columns, untimed)
    known = items >= 0
    if unknown == "error" and not known.all():
        raise UserError(
            f"{int((~known).sum())} events are of items that the model does not know; unknown='skip' leaves them out"
        )
    owner = np.repeat(np.arange(len(users)), lengths)
    kept = np.bincount(owner[known], minlength=len(users))
    flat, ends = items[known].astype(np.int64), np.cumsum(kept)
    whose = isinstance(histories, Mapping) or not isinstance(histories, Sequence)
    return Asked(users, flat, ends - kept, ends, None if times is None else times[known], whose, give)


def named(name: str, given: str, allowed: tuple[str, ...]) -> None:
    """Raise `UserError` unless a policy is one of those allowed."""
    if given not in allowed:
        raise UserError(f"{name}={given!r}{nearest(given, allowed)} (allowed: {', '.join(allowed)})")


def _even(lengths: np.ndarray, columns: Sequence[str], untimed: str) -> np.ndarray:
    """Times a day apart, where that is asked for."""
    if untimed == "error":
        name = columns[2] if len(columns) > 2 else "timestamp"
        raise UserError(
            "this model reads when events happened and these histories have no times: give a table with a column "
            f"{name!r}, or have events taken as a day apart by untimed='even' (on the command line, --untimed even)"
        )
    return np.concatenate([np.arange(n, dtype=np.int64) * STEP for n in lengths])


def _flat(
    histories: Histories, columns: Sequence[str], catalog: Catalog, unit: values.Unit | None
) -> tuple[pl.Series, np.ndarray, np.ndarray, np.ndarray | None, Any]:
    """Users, events of each, internal item ids of all (-1: unknown), seconds, and how to give a polars frame back.

    The seconds are None where there are none, or where no `unit` says that somebody reads them.
    """
    if isinstance(histories, Mapping) or (isinstance(histories, Sequence) and not isinstance(histories, str)):
        given = dict(histories) if isinstance(histories, Mapping) else dict(enumerate(histories))
        lists = [[items] if isinstance(items, str) else list(items) for items in given.values()]
        if not lists:
            raise UserError("there are no histories; give at least one")
        users = pl.Series("user", list(given), strict=False)
        flat = [item for items in lists for item in items]
        return users, np.array([len(items) for items in lists]), catalog.lookup(flat), None, lambda frame: frame
    return _from_frame(histories, columns, catalog, unit)


def _from_frame(
    table: Any, columns: Sequence[str], catalog: Catalog, unit: values.Unit | None
) -> tuple[pl.Series, np.ndarray, np.ndarray, np.ndarray | None, Any]:
    try:
        given = nw.from_native(table)
    except TypeError:
        raise UserError(
            f"histories are a mapping, a list of lists or a DataFrame, not {type(table).__name__}"
        ) from None
    lazy = isinstance(given, nw.LazyFrame)
    native = given.implementation
    names = given.collect_schema().names()
    for name in columns[:2]:
        if name not in names:
            raise UserError(f"histories have no column {name!r}{nearest(name, names)} (columns: {', '.join(names)})")
    wanted = given.select([name for name in columns if name in names])
    frame = pl.DataFrame((wanted.collect() if isinstance(wanted, nw.LazyFrame) else wanted).to_arrow())
    if missing := frame[columns[0]].null_count():
        raise UserError(f"{missing} of {len(frame)} events have no user in the column {columns[0]!r}; drop them")
    frame = frame.with_row_index("__place")
    timed = len(columns) > 2 and columns[2] in names
    if timed and unit is not None:
        frame = frame.with_columns(__seconds=_seconds(frame[columns[2]], unit))
    if timed:
        frame = frame.sort(columns[2], "__place")
    users = frame[columns[0]].unique(maintain_order=False).sort()
    frame = frame.with_columns(__user=frame[columns[0]].rank("dense").cast(pl.Int64) - 1).sort(
        "__user", maintain_order=True
    )
    lengths = np.bincount(frame["__user"].to_numpy(), minlength=len(users))

    def give(result: pl.DataFrame) -> Any:
        if lazy or native is nw.Implementation.POLARS:
            return result
        return nw.from_arrow(result.to_arrow(), backend=native).to_native()

    times = frame["__seconds"].to_numpy() if "__seconds" in frame.columns else None
    return users.alias("user"), lengths, catalog.lookup(frame[columns[1]]), times, give


def _seconds(column: pl.Series, unit: values.Unit) -> pl.Series:
    """The time column as the store's seconds."""
    found, _ = values.seconds(column, f"column {column.name!r} of the histories", unit)
    if unit == "s" and len(found) and int(found.max()) > 10**11:
        raise UserError(
            f"times in column {column.name!r} lie after the year 5000 as seconds; are they milliseconds? "
            "then say time_unit='ms' (on the command line, --time-unit ms)"
        )
    return pl.Series(found)
