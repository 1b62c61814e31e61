"""What is known beside the items of a request: columns of a table of histories, and `features=` of users and requests.

    fr.recommend(run, histories=table)                                  columns `rating`, `device`: of past events
    fr.recommend(run, [[3, 7]], features=[{"country": "is", "device": "phone", "asked_at": "2024-06-01T20:00"}])
    fr.recommend(run, users=[5], features={5: {"device": "phone"}})     over what the store knows of the user

All of it is encoded by the encoder of the run. What nobody gives is missing, and told; a name that the model does not
read, and a value that its field cannot hold, are refused.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Int

from fullrank.core.errors import UserError, brief, no_effect, no_such
from fullrank.core.jagged import Jagged
from fullrank.data import values
from fullrank.data.column_names import EventColumns
from fullrank.data.events.feature_columns import FeatureColumns, encode
from fullrank.data.events.feature_files import OF_EVENTS
from fullrank.data.events.features import FeatureEncoder, Role, encoder_of
from fullrank.data.features import Encoded, FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.frames import InputTable
from fullrank.data.impressions.schema import AnyField

FeatureInput = Mapping[Any, Mapping[str, Any]] | Sequence[Mapping[str, Any] | None] | Any | None
"""Features of users and requests: {user: {name: value}}, a mapping for each history, or a DataFrame or the path of a
file with a row for each user."""
ASKED_AT = "asked_at"
"""What a request's own time is called."""
FORMS = "give {user: {name: value}}, a list with a mapping for each history, a DataFrame, or the path of a file"


@dataclass(frozen=True)
class OtherReads:
    """What another model, such as the ranker of a cascade, reads of the same histories and requests."""

    events: tuple[str, ...] = ()
    """Features of events."""
    requests: tuple[str, ...] = ()
    """What `features=` may name for it."""


@dataclass(frozen=True)
class Reads:
    """What a model reads of a history beside its items."""

    timed: bool = False
    """When events happened."""
    encoder: FeatureEncoder | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Features by role, with those that are made of times; empty where it reads none."""
    other: tuple[str, ...] = ()
    """What another model reads of requests."""
    now: int | None = None
    """When a request is asked of which nobody says it, seconds since 1970; None goes by the clock."""
    people: str | None = None
    """A file with what `features=` says of everybody (`history_parts.UserTable`)."""

    @classmethod
    def of(cls, model: Any, encoder: FeatureEncoder | None, other: OtherReads = OtherReads()) -> Reads:
        """What `model` (a `models.Model`) reads, by the encoder of its items' catalogue, and what another one does."""
        names = model.reads_features or {}
        own = names.get("event", ())
        more = {"event": tuple(dict.fromkeys([*own, *other.events]))} if other.events else {}
        return cls(model.reads_times, encoder, {**names, **more}, other.requests)

    @property
    def when(self) -> bool:
        """Whether the time of a request is read."""
        return len(self.columns("request")) < len(self.names.get("request", ()))

    @property
    def of_requests(self) -> tuple[str, ...]:
        """What `features=` may name."""
        own = (*self.columns("user", "request"), *([ASKED_AT] if self.when else []))
        return tuple(dict.fromkeys([*own, *self.other]))

    def fields(self, *roles: Role) -> tuple[AnyField, ...]:
        """Those of some roles that are read."""
        read, known = self.columns(*roles), () if self.encoder is None else self.encoder.schema.declared
        return tuple(one for one in known if one.name in read)

    def columns(self, *roles: Role) -> tuple[str, ...]:
        """Those that are columns of a table, of some roles."""
        declared = {} if self.encoder is None else {one.name for one in self.encoder.schema.declared}
        return tuple(name for role in roles for name in self.names.get(role, ()) if name in declared)

    def encode(self, role: Role, frame: pl.DataFrame, what: str) -> FeatureTable | None:
        """The features of a role, missing where the frame has no column; None for a role that is not read.

        Raises `UserError` for values that a field cannot hold; `what` names the frame.
        """
        if self.encoder is None or role not in self.names:
            return None
        own = encoder_of(self.encoder, role)
        read = set(frame.columns) & set(self.columns(role))
        absent = [one.name for one in own.schema.declared if one.name not in read]
        return FeatureTable.of(own.encode(frame.with_columns(pl.lit(None).alias(name) for name in absent), what))

    def of_events(self, frame: pl.DataFrame, what: str) -> HistoryFeatures | None:
        """The features beside the events of a frame; None where none are read."""
        if not self.names:
            return None
        return HistoryFeatures(self.encode("event", frame, what), self.encode("request", frame, what))

    def coded(self, columns: FeatureColumns, rows: int) -> HistoryFeatures | None:
        """The same of coded columns."""
        if self.encoder is None or not self.names:
            return None
        whole = columns.with_missing(self.encoder.schema.of_events, rows)
        event, request = (encode(whole, encoder_of(self.encoder, role)) if role in self.names else None
                          for role in OF_EVENTS)  # fmt: skip
        return HistoryFeatures(event, request)

    def require_some(self) -> None:
        """Raise `UserError` where `features=` has nothing to say."""
        if not self.of_requests:
            why = "features of events alone, which are columns of a table of histories" if self.names else "none"
            raise no_effect("features", f"since this model reads {why}")

    def rows_of(self, users: pl.Series, column: str) -> pl.DataFrame | None:
        """The rows of `people` of some users, whose ids are in `column`; None where there are none."""
        if self.people is None:
            return None
        whole = pl.scan_parquet(self.people, glob=False)
        alike = (whole.collect_schema()[column] == pl.String) == (users.dtype == pl.String)
        # ids of another kind are refused by whoever reads the rows
        own = whole.filter(pl.col(column).is_in(users.implode())) if alike else whole.head(5)
        frame = own.collect(engine="streaming")
        return frame if len(frame) else None

    def lacking(self, columns: Sequence[str], known_users: bool = False, said: Collection[str] = ()) -> str:
        """What the model reads and is not given, for a note; empty where nothing is.

        `columns` are those of the events, `said` those of `features=`; `known_users`: others of users are known.
        """
        events = [name for name in self.columns("event", "request") if name not in columns]
        asked = [name for name in self.columns("request") if name not in said]
        users = [] if known_users else [name for name in self.columns("user") if name not in said]
        parts = {"of past events": events, "of the request": asked, "of users": users}
        return "; ".join(f"{', '.join(names)} {whose}" for whose, names in parts.items() if names)


@dataclass(frozen=True)
class Given:
    """What `features=` says, a row for each history."""

    frame: pl.DataFrame
    said: Mapping[str, Bool[np.ndarray, "U"]]
    """Of whom each column says something (a value, or that it is missing)."""
    what: str
    typed: bool = True

    @classmethod
    def read(
        cls, features: FeatureInput, reads: Reads, users: pl.Series, columns: EventColumns, *, ordered: bool
    ) -> Given:
        """Raises `UserError` for what is no mapping, list or table, for names that are not read, and for others' users.

        A table may have more columns and users. `ordered`: whether users stand in the caller's order.
        """
        reads.require_some()
        if isinstance(features, Mapping):
            known = set(users)
            other = next((user for user in features if user not in known), None)
            if other is not None:
                raise UserError(f"features are given of {brief(other)}, who has no history here", code="unknown-user")
            return cls._of_rows([features.get(user) for user in users], reads)
        if isinstance(features, Sequence) and not isinstance(features, str | bytes):
            if not ordered:
                raise UserError(
                    "features: histories from a table have no order to go by; give {user: {name: value}} or a table",
                    code="table-has-no-order",
                )
            if len(features) != len(users):
                raise UserError(
                    f"features: {len(features)} for {len(users)} histories; give one mapping for each",
                    code="list-count-differs",
                )
            return cls._of_rows(list(features), reads)
        return cls._of_table(features, reads, users, columns)

    @classmethod
    def _of_rows(cls, rows: list[Any], reads: Reads) -> Given:
        allowed, said, columns = reads.of_requests, dict[str, Any](), [pl.Series("row", np.arange(len(rows)))]
        for one in rows:
            if not (one is None or isinstance(one, Mapping)):
                raise UserError(f"features={brief(one, 80)} of a history: {FORMS}", code="not-features")
            strange = next((name for name in one or () if name not in allowed), None)
            if strange is not None:
                events = strange in reads.columns("event")
                raise no_such(
                    "features: the model reads of users and requests no", str(strange), allowed, "it reads",
                    "; this one is of events: give a table of histories with its column" if events else "",
                    code="unknown-feature",
                )  # fmt: skip
        for name in allowed:
            said[name] = np.array([one is not None and name in one for one in rows])
            if said[name].any():
                columns.append(_column(name, [None if one is None else one.get(name) for one in rows]))
        return cls(pl.DataFrame(columns), {name: who for name, who in said.items() if who.any()}, "features")

    @classmethod
    def _of_table(cls, table: Any, reads: Reads, users: pl.Series, columns: EventColumns) -> Given:
        name = columns.names[0]
        source, there = feature_source(table, reads, name)
        frame = source.read([name, *there])
        source.require_rows(len(frame))
        ids = source.ids(frame, name, text=users.dtype == pl.String)
        values.refuse(ids.is_duplicated(), ids, source.name, "users that are there twice", code="repeated-ids")
        place = values.IdIndex(ids).find(users)
        if not (place >= 0).any():
            raise values.none_known(ids, f"users of {source.name}", "the histories", users)
        at = pl.Series(place).set(pl.Series(place < 0), None)  # a null place gives nulls
        frame = frame.select(pl.col(there).gather(at))
        return cls(frame, dict.fromkeys(there, place >= 0), source.name, source.typed)

    def part(self, some: slice) -> Given:
        """What is said of some histories."""
        return replace(self, frame=self.frame[some], said={name: who[some] for name, who in self.said.items()})

    def asked_at(self, unit: values.Unit, now: int | None) -> Int[np.ndarray, "U"]:
        """When each request is asked, seconds since 1970: now, where nothing is said. Numbers count `unit`."""
        found = np.full(len(self.frame), int(time.time()) if now is None else now)
        if ASKED_AT in self.said:
            column = self.frame[ASKED_AT]
            there = column.is_not_null().to_numpy()
            numbers = column.dtype.is_numeric() or (not self.typed and column.dtype == pl.String)
            if there.any():
                some = column.filter(pl.Series(there))
                unit = unit if numbers else "s"
                found[there] = values.seconds(some, self.what, unit, typed=self.typed)[0]
        return found

    def over(self, known: Encoded | None, role: Role, reads: Reads) -> Encoded | None:
        """The features of a role: `known` (None: nothing), and in their place what is said here."""
        made = reads.encode(role, self.frame, self.what)
        if made is None or not any(name in self.said for name in reads.columns(role)):
            return known
        assert reads.encoder is not None
        own, new = encoder_of(reads.encoder, role), made.take(np.arange(len(self.frame)))
        if known is None:
            return new
        nobody = np.zeros(len(self.frame), bool)
        ids, numbers, lists = (
            [self.said.get(one.name, nobody) for one in kind]
            for kind in (own.categorical, own.numeric, own.multivalued)
        )
        bags = tuple(map(merged, known.bags, new.bags, lists))
        return Encoded(
            _chosen(ids, new.categorical, known.categorical), _chosen(numbers, new.numeric, known.numeric), bags
        )


def _chosen(said: list[Bool[np.ndarray, "U"]], new: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Columns of new rows where something is said, of known ones elsewhere."""
    return np.where(np.stack(said, 1), new, known) if said else known


def merged(known: Jagged, new: Jagged, said: Bool[np.ndarray, "U"]) -> Jagged:
    """New lists where something is said, known ones elsewhere."""
    shift = len(known.values)
    starts, ends = (np.where(said, a + shift, b) for a, b in ((new.starts, known.starts), (new.ends, known.ends)))
    return Jagged(np.concatenate([known.values, new.values]), starts, ends)


def _column(name: str, given: list[Any]) -> pl.Series:
    """Values of one feature. Raises `UserError` for those that one column cannot hold."""
    lists = [isinstance(one, list | tuple | np.ndarray | pl.Series) for one in given if one is not None]
    try:
        column = pl.Series(name, given, strict=False)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        column = pl.Series(name, dtype=pl.Object)
    # polars makes numbers of a date or a truth value among numbers
    mixed = column.dtype.is_numeric() and any(isinstance(one, bool | np.bool_ | datetime.date) for one in given)
    if column.dtype == pl.Object or mixed or 0 < sum(lists) < len(lists):
        shown = next(one for one in given if one is not None)
        raise UserError(
            f"features: {name!r} has values that are not of one kind, or of none that a table has, such as "
            f"{brief(shown, 80)}: give numbers, text, or lists of these",
            code="mixed-features",
        )
    return column


def feature_source(table: Any, reads: Reads, user: str, forms: str = FORMS) -> tuple[InputTable, list[str]]:
    """A table of features, and its columns that are read beside that of the `user`; `forms` may be given in its place.

    Raises `UserError` for what is no table, and for one without such columns.
    """
    try:
        source = InputTable(table, "features")
    except UserError as error:
        if error.code == "not-a-table":
            raise UserError(f"features={brief(table, 80)}: {forms}", code="not-features") from None
        raise
    there = [name for name in reads.of_requests if name in source.columns]
    source.require(user, "name it with user_col=")
    if not there:
        raise no_such(f"{source.name} has no column that the model reads:", ", ".join(reads.of_requests),
                      source.columns, "columns", code="unknown-feature")  # fmt: skip
    return source, there


def missing_note(lacking: str) -> str:
    """The sentence of features that the model reads and nobody gave."""
    return (
        f"the model reads features that are not given, so they count as missing: {lacking} (those of past events are "
        "columns of a table of histories, those of requests and users are given by features=)"
    )


def known_features(
    of_events: HistoryFeatures | None, given: Given | None, reads: Reads, users: int, unit: values.Unit
) -> HistoryFeatures | None:
    """Those of some histories: what is known of their events and users, and over it what `features=` says."""
    if not reads.names:
        return None
    known = of_events or HistoryFeatures()
    own = Given(pl.DataFrame({"row": np.arange(users)}), {}, "features") if given is None else given
    at = own.asked_at(unit, reads.now) if reads.when else None
    if given is None:
        return replace(known, asked_at=at)
    rows = np.arange(users)
    stored = None if known.user is None else known.user.table.take(known.user.rows)
    found = given.over(stored, "user", reads), given.over(None, "request", reads)
    user, asked = (None if one is None else FeatureRows(FeatureTable.of(one), rows) for one in found)
    return replace(known, user=user, asked=asked, asked_at=at)
