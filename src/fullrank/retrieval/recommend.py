"""Histories of external ids in, a long frame (user, item, score, rank) of the caller's DataFrame type out.

No user table is needed, and the ranking is the one that evaluation measures: both come from `retrieval.rank`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from torch import nn

from fullrank.data import values
from fullrank.data.catalog import Catalog
from fullrank.errors import UserError, nearest
from fullrank.metrics import Ranking
from fullrank.retrieval.dial import Reasoning, dialled, used
from fullrank.retrieval.rank import Histories as Flat
from fullrank.retrieval.rank import rank
from fullrank.retrieval.seen import checked
from fullrank.retrieval.settle import rank_settled

Histories = Mapping[Any, Sequence[Any]] | Sequence[Sequence[Any]] | Any
"""{user: items}, a list of item lists (users are then 0, 1, ...), or a DataFrame with user and item columns."""
STEP = 86_400
"""Seconds between events whose times are not known, where those are taken as even."""


def recommend(
    model: nn.Module,
    catalog: Catalog,
    histories: Histories,
    *,
    k: int = 10,
    seen: str = "exclude",
    unknown: str = "skip",
    empty: str = "popular",
    untimed: str = "error",
    columns: Sequence[str] = ("user_id", "item_id", "timestamp"),
    time_unit: values.Unit = "s",
    titles: bool = False,
    reasoning: Reasoning | None = None,
) -> Any:
    """The k best items for each history, best first.

    `unknown`: items that the catalogue does not have are left out of the history, or are an error. `empty`: a history
    without known items gets the most popular items, or is an error. `columns` names user, item and time in a frame
    (events are put in order of time where it has that column, else they are read in the order given). A model that
    reads times takes them from there, numbers in `time_unit`; `untimed`: histories without times are an error for such
    a model, or their events count as `even` steps of a day. Returns columns user, item, score, rank (from 1), and title
    where `titles` is asked for and known; polars unless a frame was given. `reasoning` is how much a reasoner thinks
    (an error for a model without one); with adaptive stopping a column `steps` says how long for each user.
    """
    if k < 1:
        raise UserError(f"k must be at least 1, not {k}")
    checked(seen)
    _named("unknown", unknown, ("skip", "error"))
    _named("empty", empty, ("popular", "error"))
    _named("untimed", untimed, ("error", "even"))
    reads = getattr(model, "reads_times", False)
    users, lengths, items, times, give = _flat(histories, columns, catalog, time_unit if reads else None)
    if reads and times is None and lengths.any():
        times = _even(lengths, columns, untimed)
    known = items >= 0
    if unknown == "error" and not known.all():
        raise UserError(
            f"{int((~known).sum())} events are of items that the model does not know; unknown='skip' leaves them out"
        )
    owner = np.repeat(np.arange(len(users)), lengths)
    kept = np.bincount(owner[known], minlength=len(users))
    flat, ends = items[known].astype(np.int64), np.cumsum(kept)
    times = None if times is None else times[known]
    bare = kept == 0
    if bare.any() and empty == "error":
        raise UserError(
            f"{int(bare.sum())} of {len(users)} histories hold no item that the model knows; "
            "empty='popular' answers them"
        )
    k_in = min(k, catalog.size)
    ids = np.full((len(users), k_in), -1, dtype=np.int64)
    scores = np.full((len(users), k_in), -np.inf, dtype=np.float32)
    steps = np.zeros(len(users), dtype=np.int64)
    dial = reasoning or Reasoning()
    able = np.flatnonzero(~bare | getattr(model, "allows_empty", False))
    with dialled(model, dial):
        if len(able):
            asked = Flat(flat, (ends - kept)[able], ends[able], times)
            found, steps[able] = _ranked(model, asked, k_in, seen, dial)
            ids[able], scores[able] = found.ids, found.scores
    rest = np.setdiff1d(np.flatnonzero(bare), able)
    if len(rest):
        order = np.argsort(-catalog.popularity, kind="stable")[:k_in]
        ids[rest], scores[rest] = order, catalog.popularity[order]
    taken = None if dial.adaptive is None else steps
    return give(_long(users, ids, scores, catalog, titles, taken))


def _ranked(model: Any, h: Flat, k: int, seen: str, dial: Reasoning) -> tuple[Ranking, np.ndarray | int]:
    """The lists, and each user's steps where stopping is adaptive."""
    how = used(model, dial)
    if how is None or dial.adaptive is None:
        return rank(model, h.items, h.starts, h.ends, k=k, seen=seen, times=h.times), 0
    return rank_settled(
        model, h, k=k, length=how["adaptive"], most=how["steps"], patience=how["patience"], seen=seen
    )  # fmt: skip


def _named(name: str, given: str, allowed: tuple[str, ...]) -> None:
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


def _long(
    users: pl.Series, ids: np.ndarray, scores: np.ndarray, catalog: Catalog, titles: bool, steps: np.ndarray | None
) -> pl.DataFrame:
    k = ids.shape[1]
    filled = ids.ravel() >= 0
    place = np.repeat(np.arange(len(users)), k)[filled]
    internal = ids.ravel()[filled]
    frame = pl.DataFrame({
        "user": users.gather(pl.Series(place, dtype=pl.UInt32)),
        "item": catalog.external(internal),
        "score": scores.ravel()[filled],
        "rank": np.tile(np.arange(1, k + 1), len(users))[filled],
    })  # fmt: skip
    if steps is not None:
        frame = frame.with_columns(steps=pl.Series(steps[place]))
    if titles and catalog.titles is not None:
        frame = frame.with_columns(title=catalog.titles.gather(pl.Series(internal, dtype=pl.UInt32)))
    return frame


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
