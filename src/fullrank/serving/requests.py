"""One request for a list, read into arrays (`Query`), and what the model thread gives for it (`Answer`).

External ids become numbers of the catalogue (`ItemNumbers`). Features are checked on the event loop
(`ServedFeatures.read`) and encoded on the model thread, all of a batch at once
(`ServedFeatures.batch`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float64, Int

from fullrank.core.errors import UserError, in_context
from fullrank.core.jagged import Jagged
from fullrank.data.events.feature_files import OF_EVENTS
from fullrank.data.events.features import FeatureEncoder, Role, encoder_of
from fullrank.data.features import Encoded, FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.impressions.numeric import transform_numbers
from fullrank.data.impressions.schema import AnyField, Numeric
from fullrank.data.impressions.vocabulary import MISSING
from fullrank.inference.features import Reads
from fullrank.inference.list_options import ListChoices
from fullrank.models import AS_TRAINED, Budget
from fullrank.serving.explain import ListExplanation
from fullrank.serving.rows import Location, Row, RowReader, lists_of_texts, texts_of

NONE = np.zeros(0, np.int64)
MOST_KNOWN = 1 << 16
"""Values of a field whose ids are remembered."""
LARGEST = 1e15
"""Bound of all numbers: squares of states that are made of them stay finite."""
ROLES: dict[str, tuple[Role, ...]] = {
    "event": ("event", "request"),
    "user": ("user",),
    "request": ("user", "request"),
}
"""Where JSON has features -> their roles: an event has those of the request that it answered, too."""
Names = Mapping[str, Collection[str]]
"""Names of features, by the keys of `ROLES`."""
Rows = Sequence[Int[np.ndarray, "_"]]
"""Arrays, one of each history or of each request."""
_WHOLE = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class JsonFeatures:
    """The features of one request, as JSON gave them."""

    events: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """A value for each event: of those that a model reads, once they are a `Query`'s."""
    request: Row = field(default_factory=dict)
    """Features of the user and of the request."""
    missing: Sequence[str] = ()
    """Features that the model reads and nobody gave."""

    def at(self, positions: Sequence[int]) -> JsonFeatures:
        """The features with those of the events at these positions alone."""
        events = {name: [values[position] for position in positions] for name, values in self.events.items()}
        return replace(self, events=events)


NO_FEATURES = JsonFeatures()


@dataclass(slots=True)
class Query:
    """One request, its items by their numbers in the catalogue of the version that answers."""

    items: Int[np.ndarray, "n"]
    """The history, oldest first, without items that the catalogue does not have."""
    options: ListChoices
    times: Int[np.ndarray, "n"] | None = None
    """Seconds since 1970, for models that read them."""
    excluded: Int[np.ndarray, "_"] = field(default_factory=lambda: NONE)
    allowed: Int[np.ndarray, "_"] | None = None
    """The only items that may be shown; None allows all."""
    budget: Budget = AS_TRAINED
    explain: bool = False
    untimed: bool = False
    """Whether the model reads times and the request had none."""
    ranked: bool = False
    """Whether the ranker puts the candidates in order."""
    user: str | None = None
    fields: Row = field(default_factory=dict)
    """Fields of the user and of this request for the ranker."""
    features: JsonFeatures = NO_FEATURES
    time: float | None = None
    """Time of the request, seconds since 1970; None: now."""

    @property
    def k(self) -> int:
        return self.options.k


@dataclass(slots=True)
class Answer:
    """The list of one request, best first."""

    ids: list[int]
    scores: list[float]
    source: str = "model"
    """`model`, or `popular` where the history holds no item that the model knows."""
    steps: int | None = None
    """Steps that a reasoner took, where it stops by itself."""
    ranked: bool = False
    explanation: ListExplanation | None = None
    """Reasons, for a request that asks for them."""


def jagged(rows: Rows) -> Jagged:
    """Arrays as the rows of one ragged array."""
    return Jagged.from_lengths(np.concatenate(rows), np.array([len(row) for row in rows], np.int64))


class ItemNumbers:
    """External item ids as they come in JSON -> numbers in the catalogue.

    A number and its text are one id: clients in JavaScript send either. Snapshots of one version
    share the table of the run's items.
    """

    def __init__(self, ids: Sequence[Any]):
        self.ids, self.whole = ids, bool(ids) and isinstance(ids[0], int)
        self._of_run = {item: number for number, item in enumerate(ids)}
        self._added: dict[Any, int] = {}

    def with_added(self, ids: Sequence[Any]) -> ItemNumbers:
        """The numbers with those of other ids behind those of the run."""
        extended = copy(self)
        extended._added = {item: number for number, item in enumerate(ids, len(self._of_run))}
        return extended

    def get(self, item: int | str) -> int:
        """The number of one id; -1 where it is not known."""
        key = self.typed(item)
        number = self._of_run.get(key)
        return self._added.get(key, -1) if number is None else number

    def typed(self, item: int | str) -> int | str:
        """An id in the catalogue's type; a text that is no number stays a text, which a catalogue
        of numbers does not know."""
        if self.whole:
            return whole_number(item) if isinstance(item, str) else item
        return item if isinstance(item, str) else str(item)

    def known(self, items: Sequence[int | str]) -> Int[np.ndarray, "n"]:
        """The numbers of the ids that are known, in the order given."""
        kind, of_run, added = int if self.whole else str, self._of_run.get, self._added.get
        keys = [item if type(item) is kind else self.typed(item) for item in items]  # a request has up to thousands
        numbers = (number if (number := of_run(key)) is not None else added(key) for key in keys)
        return np.array([number for number in numbers if number is not None], np.int64)


def whole_number(text: str) -> int | str:
    """The whole number that a text spells in ASCII; the text itself where it spells none, or none of 64 bits."""
    digits = text.strip()
    if len(digits) > 20 or not _WHOLE.fullmatch(digits):
        return text
    return number if -(2**63) <= (number := int(digits)) < 2**63 else text


def check_most(name: str, count: int, most: int) -> None:
    """Raise `UserError` where a request asks for more than the service gives."""
    if count > most:
        subject = f"{name} is {count:,}" if name in ("k", "limit") else f"there are {count:,} {name}"
        raise UserError(f"{subject}, and this service takes at most {most:,}", code="too-many", public=True)


class ServedFeatures:
    """Features that a version `reads`: of the last `most` events, in lists of at most `longest` values."""

    def __init__(self, reads: Reads, most: int, longest: int):
        self.reads, self.most = reads, most
        self.last = slice(-most if reads.names else None, None)
        """The part of a history that is read: all of it by a model without features, which cuts it itself."""
        self._known: dict[str, dict[str | None, int]] = {}
        self.readers = {source: RowReader(reads.fields(*roles), longest, LARGEST) for source, roles in ROLES.items()}

    def read(
        self,
        events: Sequence[Row | None],
        user: Row,
        request: Row,
        *,
        stored: bool = True,
        others: Names | None = None,
    ) -> JsonFeatures:
        """The features of events and of a request: those of the user as stored, where the request gives no others.

        `stored` events may have been made for other versions: what this one does not take is passed
        over. In a request it is a mistake (`RowMistakes`), unless `others` has the name. Without
        `others` nothing is a mistake.
        """
        known = others or {}
        of_events, of_user, of_request = self.readers.values()
        at_event = None if stored or others is None else _in_event
        past = of_events.columns([row or {} for row in events], at_event, known.get("event", ()))
        values = of_user.columns([user]) | of_request.columns(
            [request], None if others is None else _in_request, known.get("request", ())
        )
        missing = {*of_request.fields} - values.keys()
        if events:
            missing |= of_events.fields.keys() - past.keys()
        return JsonFeatures(past, {name: value for name, (value,) in values.items()}, tuple(sorted(missing)))

    def batch(self, queries: Sequence[Query]) -> HistoryFeatures | None:
        """The features beside the last `most` items of requests that are answered together; None
        where none are read."""
        if not self.reads.names:
            return None
        lengths = [len(query.items[self.last]) for query in queries]
        events = [query.features.events for query in queries]
        past = {  # a column of the values of all events, request after request
            name: list(
                chain.from_iterable(
                    columns.get(name) or [None] * length for columns, length in zip(events, lengths, strict=True)
                )
            )
            for name in set().union(*events)
        }
        current = {
            name: [query.features.request.get(name) for query in queries] for name in self.readers["request"].fields
        }
        rows = np.arange(len(queries))
        with in_context("", public=True):
            event, request = (self._table(role, past, sum(lengths)) if past else None for role in OF_EVENTS)
            user, answered = (
                None if (table := self._table(role, current, len(queries))) is None else FeatureRows(table, rows)
                for role in ("user", "request")
            )
        at = None
        if self.reads.when:
            now = time.time()
            at = np.array([int(now if query.time is None else query.time) for query in queries])
        return HistoryFeatures(event, request, user, answered, at)

    def _table(self, role: Role, columns: Mapping[str, list[Any]], rows: int) -> FeatureTable | None:
        """Values from JSON, as the run's encoder has them: text by text, since a
        table costs more than an answer."""
        if self.reads.encoder is None or role not in self.reads.names:
            return None
        encoder, none = encoder_of(self.reads.encoder, role), [None] * rows
        ids = np.zeros((rows, len(encoder.categorical)), np.int32)
        numbers = np.zeros((rows, len(encoder.numeric)), np.float32)
        for column, category in enumerate(encoder.categorical):
            values = columns.get(category.name, none)
            if isinstance(category, Numeric):
                ids[:, column] = encoder.bucket_ids(category, _numbers(values))
            else:
                ids[:, column] = self._ids(encoder, category, texts_of(values))
        for column, number in enumerate(encoder.numeric):
            fitted, raw = encoder.fitted.get(number.name, {}), _numbers(columns.get(number.name, none))
            numbers[:, column] = transform_numbers(number, fitted, raw, "the request")
        bags = []
        for several in encoder.multivalued:
            lists = lists_of_texts(several.separator, columns.get(several.name, none))
            texts = [[text for text in row or () if text][: several.max_length] for row in lists]
            flat = self._ids(encoder, several, chain.from_iterable(texts))
            bags.append(Jagged.from_lengths(np.array(flat, np.int32), np.array(list(map(len, texts)), np.int64)))
        return FeatureTable.of(Encoded(ids, numbers, tuple(bags)))

    def _ids(self, encoder: FeatureEncoder, field: AnyField, texts: Iterable[str | None]) -> list[int]:
        """The ids of values; each is looked up once."""
        texts = list(texts)
        known = self._known.setdefault(field.name, {None: MISSING, "": MISSING})
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            if len(known) > MOST_KNOWN:
                del self._known[field.name]
                return self._ids(encoder, field, texts)
            known |= zip(new, encoder.lookup(field).ids(pl.Series(new, dtype=pl.String)).tolist(), strict=True)
        return [known[text] for text in texts]


def _numbers(values: Sequence[Any]) -> Float64[np.ndarray, "R"]:
    """Numbers with NaN where one is missing."""
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _in_event(position: int) -> Location:
    return "history", position, "features"


def _in_request(_: int) -> Location:
    return ("features",)
