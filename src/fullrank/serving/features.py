"""ServedFeatures: what is known of events, users and requests, from JSON to the arrays of a batch.

Names and values are checked on the event loop (`told`), encoded on the model thread, all of a batch at once (`of`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float64

from fullrank.core.errors import in_context
from fullrank.core.jagged import Jagged
from fullrank.data.events.feature_files import OF_EVENTS
from fullrank.data.events.features import FeatureEncoder, Role, encoder_of
from fullrank.data.features import Encoded, FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.impressions.numeric import transform_numbers
from fullrank.data.impressions.schema import AnyField, Numeric
from fullrank.data.impressions.vocabulary import MISSING
from fullrank.inference.features import Reads
from fullrank.serving.requests import Ask, Told
from fullrank.serving.rows import Place, Row, RowReader, lists_of_texts, texts_of

MOST_KNOWN = 1 << 16
"""Values of a field whose ids are kept."""
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
        self._known: dict[str, dict[str | None, int]] = {}
        self.readers = {of: RowReader(reads.fields(*roles), longest, LARGEST) for of, roles in ROLES.items()}

    def told(
        self, events: Sequence[Row | None], user: Row, asked: Row, *, stored: bool = True, others: Names | None = None
    ) -> Told:
        """Those of events, of their user as stored, and over it of the request.

        `stored` events may be of other versions: what this one does not take is passed over. Of a request it is a
        mistake (`RowMistakes`), but for the names of `others`, without which nothing is.
        """
        known = others or {}
        at_event = None if stored or others is None else _of_event
        at_asked = None if others is None else _of_request
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
        told, lengths = [ask.told for ask in asks], [len(ask.items[self.last]) for ask in asks]
        past: dict[str, list[Any]] = {
            name: list(chain.from_iterable(
                one.events.get(name) or [None] * many for one, many in zip(told, lengths, strict=True)
            ))
            for name in {name for one in told for name in one.events}
        }  # fmt: skip
        asked = {name: [one.asked.get(name) for one in told] for name in self.readers["asked"].fields}
        rows, now = np.arange(len(asks)), int(time.time())
        with in_context("", public=True):
            event, request = (self._table(role, past, sum(lengths)) if past else None for role in OF_EVENTS)
            user, answered = (
                None if (table := self._table(role, asked, len(asks))) is None else FeatureRows(table, rows)
                for role in ("user", "request")
            )
        at = np.array([now if ask.time is None else int(ask.time) for ask in asks]) if self.reads.when else None
        return HistoryFeatures(event, request, user, answered, at)

    def _table(self, role: Role, columns: Mapping[str, list[Any]], rows: int) -> FeatureTable | None:
        """Values from JSON, as the run's encoder has them: text by text, since a table costs more than an answer."""
        if self.reads.encoder is None or role not in self.reads.names:
            return None
        encoder, none = encoder_of(self.reads.encoder, role), [None] * rows
        ids = np.zeros((rows, len(encoder.categorical)), np.int32)
        numbers = np.zeros((rows, len(encoder.numeric)), np.float32)
        for at, field in enumerate(encoder.categorical):
            values = columns.get(field.name, none)
            if isinstance(field, Numeric):
                ids[:, at] = encoder.bucket_ids(field, _numbers(values))
            else:
                ids[:, at] = self._ids(encoder, field, texts_of(values))
        for at, one in enumerate(encoder.numeric):
            fitted = encoder.fitted.get(one.name, {})
            numbers[:, at] = transform_numbers(one, fitted, _numbers(columns.get(one.name, none)), "the request")
        bags = []
        for several in encoder.multivalued:
            lists = lists_of_texts(several.separator, columns.get(several.name, none))
            kept = [[text for text in one or () if text][: several.max_length] for one in lists]
            flat = self._ids(encoder, several, list(chain.from_iterable(kept)))
            bags.append(Jagged.from_lengths(np.array(flat, np.int32), np.array(list(map(len, kept)), np.int64)))
        return FeatureTable.of(Encoded(ids, numbers, tuple(bags)))

    def _ids(self, encoder: FeatureEncoder, field: AnyField, texts: Sequence[str | None]) -> list[int]:
        """The ids of values; each is looked up once."""
        known = self._known.setdefault(field.name, {None: MISSING, "": MISSING})
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            if len(known) > MOST_KNOWN:
                known = self._known[field.name] = {None: MISSING, "": MISSING}
                return self._ids(encoder, field, texts)
            known |= zip(new, encoder.lookup(field).ids(pl.Series(new, dtype=pl.String)).tolist(), strict=True)
        return [known[text] for text in texts]


def _numbers(values: Sequence[Any]) -> Float64[np.ndarray, "R"]:
    """NaN where missing."""
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _of_event(place: int) -> Place:
    return "history", place, "features"


def _of_request(_: int) -> Place:
    return ("features",)
