"""Evaluation of recommendations made elsewhere: a table of user, item and rank (or score) on the users of a store.

    evaluate_lists("recommendations.parquet", Store.open("data/shop"), "test", Evaluation())

The numbers are those that a run would get for the same lists: same users, targets, metrics and
intervals, so that `compare` pairs them with a run's. A user without a list gets an empty one, since
leaving such users out would favour who answers only the easy ones. An item that the store does not
have takes its place and hits nothing. Lists are taken as they are: items of the user's own history,
which `seen=exclude` keeps out of a run's lists, are counted and stay.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from fullrank.core.checks import check_one_way
from fullrank.core.errors import UserError, no_effect
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.data import values
from fullrank.data.events.store import Store
from fullrank.data.frames import InputTable
from fullrank.data.histories import EvalSet
from fullrank.data.values import TextIndex
from fullrank.evaluation.result import EvaluationResult, merge
from fullrank.evaluation.retrieval import longest_list, rows_of_lists, users_and_protocol
from fullrank.evaluation.spec import Evaluation
from fullrank.metrics import RankedIds, match

USERS, ITEMS = ("user_id", "user"), ("item_id", "item")
"""Columns that are taken where none is named: those of events, and those that `recommend` gives."""
OF_MODELS = ("protocol", "sampled", "reasoning", "decoding", "drop", "popularity_discount")
"""Settings of an evaluation that a model is needed for, unless they are at their defaults."""


def evaluate_lists(
    lists: Any,
    store: Store,
    split: str,
    spec: Evaluation,
    *,
    user_col: str | None = None,
    item_col: str | None = None,
    rank_col: str | None = None,
    score_col: str | None = None,
) -> EvaluationResult:
    """Metrics of lists, one for each user, on the users of a split (`validation` or `test`) of a store.

    The order is that of the column `rank_col` (`rank`), the smallest first, else that of
    `score_col` (`score`), the largest first; equal ones keep the order of rows. Raises `UserError`
    for what is no such table, an item that stands twice in a list, a setting that needs a model,
    and where no user or no item is known.
    """
    for name in OF_MODELS:
        if getattr(spec, name) != Evaluation.model_fields[name].default:
            raise no_effect(name, "without a model, which made no lists here")
    users, protocol = users_and_protocol(None, store, split, spec)
    source = InputTable(lists, "the lists")
    user, item = (_column(source, *words) for words in ((user_col, USERS, "user_col"), (item_col, ITEMS, "item_col")))
    order, rising = _order_column(source, rank_col, score_col)
    frame = source.read([user, item, order])
    source.require_rows(len(frame))
    user_ids, item_ids = (
        source.ids(frame, name, text=known.dtype == pl.String).cast(pl.String)
        for name, known in ((user, store.user_ids), (item, store.catalog.ids))
    )
    pairs = pl.DataFrame({"user": user_ids, "item": item_ids})
    if len(repeated := pairs.filter(pairs.is_duplicated())):
        user, item = repeated.row(0)
        raise UserError(
            f"{repeated['user'].n_unique():,} lists of {source.name} hold an item twice, such as {item!r} for "
            f"{user!r}: keep one of them",
            code="repeated-items",
        )
    ranks = values.finite_numbers(frame[order], source.name)
    owner = _find(user_ids, store.user_ids, f"users of {source.name}", store)
    ids = _find(item_ids, store.catalog.ids, f"items of {source.name}", store)
    rows = np.lexsort((ranks if rising else -ranks, owner))  # stable: equal ones keep their order
    table, facts = _padded_lists(owner[rows], ids[rows], users, longest_list(spec, store.num_items), store.num_items)
    if facts["users_without_list"] == len(users):
        raise UserError(
            f"none of the {len(users):,} users of the split {split!r} has a list in {source.name}",
            code="no-common-users",
        )
    facts["source"] = str(lists) if isinstance(lists, str | os.PathLike) else source.name
    facts["order"] = order
    facts["users_not_in_store"] = int(user_ids.filter(pl.Series(owner < 0)).n_unique())
    return merge([rows_of_lists(users, protocol | {"lists": facts}, store, spec, table)])


def _column(source: InputTable, named: str | None, usual: tuple[str, ...], keyword: str) -> str:
    """The column that is named, else the first of the usual ones that the table has."""
    name = named or next((column for column in usual if column in source.columns), usual[0])
    source.require(name, f"name it by {keyword}=")
    return name


def _order_column(source: InputTable, rank: str | None, score: str | None) -> tuple[str, bool]:
    """The column that lists are put in order by, and whether its smallest value stands first."""
    check_one_way({"rank_col=": rank, "score_col=": score}, code="given-twice")
    if score is not None or (rank is None and "rank" not in source.columns and "score" in source.columns):
        return _column(source, score, ("score",), "score_col"), False
    name = rank or "rank"
    source.require(name, "name it by rank_col=, or a column of scores by score_col=")
    return name, True


def _find(wanted: pl.Series, ids: pl.Series, what: str, store: Store) -> Int[np.ndarray, "n"]:
    """Rows of ids, compared as text; -1 where there is none. Raises `UserError` where
    the store knows none of them."""
    rows = TextIndex(ids.cast(pl.String)).find(wanted).astype(np.int64)
    if not (rows >= 0).any():
        raise values.none_known(wanted, what, repr(str(store.path)), ids)
    return rows


def _padded_lists(
    owner: Int[np.ndarray, "n"], ids: Int[np.ndarray, "n"], users: EvalSet, longest: int, items: int
) -> tuple[RankedIds, JsonObject]:
    """The lists of the evaluated users, -1 where a place is empty or its item unknown, and counts for the protocol.

    Rows are in order of (owner, place).
    """
    at = np.searchsorted(users.users, owner).clip(max=len(users) - 1)
    evaluated = users.users[at] == owner
    at, ids = at[evaluated], ids[evaluated]
    lengths, full = np.bincount(at, minlength=len(users)), min(longest, items)
    table = Jagged.from_lengths(ids.astype(np.int32), lengths).padded(longest, -1)
    seen = users.histories.items
    return table, {
        "users_without_list": int((lengths == 0).sum()),
        "shorter": int(((lengths > 0) & (lengths < full)).sum()),
        "unknown_items": int(np.minimum(lengths, longest).sum() - (table >= 0).sum()),
        "seen_items": int(match(table, seen).sum()) if seen.lengths.any() else 0,
        "length": full,
    }
