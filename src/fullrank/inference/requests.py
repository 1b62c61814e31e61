"""Requests as a caller has them (external ids in a mapping, lists or a DataFrame), read into ragged arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from fullrank.core.errors import UserError, brief, did_you_mean
from fullrank.core.jagged import Jagged
from fullrank.data import values
from fullrank.data.events.catalog import Catalog
from fullrank.data.histories import Histories
from fullrank.inference.filters import Filters

HistoryInput = Mapping[Any, Sequence[Any]] | Sequence[Sequence[Any]] | Any
"""Histories: {user: items}, a list of item lists (users are then 0, 1, ...), or a DataFrame with user and item
columns."""
ItemLists = Sequence[Any] | pl.Series | Mapping[Any, Sequence[Any]] | Any | None
"""Item ids: one list for all histories, a list for each, or {user: items}."""
STEP = 86_400
"""Seconds between events without times, under `untimed="even"`."""


@dataclass(frozen=True)
class RequestBatch:
    """The histories of a call, by time, without the items that the catalogue does not have."""

    names: pl.Series | None
    """External ids of the users; None where the caller gave none: they are 0, 1, ..."""
    histories: Histories
    ordered: bool = True
    """Whether the users stand in the caller's order; those of a table do not."""
    give: Callable[[pl.DataFrame], Any] = lambda frame: frame
    """A polars frame as the caller's type of DataFrame."""

    def __len__(self) -> int:
        return len(self.histories)

    @property
    def users(self) -> pl.Series:
        """External ids, or 0, 1, ... where none were given."""
        return pl.Series("user", np.arange(len(self))) if self.names is None else self.names

    def part(self, low: int, high: int) -> RequestBatch:
        """The users low .. high - 1, by the names or numbers that they have here."""
        some = slice(low, high)
        return replace(self, names=self.users[some], histories=self.histories.take(some))


def read_histories(
    histories: HistoryInput,
    catalog: Catalog,
    *,
    unknown: str = "skip",
    untimed: str = "error",
    columns: Sequence[str] = ("user_id", "item_id", "timestamp"),
    time_unit: values.Unit = "s",
    timed: bool = False,
) -> RequestBatch:
    """The histories as arrays. `timed`: a model reads when events happened. The rest is as in `Predictor.recommend`."""
    check_choice("unknown", unknown, ("skip", "error"))
    check_choice("untimed", untimed, ("error", "even"))
    names, lengths, items, times, give = _flat(histories, columns, catalog, time_unit if timed else None)
    if timed and times is None and lengths.any():
        times = _even(lengths, columns, untimed)
    known = items >= 0
    if unknown == "error" and not known.all():
        raise UserError(
            f"{int((~known).sum())} events are of items that the model does not know; unknown='skip' leaves them out",
            code="unknown-item",
        )
    if not known.all():
        owner = np.repeat(np.arange(len(lengths)), lengths)
        lengths = np.bincount(owner[known], minlength=len(lengths))
        items, times = items[known], None if times is None else times[known]
    flat = Histories(Jagged.from_lengths(items.astype(np.int64), lengths), times)
    return RequestBatch(names, flat, isinstance(histories, Sequence | Mapping), give)


def read_filters(exclude: ItemLists, allow: ItemLists, request: RequestBatch, catalog: Catalog) -> Filters:
    """The lists of a request as filters. Items that the catalogue does not have are in no list anyway.

    Raises `UserError` for lists that are not one for all or one per history, and for an `allow` that leaves nothing.
    """
    if exclude is None and allow is None:
        return Filters()
    barred: Bool[np.ndarray, "V"] | None = None
    excluded, allowed = (
        None if given is None else _known_ids(per_history(name, given, request), catalog)
        for name, given in (("exclude", exclude), ("allow", allow))
    )
    if isinstance(allowed, np.ndarray):
        kept, barred, allowed = allowed, np.ones(catalog.size, bool), None
        barred[kept] = False
    if isinstance(excluded, np.ndarray):
        if len(excluded):
            barred = np.zeros(catalog.size, bool) if barred is None else barred
            barred[excluded] = True
        excluded = None
    if (barred is not None and barred.all()) or (allowed is not None and not allowed.lengths.any()):
        raise UserError(
            "exclude and allow leave no item that the model knows for anybody, so nothing can be recommended: are "
            f"the ids of the same kind as {catalog.ids[0]!r}?",
            code="nothing-allowed",
        )
    return Filters(excluded, barred, allowed)


def read_candidates(candidates: ItemLists, request: RequestBatch) -> tuple[Int[np.ndarray, "N"], pl.Series]:
    """(history, item) of each candidate, history after history: rows of the request, and external ids."""
    if candidates is None:
        raise UserError(
            "give candidates: item ids for all histories, a list for each, or {user: items}", code="no-candidates"
        )
    given = per_history("candidates", candidates, request)
    lists = given if isinstance(given, list) else [given.to_list()] * len(request)
    flat = pl.Series("item", [item for items in lists for item in items], strict=False)
    return np.repeat(np.arange(len(lists)), [len(items) for items in lists]), flat


def per_history(name: str, given: Any, request: RequestBatch) -> pl.Series | list[list[Any]]:
    """Item ids that are for all histories, or a list of them for each. Raises `UserError` for what is neither."""
    if not isinstance(given, Mapping) and not _is_list(given):
        raise UserError(
            f"{name}={brief(given)}: give a list of item ids for all histories, a list for each, or {{user: items}}",
            code="not-item-lists",
        )
    if isinstance(given, Mapping):
        return _by_user(name, given, request)
    if isinstance(given, pl.Series):
        return given
    if not any(_is_list(one) for one in given):
        return pl.Series("item", list(given), strict=False)
    if not request.ordered:
        raise UserError(
            f"{name}: histories from a table have no order to go by; give {{user: items}}, or one list",
            code="table-has-no-order",
        )
    if len(given) != len(request):
        raise UserError(
            f"{name} has {len(given)} lists for {len(request)} histories; give one for each, or for all",
            code="list-count-differs",
        )
    return [_one_list(name, place, items) for place, items in enumerate(given)]


def _by_user(name: str, given: Mapping[Any, Any], request: RequestBatch) -> list[list[Any]]:
    users = request.users.to_list()
    known = set(users)
    other = next((user for user in given if user not in known), None)
    if other is not None:
        raise UserError(f"{name} has a list for {other!r}, who has no history here", code="unknown-user")
    lacking = next((user for user in users if user not in given), None)
    if name != "exclude" and lacking is not None:  # nothing to exclude is meant; nothing to allow hardly ever is
        raise UserError(
            f"{name} has no list for {lacking!r}: give one for each history, or one list for all", code="missing-lists"
        )
    return [_one_list(name, user, given.get(user, ())) for user in users]


def _one_list(name: str, whose: Any, given: Any) -> list[Any]:
    """One user's items. A text is no list of items, though Python could go through its letters."""
    if not _is_list(given):
        raise UserError(
            f"{name} of {whose!r} is {brief(given)}; give a list of item ids, such as [{brief(given)}]",
            code="not-item-lists",
        )
    return list(given)


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence | pl.Series | np.ndarray) and not isinstance(given, str | bytes)


def _known_ids(given: pl.Series | list[list[Any]], catalog: Catalog) -> Jagged | Int[np.ndarray, "n"]:
    """Internal ids of those that the catalogue has: flat where they are for all histories, else a row for each."""
    if isinstance(given, pl.Series):
        ids = catalog.lookup(given)
        return ids[ids >= 0]
    ids = catalog.lookup([item for items in given for item in items])
    rows = np.repeat(np.arange(len(given)), [len(items) for items in given])
    return Jagged.from_pairs(rows[ids >= 0], ids[ids >= 0], len(given))


def check_choice(name: str, given: str, allowed: tuple[str, ...]) -> None:
    """Raise `UserError` unless a policy is one of those allowed."""
    if given not in allowed:
        raise UserError(
            f"{name}={given!r}{did_you_mean(given, allowed)} (allowed: {', '.join(allowed)})", code="unknown-choice"
        )


def _even(lengths: np.ndarray, columns: Sequence[str], untimed: str) -> np.ndarray:
    """Times a day apart, where that is asked for."""
    if untimed == "error":
        name = columns[2] if len(columns) > 2 else "timestamp"
        raise UserError(
            "this model reads when events happened and these histories have no times: give a table with a column "
            f"{name!r}, or have events taken as a day apart by untimed='even' (on the command line, --untimed even)",
            code="missing-times",
        )
    return np.concatenate([np.arange(n, dtype=np.int64) * STEP for n in lengths])


def _flat(
    histories: HistoryInput, columns: Sequence[str], catalog: Catalog, unit: values.Unit | None
) -> tuple[pl.Series | None, np.ndarray, np.ndarray, np.ndarray | None, Any]:
    """Users (None: numbered), events of each, internal item ids of all (-1: unknown), seconds, and how to give a polars
    frame back.

    The seconds are None where there are none, or where no `unit` says that somebody reads them.
    """
    if isinstance(histories, Mapping) or (isinstance(histories, Sequence) and not isinstance(histories, str)):
        given = histories.items() if isinstance(histories, Mapping) else enumerate(histories)
        lists = [[items] if isinstance(items, str) else _one_list("the history", user, items) for user, items in given]
        if not lists:
            raise UserError("there are no histories; give at least one", code="no-histories")
        users = pl.Series("user", list(histories), strict=False) if isinstance(histories, Mapping) else None
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
            f"histories are a mapping, a list of lists or a DataFrame, not {type(table).__name__}", code="not-histories"
        ) from None
    lazy = isinstance(given, nw.LazyFrame)
    native = given.implementation
    names = given.collect_schema().names()
    for name in columns[:2]:
        if name not in names:
            raise UserError(
                f"histories have no column {name!r}{did_you_mean(name, names)} (columns: {', '.join(names)})",
                code="missing-column",
            )
    wanted = given.select([name for name in columns if name in names])
    frame = pl.DataFrame((wanted.collect() if isinstance(wanted, nw.LazyFrame) else wanted).to_arrow())
    if missing := frame[columns[0]].null_count():
        raise UserError(
            f"{missing} of {len(frame)} events have no user in the column {columns[0]!r}; drop them",
            code="missing-users",
        )
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
            "then say time_unit='ms' (on the command line, --time-unit ms)",
            code="wrong-time-unit",
        )
    return pl.Series(found)
