"""ServedFeatures: what is known of events, users and requests, from JSON to the arrays of a batch.

Names and values are checked on the event loop (`told`), encoded on the model thread, all of a batch at once (`of`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
import polars as pl

from fullrank.core.errors import in_context
from fullrank.data.events.features import Role
from fullrank.data.features import HistoryFeatures
from fullrank.inference.features import ASKED_AT, Given, Reads, known_features
from fullrank.serving.requests import Ask, Told
from fullrank.serving.rows import Place, Row, RowReader

LARGEST = 1e15
"""What no number is beyond: squares of states that are made of it stay finite."""
ROLES: dict[str, tuple[Role, ...]] = {"event": ("event", "request"), "user": ("user",), "asked": ("user", "request")}
"""What JSON gives the features of -> their roles: an event has those of the request that it answered, too."""
Names = Mapping[str, Collection[str]]
"""Names of features, by the keys of `ROLES`."""


class ServedFeatures:
    """Those that a version `reads`: of the last `most` events, in lists of at most `longest` values."""

    def __init__(self, reads: Reads, most: int, longest: int):
        self.reads, self.most = reads, most
        self.last = slice(-most if reads.names else None, None)
        """What is read of a history: all of it by a model without features, which cuts it itself."""
        self.readers = {of: RowReader(reads.fields(*roles), longest, LARGEST) for of, roles in ROLES.items()}

    def told(
        self, events: Sequence[Row | None], user: Row, asked: Row, *, stored: bool = True, others: Names | None = None
    ) -> Told:
        """Those of events, of their user as stored, and over it of the request.

        `stored` events may be of other versions: what this one does not take is passed over. Of a request it is a
        mistake (`RowMistakes`), but for the names of `others`, without which nothing is.
        """
        known = others or {}
        at_event, at_asked = (None if passed else place for passed, place in (
            (stored or others is None, _of_event), (others is None, _of_request)
        ))  # fmt: skip
        past = self.readers["event"].columns([one or {} for one in events], at_event, known.get("event", ()))
        found = self.readers["user"].columns([user]) | self.readers["asked"].columns(
            [asked], at_asked, known.get("asked", ())
        )
        lacking = [*(self.readers["event"].fields.keys() - past.keys() if events else ()),
                   *(self.readers["asked"].fields.keys() - found.keys())]  # fmt: skip
        return Told(past, {name: value for name, (value,) in found.items()}, tuple(sorted({*lacking})))

    def of(self, asks: Sequence[Ask]) -> HistoryFeatures | None:
        """Those of requests that are answered together, beside their last `most` items; None where none are read."""
        if not self.reads.names:
            return None
        told, nothing = [ask.told for ask in asks], [[None] * len(ask.items[self.last]) for ask in asks]
        past, rows = {name for one in told for name in one.events}, sum(map(len, nothing))
        events = {
            name: list(chain.from_iterable(one.events.get(name, none) for one, none in zip(told, nothing, strict=True)))
            for name in past
        }
        asked = {name: [one.asked.get(name) for one in told] for name in self.readers["asked"].fields}
        times = pl.Series(ASKED_AT, [None if ask.time is None else int(ask.time) for ask in asks], dtype=pl.Int64)
        frame = self.readers["asked"].table(asked, len(asks)).with_columns(times)
        given = Given(frame, dict.fromkeys(frame.columns, np.ones(len(asks), bool)), "the request")
        with in_context("", public=True):
            beside = self.reads.of_events(self.readers["event"].table(events, rows), "the request") if past else None
            return known_features(beside, given, self.reads, len(asks), "s")


def _of_event(place: int) -> Place:
    return "history", place, "features"


def _of_request(_: int) -> Place:
    return ("features",)
