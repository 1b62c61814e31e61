"""Later events as an evaluation set: what users of the same catalogue did after a model was trained.

    later = later_events("next_month.parquet", run.catalog, store)
    evaluate_later(model, later, Evaluation())

All items that a user chose in the period are the targets, so a user may have several. The history
is everything that was known of the user before the period began, from a store (all its splits) or
from a table of earlier events: what a service would have answered from on the first day. Ids are
compared as text, since files of events lose types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.checks import known_times
from fullrank.core.errors import UserError, no_effect
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.core.log import Progress, untold
from fullrank.data import values
from fullrank.data.column_names import EventColumns
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.feature_files import OF_EVENTS, OfEvents, require_same_encoding
from fullrank.data.events.features import encoder_of
from fullrank.data.events.store import Store
from fullrank.data.features import FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.frames import InputTable
from fullrank.data.histories import EvalSet, Histories, UserKeys, user_keys
from fullrank.data.values import TextIndex
from fullrank.evaluation.result import EvaluationResult, merge
from fullrank.evaluation.retrieval import features_read, measure
from fullrank.evaluation.spec import Evaluation
from fullrank.models import Model

SPLIT = "later events"
"""The split that the protocol names."""


@dataclass(frozen=True)
class LaterEvents:
    """The users of a period in the layout of a store.

    User u's events are ``items[offsets[u]:offsets[u + 1]]``: those before ``bounds[u, 1]`` are the
    history and the others the targets; training ended at ``bounds[u, 0]``.
    """

    catalog: Catalog
    user_ids: pl.Series
    """External ids as text, in order of the alphabet."""
    items: Int[np.ndarray, "E"]
    offsets: Int[np.ndarray, "U1"]
    bounds: Int[np.ndarray, "U 2"]
    times: Int[np.ndarray, "E"] | None
    fingerprint: str
    facts: JsonObject
    """Counts for the protocol: what was left out, and what may have leaked."""
    tables: Mapping[OfEvents, FeatureTable] = field(default_factory=dict)
    """The features of each event, of the fields that the catalogue knows."""
    known_users: FeatureRows | None = None
    """The features of each user, where there are any."""

    def eval_set(self, split: str, *, without_history: bool = False) -> EvalSet:
        """All users; there is one split, whatever it is called."""
        starts, middle, ends = self.offsets[:-1], self.bounds[:, 1], self.offsets[1:]
        users = np.arange(len(starts)) if without_history else np.flatnonzero(middle > starts)
        known, targets = Jagged(self.items, starts, middle).take(users), Jagged(self.items, middle, ends).take(users)
        keys, tables = UserKeys(partial(user_keys, self.user_ids), users), self.tables
        of_user = None if self.known_users is None else self.known_users.take(users)
        tables_of_events = tables.get("event"), tables.get("request")
        features = HistoryFeatures.of(*tables_of_events, of_user, self.times, middle[users])
        return EvalSet(Histories(known, self.times, users, keys, features), targets)


def evaluate_later(
    model: Model,
    later: LaterEvents,
    spec: Evaluation,
    *,
    progress: Progress = untold,
) -> EvaluationResult:
    """The model's metrics on the users of a period.

    Raises `UserError` as `retrieval.evaluate` does, and where settings or the model need what
    later events do not have.
    """
    if spec.popularity != "train":
        raise no_effect("popularity='all'", "with events: it counts those of a store, targets included")
    if model.reads_times:
        known_times(later.times, "this model", "the events, or the histories before them, have no times", "give both")
    if spec.empty == "skip" and not later.facts["users_with_history"]:
        raise UserError(
            f"nothing is known of any of the {len(later.user_ids):,} users (such as {later.user_ids[0]!r}) before the "
            "events: are these users of that store? empty=answer evaluates without histories",
            code="no-users-with-history",
        )
    rows = measure(model, later, "test", spec, progress=progress)
    began = later.facts["from"]
    facts = {
        "split": SPLIT,
        "history": "all earlier events" if began is None else f"events before {values.with_date(began)}",
        "events": later.facts,
    }
    missing = later.facts.get("missing_features", ())
    facts |= features_read(model, later.catalog, later.eval_set(SPLIT).histories.features, missing)
    return merge([replace(rows, protocol=rows.protocol | facts)])


def later_events(
    events: Any,
    catalog: Catalog,
    earlier: Store | Any,
    *,
    columns: EventColumns = EventColumns(),
    trained: Store | None = None,
) -> LaterEvents:
    """Users with their histories from `earlier` (a store, or a table with the same columns) and targets from `events`.

    Events of items that the catalogue does not have are left out and counted. Features that
    the catalogue knows are read from the columns of their names; one without a column is
    missing of every event, and named. `trained` is the store of the model's training, where it
    is at hand: it tells users that were trained on, and which events are no later than its
    training. Raises `UserError` for what is no table of events, where no item is known, and
    for a store with other features.
    """
    text_users = isinstance(earlier, Store) and earlier.user_ids.dtype == pl.String
    period = _read(events, "the events", catalog, columns, text_users=text_users)
    known = period.items >= 0
    if not known.any():
        raise UserError(
            f"the model knows none of the items of {period.name}: its ids are such as {catalog.ids[0]!r}; is the item "
            "column the right one?",
            code="no-known-ids",
        )
    began = None if period.times is None else int(period.times.min())
    if isinstance(earlier, Store):
        past = _of_store(earlier, catalog)
    else:
        past = _read(earlier, "the earlier events", catalog, columns, text_users=False)
    users = period.users.gather(np.unique(period.owner[known])).sort()
    history, target = past.of(users), period.of(users)
    if began is not None and history.times is not None:
        history = history.where(history.times < began)
    # All events of a user behind each other, the history first: a stable sort keeps
    # both in order of time.
    owner, all_items = (
        np.concatenate(arrays) for arrays in ((history.owner, target.owner), (history.items, target.items))
    )
    order = np.argsort(owner, kind="stable")
    tables = {role: table.behind(target.tables[role]).select(order) for role, table in history.tables.items()}
    before, counts = (np.bincount(rows, minlength=len(users)) for rows in (history.owner, owner))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    times = None
    if history.times is not None and target.times is not None:
        times = np.concatenate([history.times, target.times])[order]
    new = before == 0
    limit: int | None = None
    if trained is not None:
        ids = users if trained.user_ids.dtype == pl.String else users.cast(trained.user_ids.dtype, strict=False)
        rows, learned = trained.rows_of(ids), np.asarray(trained.bounds[:, 0] > trained.offsets[:-1])
        new = (rows < 0) | ~learned[rows]
        last = trained.bounds[learned, 0] - 1  # a user's events are in order of time
        if trained.times is not None and len(last):
            limit = int(trained.times[last].max())
    facts: JsonObject = {
        "events": len(period.items),
        "from": began,
        "to": None if period.times is None else int(period.times.max()),
        "of_unknown_items": int((~known).sum()),
        "users_without_known_item": len(np.unique(period.owner)) - len(users),
        "users_with_history": int((before > 0).sum()),
        "history": "store" if isinstance(earlier, Store) else "table",
        "trained_until": limit,
        "no_later_than_training": None if limit is None or target.times is None else int((target.times <= limit).sum()),
    }
    known_users = _users_of(users, catalog, (earlier if isinstance(earlier, Store) else None, trained))
    user_fields = () if known_users or catalog.features is None else catalog.features.schema.user
    lacking = {
        "missing_features": period.unknown,
        "missing_in_history": past.unknown,
        "missing_of_users": [field.name for field in user_fields],
    }
    facts |= {key: list(names) for key, names in lacking.items() if names}
    # training ends before the history of a new user begins, and inside that of another (`slices`,
    # known and new)
    bounds = np.stack([offsets[:-1] + (~new & (before > 0)), offsets[:-1] + before], axis=1)
    items = all_items[order]
    print_of = _fingerprint(users, catalog, offsets, bounds[:, 1], items)
    return LaterEvents(catalog, users, items, offsets, bounds, times, print_of, facts, tables, known_users)


@dataclass(frozen=True)
class _Events:
    """E events of users in order of time, in any order of users; `owner` is the row of each in `users` (text)."""

    name: str
    users: pl.Series
    owner: Int[np.ndarray, "E"]
    items: Int[np.ndarray, "E"]
    """Ids of the model's catalogue, -1 where it does not have the item."""
    times: Int[np.ndarray, "E"] | None
    tables: Mapping[OfEvents, FeatureTable]
    unknown: tuple[str, ...] = ()
    """Features without a column."""

    def where(self, chosen: np.ndarray) -> _Events:
        tables = {role: table.select(chosen) for role, table in self.tables.items()}
        times = None if self.times is None else self.times[chosen]
        return replace(self, owner=self.owner[chosen], items=self.items[chosen], times=times, tables=tables)

    def of(self, users: pl.Series) -> _Events:
        """The events of known items of these users, by their rows in `users`."""
        positions = TextIndex(users).find(self.users)
        events = replace(self, users=users, owner=positions[self.owner])
        return events.where((events.owner >= 0) & (events.items >= 0))


def _read(table: Any, what: str, catalog: Catalog, columns: EventColumns, *, text_users: bool) -> _Events:
    """Events of a table; users of a text file are whole numbers where
    all are, unless `text_users`."""
    source = InputTable(table, what)
    for name, keyword in zip(columns.names, ("user_col", "item_col", "time_col"), strict=False):
        source.require(name, f"name it by {keyword}=" + (", or none by time_col=None" if keyword == "time_col" else ""))
    features = () if catalog.features is None else catalog.features.schema.of_events
    unknown = tuple(field.name for field in features if field.name not in source.columns)
    frame = source.read([*columns.names, *(field.name for field in features if field.name not in unknown)])
    source.require_rows(len(frame))
    tables = _encoded(catalog, frame, source.name)
    user = source.ids(frame, columns.names[0], text=text_users).cast(pl.String)
    item = source.ids(frame, columns.names[1], text=catalog.ids.dtype == pl.String).cast(pl.String)
    owner, users = values.dense(user)
    items = TextIndex(catalog.ids.cast(pl.String)).find(item)
    if len(columns.names) < 3:
        return _Events(source.name, users, owner, items, None, tables, unknown)
    times, order = values.in_time(frame[columns.names[2]], source.name, columns.unit, typed=source.typed)
    events = _Events(source.name, users, owner, items, times, tables, unknown)
    return events if order is None else events.where(order)


def _of_store(store: Store, catalog: Catalog) -> _Events:
    """All events of a store, of training, validation and test; its items by their external ids."""
    number = TextIndex(catalog.ids.cast(pl.String)).find(store.catalog.ids.cast(pl.String))
    owner = np.repeat(np.arange(store.num_users), np.diff(store.offsets))
    times = None if store.times is None else np.asarray(store.times)
    stored, unknown = store.stored_features, tuple[str, ...]()
    if stored is None:
        unknown = () if catalog.features is None else tuple(field.name for field in catalog.features.schema.of_events)
        tables = _encoded(catalog, pl.select(pl.repeat(None, store.num_events).alias("nothing")), str(store.path))
    else:
        require_same_encoding(str(store.path), store.features, catalog.features)
        tables = {} if catalog.features is None else dict(stored.tables)
    items = number[np.asarray(store.items)]
    return _Events(str(store.path), store.user_ids.cast(pl.String), owner, items, times, tables, unknown)


def _encoded(catalog: Catalog, frame: pl.DataFrame, what: str) -> dict[OfEvents, FeatureTable]:
    """The features of a frame's events, by role; one without a column is missing."""
    if catalog.features is None:
        return {}
    absent = [field.name for field in catalog.features.schema.of_events if field.name not in frame.columns]
    whole = frame.with_columns(pl.lit(None).alias(name) for name in absent)
    return {
        role: FeatureTable.of(encoder_of(catalog.features, role).encode(whole, what))
        for role in OF_EVENTS
        if getattr(catalog.features.schema, role)
    }


def _users_of(users: pl.Series, catalog: Catalog, stores: Sequence[Store | None]) -> FeatureRows | None:
    """The features of users in the first of these stores that has any; None where none has."""
    for store in stores:
        if store is not None and catalog.features is not None and store.features is not None:
            require_same_encoding(str(store.path), store.features, catalog.features)
            ids = users if store.user_ids.dtype == pl.String else users.cast(store.user_ids.dtype, strict=False)
            table = store.user_features
            return None if table is None else FeatureRows(table, store.rows_of(ids))
    return None


def _fingerprint(users: pl.Series, catalog: Catalog, *arrays: np.ndarray) -> str:
    """Hash of who did what: two runs with the same catalogue are compared on the same
    targets and histories alone."""
    digest = hashlib.sha256()
    for ids in (users, catalog.ids):
        digest.update("\0".join(ids.cast(pl.String).to_list()).encode())
    for array in arrays:
        digest.update(array.astype(np.int64).tobytes())
    return digest.hexdigest()
