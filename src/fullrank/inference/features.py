"""Features of a request beside its items: columns of a table of histories, and `features=` of users and requests.

    fr.recommend(run, histories=table)                                  columns `rating`, `device`: of past events
    fr.recommend(run, [[3, 7]], features=[{"country": "is", "device": "phone", "asked_at": "2024-06-01T20:00"}])
    fr.recommend(run, users=[5], features={5: {"device": "phone"}})     over what the store knows of the user

All of it is encoded by the encoder of the run. A feature that nobody gives counts as missing, with
a note; a name that the model does not read, and a value that its field cannot hold, are refused.
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
"""Features of users and requests: {user: {name: value}}, a mapping for each history, or a DataFrame
or the path of a file with a row for each user."""
ASKED_AT = "asked_at"
"""The name of a request's own time."""
FORMS = "give {user: {name: value}}, a list with a mapping for each history, a DataFrame, or the path of a file"


@dataclass(frozen=True)
class OtherReads:
    """Features that another model, such as the ranker of a cascade, reads of the same histories and requests."""

    events: tuple[str, ...] = ()
    """Features of events."""
    requests: tuple[str, ...] = ()
    """Names that `features=` may have for it."""


@dataclass(frozen=True)
class Reads:
    """Times and features that a model reads of a history, beside its items."""

    timed: bool = False
    """Whether it reads when events happened."""
    encoder: FeatureEncoder | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Features by role, with those that are made of times; empty where it reads none."""
    other: tuple[str, ...] = ()
    """Features of requests that another model reads."""
    now: int | None = None
    """Time of requests that name none, seconds since 1970; None goes by the clock."""
    user_table: str | None = None
    """The file of a table `features=` of all users (`history_parts.UserTable`)."""

    @classmethod
    def of(cls, model: Any, encoder: FeatureEncoder | None, other: OtherReads = OtherReads()) -> Reads:
        """The reads of `model` (a `models.Model`), by the encoder of its items'
        catalogue, and of another model."""
        names = model.reads_features or {}
        of_events = names.get("event", ())
        event_names = {"event": tuple(dict.fromkeys([*of_events, *other.events]))} if other.events else {}
        return cls(model.reads_times, encoder, {**names, **event_names}, other.requests)

    @property
    def when(self) -> bool:
        """Whether the time of a request is read."""
        return len(self.columns("request")) < len(self.names.get("request", ()))

    @property
    def of_requests(self) -> tuple[str, ...]:
        """Names that `features=` may have."""
        names = (*self.columns("user", "request"), *([ASKED_AT] if self.when else []))
        return tuple(dict.fromkeys([*names, *self.other]))

    def fields(self, *roles: Role) -> tuple[AnyField, ...]:
        """The declared fields that are read, of these roles."""
        return tuple(field for field in self._declared() if field.name in self.columns(*roles))

    def columns(self, *roles: Role) -> tuple[str, ...]:
        """Names that are columns of a table, of these roles; the others are made of times."""
        declared = {field.name for field in self._declared()}
        return tuple(name for role in roles for name in self.names.get(role, ()) if name in declared)

    def _declared(self) -> Sequence[AnyField]:
        """All features that the run's encoder knows, of any role."""
        return () if self.encoder is None else self.encoder.schema.declared

    def encode(self, role: Role, frame: pl.DataFrame, what: str) -> FeatureTable | None:
        """The features of a role, missing where the frame has no column; None for a role that is not read.

        Raises `UserError` for values that a field cannot hold; `what` names the frame.
        """
        if self.encoder is None or role not in self.names:
            return None
        encoder = encoder_of(self.encoder, role)
        read = set(frame.columns) & set(self.columns(role))
        absent = [field.name for field in encoder.schema.declared if field.name not in read]
        return FeatureTable.of(encoder.encode(frame.with_columns(pl.lit(None).alias(name) for name in absent), what))

    def of_events(self, frame: pl.DataFrame, what: str) -> HistoryFeatures | None:
        """The features beside the events of a frame; None where none are read."""
        if not self.names:
            return None
        return HistoryFeatures(self.encode("event", frame, what), self.encode("request", frame, what))

    def coded(self, columns: FeatureColumns, rows: int) -> HistoryFeatures | None:
        """The features beside the events of coded columns; None where none are read."""
        if self.encoder is None or not self.names:
            return None
        whole = columns.with_missing(self.encoder.schema.of_events, rows)
        encoders = [encoder_of(self.encoder, role) if role in self.names else None for role in OF_EVENTS]
        event, request = (None if encoder is None else encode(whole, encoder) for encoder in encoders)
        return HistoryFeatures(event, request)

    def require_some(self) -> None:
        """Raise `UserError` where the model reads nothing that `features=` may name."""
        if not self.of_requests:
            why = "features of events alone, which are columns of a table of histories" if self.names else "none"
            raise no_effect("features", f"since this model reads {why}")

    def rows_of(self, users: pl.Series, column: str) -> pl.DataFrame | None:
        """The rows of these users in the file `user_table`, whose ids are in
        `column`; None where there are none."""
        if self.user_table is None:
            return None
        whole = pl.scan_parquet(self.user_table, glob=False)
        same_type = (whole.collect_schema()[column] == pl.String) == (users.dtype == pl.String)
        # ids of another kind are refused by whoever reads the rows
        rows = whole.filter(pl.col(column).is_in(users.implode())) if same_type else whole.head(5)
        frame = rows.collect(engine="streaming")
        return frame if len(frame) else None

    def lacking(self, columns: Sequence[str], known_users: bool = False, supplied: Collection[str] = ()) -> str:
        """The features that the model reads and the call does not have, as words for a note; empty where it has all.

        `columns` are those of the events, `supplied` those of `features=`; `known_users`: features
        of users come from elsewhere.
        """
        events = [name for name in self.columns("event", "request") if name not in columns]
        requests = [name for name in self.columns("request") if name not in supplied]
        users = [] if known_users else [name for name in self.columns("user") if name not in supplied]
        groups = {"of past events": events, "of the request": requests, "of users": users}
        return "; ".join(f"{', '.join(names)} {owner}" for owner, names in groups.items() if names)


@dataclass(frozen=True)
class RequestFeatures:
    """The argument `features=` as a frame with a row for each history."""

    frame: pl.DataFrame
    present: Mapping[str, Bool[np.ndarray, "U"]]
    """Users for whom each column was given (a value, or a null)."""
    what: str
    """The frame's name in messages."""
    typed: bool = True

    @classmethod
    def read(
        cls, features: FeatureInput, reads: Reads, users: pl.Series, columns: EventColumns, *, ordered: bool
    ) -> RequestFeatures:
        """Read the argument.

        Raises `UserError` for what is no mapping, list or table, for names that the model does not
        read, and for users without a history.

        A table may have more columns and users. `ordered`: whether users stand in the caller's
        order.
        """
        reads.require_some()
        if isinstance(features, Mapping):
            known = set(users)
            other = next((user for user in features if user not in known), None)
            if other is not None:
                raise UserError(f"features are given of {brief(other)}, who has no history here", code="unknown-user")
            return cls._of_rows([features.get(user) for user in users], reads)
        if isinstance(features, Sequence) and not isinstance(features, str | bytes):
            require_one_each("features", features, len(users), ordered, "{user: {name: value}} or a table")
            return cls._of_rows(list(features), reads)
        return cls._of_table(features, reads, users, columns)

    @classmethod
    def _of_rows(cls, rows: list[Any], reads: Reads) -> RequestFeatures:
        """The features of a list of mappings, one for each history."""
        allowed = reads.of_requests
        for row in rows:
            if not (row is None or isinstance(row, Mapping)):
                raise UserError(f"features={brief(row, 80)} of a history: {FORMS}", code="not-features")
            unknown = next((name for name in row or () if name not in allowed), None)
            if unknown is not None:
                events = unknown in reads.columns("event")
                remedy = "; this one is of events: give a table of histories with its column" if events else ""
                what = "features: the model reads of users and requests no"
                raise no_such(what, str(unknown), allowed, "it reads", remedy, code="unknown-feature")
        rows = [row or {} for row in rows]
        present = {name: np.array([name in row for row in rows]) for name in allowed}
        present = {name: users for name, users in present.items() if users.any()}
        columns = [_column(name, [row.get(name) for row in rows]) for name in present]
        return cls(pl.DataFrame([pl.Series("row", np.arange(len(rows))), *columns]), present, "features")

    @classmethod
    def _of_table(cls, table: Any, reads: Reads, users: pl.Series, columns: EventColumns) -> RequestFeatures:
        """The features of a table, by its column of users."""
        name = columns.names[0]
        source, names = feature_source(table, reads, name)
        frame = source.read([name, *names])
        source.require_rows(len(frame))
        ids = source.ids(frame, name, text=users.dtype == pl.String)
        values.refuse(ids.is_duplicated(), ids, source.name, "users that are there twice", code="repeated-ids")
        positions = values.IdIndex(ids).find(users)
        if not (positions >= 0).any():
            raise values.none_known(ids, f"users of {source.name}", "the histories", users)
        at = pl.Series(positions).set(pl.Series(positions < 0), None)  # a null position gives nulls
        frame = frame.select(pl.col(names).gather(at))
        return cls(frame, dict.fromkeys(names, positions >= 0), source.name, source.typed)

    def part(self, users: slice) -> RequestFeatures:
        """The features of these users."""
        return replace(
            self, frame=self.frame[users], present={name: present[users] for name, present in self.present.items()}
        )

    def asked_at(self, unit: values.Unit, now: int | None) -> Int[np.ndarray, "U"]:
        """The time of each request, seconds since 1970; `now` where none is given. Numbers are in `unit`."""
        times = np.full(len(self.frame), int(time.time()) if now is None else now)
        if ASKED_AT in self.present:
            column = self.frame[ASKED_AT]
            numbers = column.dtype.is_numeric() or (not self.typed and column.dtype == pl.String)
            if len(answers := column.drop_nulls()):
                unit = unit if numbers else "s"
                times[column.is_not_null().to_numpy()] = values.seconds(answers, self.what, unit, typed=self.typed)[0]
        return times

    def over(self, known: Encoded | None, role: Role, reads: Reads) -> Encoded | None:
        """The features of a role: those given here, and the `known` ones (None:
        nothing) where none were given."""
        table = reads.encode(role, self.frame, self.what)
        if table is None or not any(name in self.present for name in reads.columns(role)):
            return known
        assert reads.encoder is not None
        encoder, new = encoder_of(reads.encoder, role), table.take(np.arange(len(self.frame)))
        if known is None:
            return new
        absent = np.zeros(len(self.frame), bool)
        ids, numbers, lists = (
            [self.present.get(field.name, absent) for field in kind]
            for kind in (encoder.categorical, encoder.numeric, encoder.multivalued)
        )
        categorical = _chosen(ids, new.categorical, known.categorical)
        numeric = _chosen(numbers, new.numeric, known.numeric)
        return Encoded(categorical, numeric, tuple(map(merged, known.bags, new.bags, lists)))


def require_one_each(name: str, lists: Sequence[Any], histories: int, ordered: bool, other: str) -> None:
    """Raise `UserError` unless `lists` has one entry for each history, and these are in the caller's order."""
    if not ordered:
        raise UserError(
            f"{name}: histories from a table have no order to go by; give {other} for all", code="table-has-no-order"
        )
    if len(lists) != histories:
        raise UserError(
            f"{name}: {len(lists)} for {histories} histories; give one for each, or {other} for all",
            code="list-count-differs",
        )


def _chosen(present: list[Bool[np.ndarray, "U"]], new: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Columns of new rows where they were given, of known rows elsewhere."""
    return np.where(np.stack(present, 1), new, known) if present else known


def merged(known: Jagged, new: Jagged, present: Bool[np.ndarray, "U"]) -> Jagged:
    """New lists where they were given, known ones elsewhere.

    The values of both stand behind each other, and each row points to its own.
    """
    shift = len(known.values)
    starts, ends = (np.where(present, a + shift, b) for a, b in ((new.starts, known.starts), (new.ends, known.ends)))
    return Jagged(np.concatenate([known.values, new.values]), starts, ends)


def _column(name: str, entries: list[Any]) -> pl.Series:
    """Values of one feature. Raises `UserError` for those that one column cannot hold."""
    lists = [isinstance(entry, list | tuple | np.ndarray | pl.Series) for entry in entries if entry is not None]
    try:
        column = pl.Series(name, entries, strict=False)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        column = pl.Series(name, dtype=pl.Object)
    # polars turns a date or a boolean among numbers into a number
    mixed = column.dtype.is_numeric() and any(isinstance(entry, bool | np.bool_ | datetime.date) for entry in entries)
    if column.dtype == pl.Object or mixed or 0 < sum(lists) < len(lists):
        shown = next(entry for entry in entries if entry is not None)
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
    names = [name for name in reads.of_requests if name in source.columns]
    source.require(user, "name it with user_col=")
    if not names:
        what, wanted = f"{source.name} has no column that the model reads:", ", ".join(reads.of_requests)
        raise no_such(what, wanted, source.columns, "columns", code="unknown-feature")
    return source, names


def missing_note(lacking: str) -> str:
    """Note on the features that the model reads and the call does not have."""
    return (
        f"the model reads features that are not given, so they count as missing: {lacking} (those of past events are "
        "columns of a table of histories, those of requests and users are given by features=)"
    )


def known_features(
    of_events: HistoryFeatures | None, features: RequestFeatures | None, reads: Reads, users: int, unit: values.Unit
) -> HistoryFeatures | None:
    """The features of histories: those known of their events and users, replaced
    where `features=` gives others."""
    if not reads.names:
        return None
    known, rows = of_events or HistoryFeatures(), np.arange(users)
    nothing = RequestFeatures(pl.DataFrame({"row": rows}), {}, "features")
    at = (features or nothing).asked_at(unit, reads.now) if reads.when else None
    if features is None:
        return replace(known, asked_at=at)
    stored = None if known.user is None else known.user.table.take(known.user.rows)
    user, request = (
        None if encoded is None else FeatureRows(FeatureTable.of(encoded), rows)
        for encoded in (features.over(stored, "user", reads), features.over(None, "request", reads))
    )
    return replace(known, user=user, asked=request, asked_at=at)
