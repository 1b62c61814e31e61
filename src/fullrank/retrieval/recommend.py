"""Histories of external ids in, a long frame (user, item, score, rank) of the caller's DataFrame type out.

No user table is needed, and the ranking is the one that evaluation measures: both come from `retrieval.rank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fullrank.data import values
from fullrank.data.catalog import Catalog
from fullrank.errors import UserError
from fullrank.metrics import Ranking
from fullrank.retrieval.decoding import Decoding
from fullrank.retrieval.dial import Reasoning, dialled, used
from fullrank.retrieval.histories import Asked, Histories, named, read
from fullrank.retrieval.rank import Histories as Flat
from fullrank.retrieval.rank import rank
from fullrank.retrieval.seen import checked
from fullrank.retrieval.settle import rank_settled


def recommend(
    model: Any,
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
    decoding: Decoding | None = None,
) -> Any:
    """The k best items for each history, best first.

    `unknown`: items that the catalogue does not have are left out of the history, or are an error. `empty`: a history
    without known items gets the most popular items, or is an error. `columns` names user, item and time in a frame
    (events are put in order of time where it has that column, else they are read in the order given). A model that
    reads times takes them from there, numbers in `time_unit`; `untimed`: histories without times are an error for such
    a model, or their events count as `even` steps of a day. Returns columns user, item, score, rank (from 1), and title
    where `titles` is asked for and known; polars unless a frame was given. `reasoning` is how much a reasoner thinks
    (an error for a model without one); with adaptive stopping a column `steps` says how long for each user. `decoding`
    is the search among semantic ids (an error for a model that does not generate them).
    """
    check(k, seen, empty)
    asked = read(
        histories, catalog, unknown=unknown, untimed=untimed, columns=columns, time_unit=time_unit,
        timed=getattr(model, "reads_times", False),
    )  # fmt: skip
    dial = reasoning or Reasoning()
    found = lists(model, catalog, asked, k=k, seen=seen, empty=empty, dial=dial, decoding=decoding)
    taken = None if dial.adaptive is None else found.steps
    return asked.give(long(asked.users, found.ids, found.scores, catalog, titles, taken))


@dataclass(frozen=True)
class Lists:
    """The best items of each user; empty places hold -1 / -inf."""

    ids: Int[np.ndarray, "U K"]
    scores: Float[np.ndarray, "U K"]
    steps: Int[np.ndarray, "U"]
    """Reasoning steps where stopping is adaptive, else 0."""


def check(k: int, seen: str, empty: str) -> None:
    """Raise `UserError` for policies that there are not."""
    if k < 1:
        raise UserError(f"k must be at least 1, not {k}")
    checked(seen)
    named("empty", empty, ("popular", "error"))


def lists(
    model: Any, catalog: Catalog, asked: Asked, *, k: int, seen: str, empty: str, dial: Reasoning,
    decoding: Decoding | None = None, device: str = "cpu",
) -> Lists:  # fmt: skip
    """The k best items of each user, or as many as there are; policies as in `recommend`."""
    bare = asked.ends == asked.starts
    if bare.any() and empty == "error":
        raise UserError(
            f"{int(bare.sum())} of {len(asked)} histories hold no item that the model knows; "
            "empty='popular' answers them"
        )
    k_in = min(k, catalog.size)
    ids = np.full((len(asked), k_in), -1, dtype=np.int64)
    scores = np.full((len(asked), k_in), -np.inf, dtype=np.float32)
    steps = np.zeros(len(asked), dtype=np.int64)
    able = np.flatnonzero(~bare | getattr(model, "allows_empty", False))
    with dialled(model, dial):
        if len(able):
            flat = Flat(asked.items, asked.starts[able], asked.ends[able], asked.times)
            found, steps[able] = _ranked(model, flat, k_in, seen, dial, decoding, device)
            ids[able], scores[able] = found.ids, found.scores
    rest = np.setdiff1d(np.flatnonzero(bare), able)
    if len(rest):
        order = np.argsort(-catalog.popularity, kind="stable")[:k_in]
        ids[rest], scores[rest] = order, catalog.popularity[order]
    return Lists(ids, scores, steps)


def _ranked(
    model: Any, h: Flat, k: int, seen: str, dial: Reasoning, decoding: Decoding | None, device: str
) -> tuple[Ranking, np.ndarray | int]:
    """The lists, and each user's steps where stopping is adaptive."""
    how = used(model, dial)
    if how is None or dial.adaptive is None:
        found = rank(
            model, h.items, h.starts, h.ends, k=k, seen=seen, times=h.times, device=device, decoding=decoding
        )  # fmt: skip
        return found, 0
    return rank_settled(
        model, h, k=k, length=how["adaptive"], most=how["steps"], patience=how["patience"], seen=seen, device=device
    )  # fmt: skip


def long(
    users: pl.Series,
    ids: Int[np.ndarray, "U K"],
    scores: Float[np.ndarray, "U K"],
    catalog: Catalog,
    titles: bool,
    steps: Int[np.ndarray, "U"] | None = None,
) -> pl.DataFrame:
    """A row for each filled place: user, item, score, rank, and steps and title where they are given and asked for."""
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
