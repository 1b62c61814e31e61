"""Requests as a caller has them (external ids in a mapping, lists or a DataFrame), read into ragged arrays."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError, brief, no_effect
from fullrank.core.jagged import Jagged
from fullrank.data import values
from fullrank.data.column_names import USUAL, EventColumns
from fullrank.data.events.catalog import Catalog
from fullrank.data.features import HistoryFeatures
from fullrank.data.frames import SUFFIXES, InputTable
from fullrank.data.histories import Histories, UserKeys, user_keys
from fullrank.inference.column_filters import check_filters, filters_key, item_columns, refused_by
from fullrank.inference.features import FeatureInput, Reads, RequestFeatures, known_features, require_one_each
from fullrank.inference.filters import Filters
from fullrank.inference.list_options import ItemLists, ListOptions

HistoryInput = Mapping[Any, Sequence[Any]] | Sequence[Sequence[Any]] | Any
"""Histories: {user: items}, a list of item lists (users are then 0, 1, ...), or a DataFrame, or the
path of a file, with user and item columns."""
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
    unknown_only: int = 0
    """Histories that hold items, none of which the catalogue has."""
    to_caller: Callable[[pl.DataFrame], Any] = lambda frame: frame
    """A polars frame as the caller's type of DataFrame."""
    lacking: str = ""
    """Features that the model reads and nobody gave, for a note."""
    features: RequestFeatures | None = None
    """The argument `features=`, where another model reads it too."""

    def __len__(self) -> int:
        return len(self.histories)

    @property
    def users(self) -> pl.Series:
        """External ids, or 0, 1, ... where none were given."""
        return pl.Series("user", np.arange(len(self))) if self.names is None else self.names

    def part(self, low: int, high: int) -> RequestBatch:
        """The users low .. high - 1, by the names or numbers that they have here."""
        users = slice(low, high)
        features = None if self.features is None else self.features.part(users)
        return replace(self, names=self.users[users], histories=self.histories.take(users), features=features)


def read_histories(
    histories: HistoryInput,
    catalog: Catalog,
    options: ListOptions = ListOptions(),
    *,
    columns: EventColumns = EventColumns(),
    features: FeatureInput = None,
    reads: Reads = Reads(),
) -> RequestBatch:
    """The histories as arrays, for a model that `reads` so much of them. The rest is as in `Predictor.recommend`.

    A table is put in order as `prepare` does it, by `values.in_time`, whether or not the model
    reads times.
    """
    listed = isinstance(histories, Mapping) or (
        isinstance(histories, Sequence) and not isinstance(histories, str | bytes)
    )
    if listed:
        flat = _from_lists(histories, catalog)
        if columns.unit != "s":
            raise no_effect(f"time_unit={columns.unit!r}", "on histories without times")
    else:
        flat = _from_table(histories, columns, catalog, reads)
    return batch_of(flat, columns, options, features=features, reads=reads, listed=listed, ordered=listed)


def batch_of(
    flat: FlatEvents,
    columns: EventColumns,
    options: ListOptions,
    *,
    reads: Reads,
    features: FeatureInput = None,
    listed: bool = False,
    ordered: bool = True,
) -> RequestBatch:
    """Events with external users as a request, with times and features where a model reads them.

    Items that the catalogue does not have are left out.

    Lists may have none (`untimed`); a table without them is refused, since its column
    may have another name. Raises `UserError` for missing times, and for unknown items
    where `unknown` is `error`.
    """
    lengths, items, times = flat.lengths, flat.items, flat.times if reads.timed else None
    if reads.timed and times is None and lengths.any():
        if options.untimed == "error" or (options.untimed == "auto" and not listed):
            name = columns.names[2] if len(columns.names) > 2 else USUAL[2]
            raise UserError(
                "this model reads when events happened and these histories have no times: give a table with a column "
                f"{name!r}, or have events taken as a day apart by untimed='even'",
                code="missing-times",
            )
        if options.untimed == "auto":
            warnings.warn(
                "this model reads when events happened and these histories have no times: they are taken as of now, a "
                "day between events (untimed='even' does so without a note, untimed='error' refuses them)",
                stacklevel=2,
            )
        times = even_times(lengths)
    numbered = pl.Series("user", np.arange(len(lengths))) if flat.users is None else flat.users
    features = reads.rows_of(numbered, columns.names[0]) if features is None else features
    requested = None if features is None else RequestFeatures.read(features, reads, numbered, columns, ordered=ordered)
    event_features, known, unknown_only = flat.features, items >= 0, 0
    if not known.all():
        if options.unknown == "error":
            raise UserError(
                f"{int((~known).sum())} events are of items that the model does not know; unknown='skip' leaves them "
                "out",
                code="unknown-item",
            )
        owner = np.repeat(np.arange(len(lengths)), lengths)
        before, lengths = lengths, np.bincount(owner[known], minlength=len(lengths))
        unknown_only = int(((before > 0) & (lengths == 0)).sum())
        event_features = None if event_features is None else event_features.of_events(known)
        items, times = items[known], None if times is None else times[known]
    keys = None if flat.users is None else UserKeys(partial(user_keys, flat.users))
    read_features = known_features(event_features, requested, reads, len(lengths), columns.unit)
    read_items = Jagged.from_lengths(items.astype(np.int64, copy=False), lengths)
    read = Histories(read_items, times, None, keys, read_features)
    supplied = () if requested is None else requested.present
    lacking = reads.lacking(flat.columns, event_features is not None and event_features.user is not None, supplied)
    for_others = requested if reads.other else None
    return RequestBatch(flat.users, read, ordered, unknown_only, flat.to_caller, lacking, for_others)


def read_filters(options: ListOptions, request: RequestBatch, catalog: Catalog, id_column: str = "item_id") -> Filters:
    """The lists and the column filters of a request. Items that the catalogue does not have are in no list anyway.

    Columns are the catalogue's and those of `item_table`, whose ids stand in its column
    `id_column`, else `item_id`. Raises `UserError` for what is not one for all or one per history,
    and for what leaves nothing.
    """
    exclude, allow, filters, item_table = options.exclude, options.allow, options.filters, options.item_table
    if filters is None and item_table is not None:
        raise no_effect("item_table", "without filters on its columns", "give filters=, or leave it out")
    if exclude is None and allow is None and filters is None:
        return Filters()
    barred: Bool[np.ndarray, "V"] | None = None
    excluded, allowed = (
        None if ids is None else _known_ids(per_history(name, ids, request), catalog)
        for name, ids in (("exclude", exclude), ("allow", allow))
    )
    masks = () if filters is None else _masks(filters, request, item_columns(catalog, item_table, id_column))
    if isinstance(masks, np.ndarray):
        barred, masks = masks, ()
    if isinstance(allowed, np.ndarray):
        others = np.ones(catalog.size, bool)
        others[allowed] = False
        barred, allowed = others if barred is None else barred | others, None
    if isinstance(excluded, np.ndarray):
        if len(excluded):
            barred = np.zeros(catalog.size, bool) if barred is None else barred
            barred[excluded] = True
        excluded = None
    if (barred is not None and barred.all()) or (allowed is not None and not allowed.lengths.any()):
        kind = "" if filters is not None else f"; are the ids of the same kind as {catalog.ids[0]!r}?"
        raise UserError(
            "filters, exclude and allow leave no item that the model knows for anybody, so nothing can be recommended: "
            f"ask for less{kind}",
            code="nothing-allowed",
        )
    return Filters(excluded, barred, allowed, masks)


def _masks(
    requested: Any, request: RequestBatch, columns: Mapping[str, pl.Series]
) -> Bool[np.ndarray, "V"] | tuple[tuple[Int[np.ndarray, "_"], Bool[np.ndarray, "V"]], ...]:
    """The items that filters for all refuse; of filters for each history one
    mask for each different one."""
    if not is_list(requested):
        filters = check_filters(requested)
        return refused_by(columns, filters) if filters else ()
    require_one_each("filters", requested, len(request), request.ordered, "one mapping of columns")
    groups: dict[str, tuple[Mapping[str, Any], list[int]]] = {}
    for row, wanted in enumerate(requested):
        if wanted is not None and check_filters(wanted):
            groups.setdefault(filters_key(wanted), (wanted, []))[1].append(row)
    return tuple((np.array(rows, np.int64), refused_by(columns, filters)) for filters, rows in groups.values())


def read_candidates(candidates: ItemLists, request: RequestBatch) -> tuple[Int[np.ndarray, "N"], pl.Series]:
    """(history, item) of each candidate, history after history: rows of the request, and external ids."""
    remedy = "give item ids for all histories, a list for each, or {user: items}"
    candidates = check_given("candidates", candidates, remedy, code="no-candidates")
    ids = per_history("candidates", candidates, request)
    lists = ids if isinstance(ids, list) else [ids.to_list()] * len(request)
    flat = pl.Series("item", [item for items in lists for item in items], strict=False)
    return np.repeat(np.arange(len(lists)), [len(items) for items in lists]), flat


def per_history(name: str, ids: Any, request: RequestBatch) -> pl.Series | list[list[Any]]:
    """Item ids that are for all histories, or a list of them for each. Raises `UserError` for what is neither."""
    if isinstance(ids, Mapping):
        return _by_user(name, ids, request)
    require_list(name, ids, "item ids for all histories, a list for each, or {user: items}", code="not-item-lists")
    if isinstance(ids, pl.Series):
        return ids
    if not any(is_list(entry) for entry in ids):
        return pl.Series("item", list(ids), strict=False)
    require_one_each(name, ids, len(request), request.ordered, "{user: items}, or one list")
    return [_one_list(name, number, items) for number, items in enumerate(ids)]


def _by_user(name: str, lists: Mapping[Any, Any], request: RequestBatch) -> list[list[Any]]:
    """The lists of a mapping, in the order of the users; a user without one excludes nothing."""
    users = request.users.to_list()
    known = set(users)
    other = next((user for user in lists if user not in known), None)
    if other is not None:
        raise UserError(f"{name} has a list for {other!r}, who has no history here", code="unknown-user")
    lacking = next((user for user in users if user not in lists), None)
    # who excludes nothing for a user means it; who allows nothing hardly ever does
    if name != "exclude" and lacking is not None:
        raise UserError(
            f"{name} has no list for {lacking!r}: give one for each history, or one list for all", code="missing-lists"
        )
    return [_one_list(name, user, lists.get(user, ())) for user in users]


def _one_list(name: str, whose: Any, ids: Any) -> list[Any]:
    """One user's items. A text is no list of items, though Python could go through its letters."""
    if not is_list(ids):
        raise UserError(
            f"{name} of {whose!r} is {brief(ids)}; give a list of item ids, such as [{brief(ids)}]",
            code="not-item-lists",
        )
    return list(ids)


def require_list(what: str, listed: Any, contents: str, *, code: str) -> None:
    """Raise `UserError` for an argument that is no list."""
    if not is_list(listed):
        raise UserError(f"{what}={brief(listed)}: give a list of {contents}", code=code)


def is_list(listed: Any) -> bool:
    """Whether something is a list, an array or a Series, of ids perhaps."""
    return isinstance(listed, Sequence | pl.Series | np.ndarray) and not isinstance(listed, str | bytes)


def _known_ids(ids: pl.Series | list[list[Any]], catalog: Catalog) -> Jagged | Int[np.ndarray, "n"]:
    """Numbers of the items that the catalogue has: flat where they are for all
    histories, else a row for each."""
    if isinstance(ids, pl.Series):
        numbers = catalog.lookup(ids)
        return numbers[numbers >= 0]
    numbers = catalog.lookup([item for items in ids for item in items])
    rows = np.repeat(np.arange(len(ids)), [len(items) for items in ids])
    return Jagged.from_pairs(rows[numbers >= 0], numbers[numbers >= 0], len(ids))


def even_times(lengths: Int[np.ndarray, "U"]) -> Int[np.ndarray, "E"]:
    """Times of events that have none, history after history: the last one today, each a day before the next."""
    today = int(time.time()) // STEP
    return np.concatenate([np.arange(today - n + 1, today + 1, dtype=np.int64) for n in lengths]) * STEP


@dataclass(frozen=True)
class FlatEvents:
    """The events of all histories in flat arrays, history after history, each in order of time."""

    users: pl.Series | None
    """None: they are numbered."""
    lengths: Int[np.ndarray, "U"]
    items: Int[np.ndarray, "E"]
    """Internal item ids, -1 where the catalogue does not have the item."""
    times: Int[np.ndarray, "E"] | None = None
    """Seconds since 1970; None where there are none."""
    to_caller: Callable[[pl.DataFrame], Any] = lambda frame: frame
    """A polars frame as the caller's type of DataFrame."""
    features: HistoryFeatures | None = None
    """Features of the events, their requests and the users; None where there are none."""
    columns: Sequence[str] = ()
    """Names of the features that the events have."""


def _from_lists(histories: Mapping[Any, Any] | Sequence[Any], catalog: Catalog) -> FlatEvents:
    """The events of a mapping or of lists, whose items are external ids."""
    named = isinstance(histories, Mapping)
    pairs = histories.items() if isinstance(histories, Mapping) else enumerate(histories)
    if not named and len(histories) and not any(is_list(history) for history in histories):
        raise UserError(
            f"histories={brief(histories)} is one list of ids: give a list of histories, so for one user "
            f"[{brief(list(histories)[:2])}], or {{user: items}}",
            code="flat-list",
        )
    lists = [_one_list("the history", user, items) for user, items in pairs]
    require_some(len(lists), "histories")
    flat = [item for items in lists for item in items]
    if any(item is None for item in flat):
        raise UserError(
            f"{sum(item is None for item in flat)} of {len(flat):,} items of the histories are None; leave them out",
            code="missing-ids",
        )
    users = _user_names(list(histories)) if named else None
    return FlatEvents(users, np.array([len(items) for items in lists]), catalog.lookup(flat))


def require_some(count: int, what: str) -> None:
    """Raise `UserError` where `count` is 0."""
    if not count:
        raise UserError(f"there are no {what}; give at least one", code="no-histories")


def require_known_items(empty: Bool[np.ndarray, "U"], remedy: str) -> None:
    """Raise `UserError` where histories are empty, which means that they held nothing that the model knows."""
    if empty.any():
        raise UserError(
            f"{int(empty.sum())} of {len(empty)} histories hold no item that the model knows: {remedy}",
            code="no-known-items",
        )


def require_one_type(users: Sequence[Any]) -> None:
    """Raise `UserError` for users that one column cannot hold apart, such as
    numbers and text. None is no type."""
    types = set(map(type, users)) - {type(None)}
    kinds = {int if issubclass(kind, int | np.integer) and kind is not bool else kind for kind in types}
    if len({str if issubclass(kind, str) else kind for kind in kinds}) > 1:
        raise UserError(
            f"the users are of several types ({', '.join(sorted(kind.__name__ for kind in types))}), such as "
            f"{brief(users[0], 60)} and {brief(users[-1], 60)}; name all by whole numbers or all by strings",
            code="mixed-ids",
        )


def _user_names(names: list[Any]) -> pl.Series:
    """The users of a mapping. Raises `UserError` for names that one column cannot hold apart."""
    require_one_type(names)
    users = pl.Series("user", names, strict=False)
    if users.dtype == pl.Object or users.null_count() or users.n_unique() < len(users):
        raise UserError(
            f"the histories are of users such as {brief(names[0], 80)}; name users by whole numbers or strings",
            code="wrong-id-type",
        )
    return users


def event_columns(source: InputTable, named: EventColumns) -> tuple[str, ...]:
    """The columns of user, item and, where the table has one, time.

    Raises `UserError` for one that is missing, but for the usual one of times, and for a
    unit of times without them.
    """
    names = named.names
    if names[2:] == USUAL[2:] and USUAL[2] not in source.columns:
        names = names[:2]
    for name, keyword in zip(names, ("user_col", "item_col", "time_col"), strict=False):
        source.require(name, f"name it with {keyword}=")
    if len(names) == 2 and named.unit != "s":
        raise no_effect(f"time_unit={named.unit!r}", "since the histories have no column of times")
    return names


def _from_table(table: Any, named: EventColumns, catalog: Catalog, reads: Reads) -> FlatEvents:
    """The events of a table as `prepare` reads them: its parser of times, its
    order, ties in input order."""
    if isinstance(table, str | bytes) and not str(table).lower().endswith(SUFFIXES):  # an id rather than a file
        raise _not_histories(table)
    try:
        source = InputTable(table, "histories")
    except UserError as error:
        raise _not_histories(table) if error.code == "not-a-table" else error from None
    columns = event_columns(source, named)
    features = [name for name in reads.columns("event", "request") if name in source.columns]
    frame = source.read([*columns, *features])
    for name in columns[:2]:
        source.require_one_kind(name)
    what = "the histories" if source.path is None else source.name
    users = _table_users(frame[columns[0]], what)
    items = frame[columns[1]]
    values.refuse(items.is_null(), items, what, "missing ids", code="missing-ids")
    if not source.typed:  # a text file: ids of items are of the catalogue's type
        items = catalog.parse(items.to_list())
    times, order = None, np.arange(len(frame))
    if len(columns) > 2:
        times, moved = values.in_time(frame[columns[2]], what, named.unit, typed=source.typed)
        order = order if moved is None else moved
    names, lengths, order = by_user(users, order)
    times = None if times is None else times[order]
    known = reads.of_events(frame[order] if features else frame, what)
    return FlatEvents(
        names, lengths, catalog.lookup(items)[order], times, to_caller_type(source.frame), known, features
    )


def by_user(
    users: pl.Series, order: Int[np.ndarray, "E"]
) -> tuple[pl.Series, Int[np.ndarray, "U"], Int[np.ndarray, "E"]]:
    """The users of events, how many each has, and the rows of the events in this order, user after user."""
    codes, names = values.dense(users)
    order = order[np.argsort(codes[order], kind="stable")]
    return names.alias("user"), np.bincount(codes, minlength=len(names)), order


def _not_histories(argument: Any) -> UserError:
    return UserError(
        f"histories are a mapping, a list of lists, a DataFrame or the path of a file, not {brief(argument, 80)}",
        code="not-histories",
    )


def _table_users(column: pl.Series, what: str) -> pl.Series:
    """The users of a table's events. Raises `UserError` where one is
    missing, and for lists and objects."""
    column = values.without_fractions(column)
    if missing := column.null_count():
        raise UserError(
            f"{missing} of {len(column)} events have no user in the column {column.name!r}; drop them",
            code="missing-users",
        )
    if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary, pl.Boolean):
        raise values.wrong_type(column, what, "users are numbers or strings")
    # Codes of categories go by first occurrence and their text by the alphabet: as
    # text both are one order.
    return column.cast(pl.String) if isinstance(column.dtype, (pl.Categorical, pl.Enum)) else column


def to_caller_type(native: nw.DataFrame[Any] | nw.LazyFrame[Any]) -> Callable[[pl.DataFrame], Any]:
    """A function from a polars frame to one of the caller's type; a lazy frame is answered by an eager one."""
    backend = native.implementation
    if isinstance(native, nw.LazyFrame) or backend is nw.Implementation.POLARS:
        return lambda frame: frame
    return lambda frame: nw.from_arrow(frame.to_arrow(), backend=backend).to_native()
