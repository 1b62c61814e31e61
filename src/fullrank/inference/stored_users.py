"""Known users: ids of users in a prepared store, and all their events there as histories of a request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError, brief, no_effect
from fullrank.data import values
from fullrank.data.column_names import USUAL, EventColumns
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.feature_files import require_same_encoding
from fullrank.data.events.store import Store, opened_store
from fullrank.data.features import FeatureRows, HistoryFeatures
from fullrank.inference.features import FeatureInput, Reads
from fullrank.inference.list_options import ListOptions
from fullrank.inference.requests import (
    FlatEvents,
    RequestBatch,
    batch_of,
    require_list,
    require_one_type,
    require_some,
)

Users = Sequence[Any] | pl.Series | Any
"""Ids of users: a list, an array or a Series."""
UNKNOWN_USERS = ("error", "popular", "skip")


def refuse_table_columns(columns: EventColumns, *, user: bool = True) -> None:
    """Raise `UserError` where users are a store's and columns of a table of histories are named.

    The column of items may be named (of an item table) and, without `user`, that of users
    (of a table of features).
    """
    if (*columns.names[: int(user)], *columns.names[2:], columns.unit) != (*USUAL[: int(user)], USUAL[2], "s"):
        raise no_effect(
            "user_col, time_col or time_unit",
            "on users of a store, whose columns were named when it was prepared",
            "leave it out, or give histories",
        )


def read_users(
    users: Users,
    data: Store | str | Path | None,
    catalog: Catalog,
    options: ListOptions = ListOptions(),
    unknown_users: str = "error",
    columns: EventColumns = EventColumns(),
    features: FeatureInput = None,
    reads: Reads = Reads(),
) -> RequestBatch:
    """Users of a store with all their events there, in the order given; policies as in `Predictor.recommend`.

    The store may be another one than the model was trained on: its items are found by
    their external ids. `columns` has the user column of `features`. Nothing here goes
    through users one by one.
    """
    location: Any = check_given("the store of the users", data, "name it by data=", code="missing-store")
    store = opened_store(location)
    ids = _ids(users, store)
    rows = store.rows_of(ids)
    if bool((rows < 0).any()) and unknown_users != "popular":
        lost = ids.filter(pl.Series(rows < 0))
        if unknown_users == "error" or len(lost) == len(ids):
            shown = ", ".join(map(repr, lost.head(5).to_list())) + " ..." * (len(lost) > 5)
            raise UserError(
                f"{len(lost):,} of {len(ids):,} users are not in {str(store.path)!r}: {shown}{_left_out(store)}; "
                "unknown_users='popular' gives them the most popular items, 'skip' leaves them out",
                code="unknown-user",
            )
        ids, rows = ids.filter(pl.Series(rows >= 0)), rows[rows >= 0]
    return read_rows(rows, ids, store, catalog, options, columns=columns, features=features, reads=reads)


def _left_out(store: Store) -> str:
    """Words on the users that a store's preparation left out, for a message;
    empty where there were none."""
    filters = store.manifest.get("filters") or [{}]
    users = [step.get("users", 0) for step in filters]
    if users[0] <= users[-1]:
        return ""
    steps = zip(filters[1:], users, strict=False)
    names = dict.fromkeys(step["filter"] for step, before in steps if step["users"] < before)
    return f" (its preparation left out {users[0] - users[-1]:,} of {users[0]:,} users, by {', '.join(names)})"


def _ids(users: Users, store: Store) -> pl.Series:
    """The ids as a Series named user, each once. Raises `UserError` for what is no list of ids."""
    require_some(store.num_users, f"users in {str(store.path)!r}")
    require_list("users", users, f"user ids, such as [{store.user_ids[0]!r}]", code="not-user-ids")
    if isinstance(users, Sequence):
        require_one_type(users)
    try:
        ids = users if isinstance(users, pl.Series) else pl.Series(values=users, strict=False)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        ids = pl.Series(dtype=pl.Object)
    ids = ids.cast(pl.String) if isinstance(ids.dtype, (pl.Categorical, pl.Enum)) else ids
    if ids.dtype != pl.Object:
        require_some(len(ids), "users")
        ids = values.without_fractions(ids) if isinstance(users, pl.Series) else ids
        values.refuse(ids.is_null(), ids, "users", "missing ids", code="missing-ids")
    text = store.user_ids.dtype == pl.String
    if ids.dtype != pl.String if text else not ids.dtype.is_integer():
        kind = "strings" if text else "whole numbers"
        raise UserError(
            f"the users' ids in {str(store.path)!r} are {kind} (such as {store.user_ids[0]!r}); given: {ids.dtype} "
            f"({brief(users, 80)})",
            code="wrong-id-type",
        )
    values.refuse(ids.is_duplicated(), ids, "users", "ids that are there twice", code="repeated-ids")
    return ids.alias("user")


def read_rows(
    rows: Int[np.ndarray, "U"],
    users: pl.Series,
    store: Store,
    catalog: Catalog,
    options: ListOptions,
    *,
    reads: Reads,
    columns: EventColumns = EventColumns(),
    features: FeatureInput = None,
) -> RequestBatch:
    """The users in these rows of a store with all their events there, none where a row is -1.

    Items are as the model's catalogue numbers them, policies as in `batch_of`. Raises `UserError`
    for a store that encodes features otherwise than the model's items.
    """
    known_rows = rows >= 0
    lengths = np.zeros(len(rows), np.int64)
    histories = store.events.take(rows[known_rows])
    lengths[known_rows] = histories.lengths
    number = catalog.lookup(store.catalog.ids)
    if not (number >= 0).any():
        what = f"items of {str(store.path)!r}"
        raise values.none_known(store.catalog.ids, what, "the model's catalogue", catalog.ids)
    seconds = histories.seconds
    times = None if seconds is None else seconds.flat()
    known: HistoryFeatures | None = None
    names: tuple[str, ...] = ()
    if reads.names and store.features is not None:
        require_same_encoding(str(store.path), store.features, reads.encoder)
        user_features = store.user_features if "user" in reads.names else None  # encoded when they are first asked for
        names = reads.columns("event", "request")
        of_users = None if user_features is None else FeatureRows(user_features, rows)
        known = HistoryFeatures(store.event_features, store.request_features, of_users).of_events(
            histories.items.places()
        )
    flat = FlatEvents(users, lengths, number[histories.items.flat()], times, features=known, columns=names)
    return batch_of(flat, columns, options, features=features, reads=reads)
