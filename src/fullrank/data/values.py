"""Columns of tables as ids, seconds or numbers, and indices that look ids up in a column.

Values that cannot be an id, a time or a number are refused, with their count and the first row.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Bool, Float64, Int64

from fullrank.core.errors import UserError, no_effect
from fullrank.core.jagged import stable_order

Unit = Literal["s", "ms", "us", "ns"]
T = TypeVar("T", bound=Any)

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_5000 = 10**11
"""Seconds since 1970, about: numbers beyond it are probably milliseconds."""
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_NEARLY_WHOLE = r"^\s*\+?(-?(?:0|[1-9]\d*))(?:\.0*)?\s*$"
"""Text of a whole number as programs write it, `12.0`, `+12` and ` 12` too; not `012`, which is a name."""
_LOOK = 1_000
"""Rows that are looked at before all are."""
_LIMIT = 2**62  # seconds; far outside of any calendar, far inside of int64


def ids(series: pl.Series, what: str, *, typed: bool = True) -> pl.Series:
    """External ids, whole numbers or strings, of the dtype they came in (categoricals as strings).

    Floats without fractions, as pandas makes of whole numbers with a gap, become int64, and so
    does text of an untyped file where every value is a whole number: ``42``, ``42.0`` or
    ``+42``, not ``042``. Raises `UserError` for missing ids and for types that cannot be an id
    (fractions, dates, lists).
    """
    series = without_fractions(series)
    refuse(series.is_null(), series, what, "missing ids", code="missing-ids")
    if series.dtype.is_float():
        bad = (series != series.floor()) | (series.abs() > 2**53)
        problem = "ids that are neither whole numbers nor strings"
        refuse(bad, series, what, problem, code="not-whole-numbers")
    series = without_categories(series)
    if series.dtype == pl.String and not typed:
        series = whole_text(series)
    if series.dtype == pl.String:
        refuse(series == "", series, what, "empty ids", code="empty-ids")
        return series
    if series.dtype.is_integer():
        return series if series.dtype not in (pl.Int128, pl.UInt128) else _whole(series, what)
    raise wrong_type(series, what, "ids are whole numbers or strings: cast the column first")


def without_fractions(series: pl.Series) -> pl.Series:
    """A column of floats that are all whole numbers as int64, NaN as null; any other column as it is."""
    if not series.dtype.is_float():
        return series
    known = series.fill_nan(None)
    fits = ((known == known.floor()) & (known.abs() <= 2**53)).fill_null(True)
    return known.cast(pl.Int64) if fits.all() else known


def without_categories(series: pl.Series) -> pl.Series:
    """A column of categories as strings; any other column as it is."""
    return series.cast(pl.String) if isinstance(series.dtype, (pl.Categorical, pl.Enum)) else series


def whole_text(series: pl.Series) -> pl.Series:
    """Text as int64 where every value is a whole number, also as `12.0`, `+12` or ` 12`; else as it is."""
    whole = series.cast(pl.Int64, strict=False)
    odd = (whole.cast(pl.String) != series).fill_null(True)
    if not odd.any():
        return whole
    for rows in (_LOOK, len(series)):  # text shows in the first rows
        if nearly_whole(series.head(rows).filter(odd.head(rows))).null_count():
            return series
    return nearly_whole(series)


def nearly_whole(text: T) -> T:
    """Text (a Series or an expression) as int64, also `12.0`, `+12` and ` 12`; null
    where it is no whole number."""
    return text.str.extract(_NEARLY_WHOLE).cast(pl.Int64, strict=False)


def parse_whole(text: pl.Series, dtype: Any) -> pl.Series:
    """Text as whole numbers of a type; null where it is none."""
    return text.cast(dtype, strict=False).fill_null(nearly_whole(text).cast(dtype, strict=False))


def dense(series: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """Codes [E] int32 into the sorted distinct values, and these values: the same on every engine and for every
    order of rows."""
    if not len(series):
        return np.zeros(0, np.int32), series
    if series.dtype.is_integer():
        if (table := _presence(series)) is not None:
            present, index = table
            codes = np.cumsum(present, dtype=np.int32)
            codes -= 1
            return codes[index], _present_values(series, present)
        keys = series.to_numpy()
        order = stable_order(keys)
        ordered = keys[order]
        first = np.ones(len(keys), bool)
        first[1:] = ordered[1:] != ordered[:-1]
        distinct = pl.Series(series.name, ordered[first])
    else:
        distinct = series.unique().sort()
    if len(distinct) >= 2**31:
        raise UserError(
            f"{series.name} has {len(distinct):,} different ids; at most 2,147,483,647 fit", code="too-many-ids"
        )
    if not series.dtype.is_integer():  # text: hashing is five times as fast as ranking
        return series.cast(pl.Enum(distinct)).to_physical().to_numpy().astype(np.int32), distinct
    codes = np.empty(len(keys), np.int32)
    codes[order] = np.cumsum(first, dtype=np.int32) - np.int32(1)
    return codes, distinct


def distinct(series: pl.Series) -> pl.Series:
    """The distinct values, in any order."""
    table = _presence(series) if series.dtype.is_integer() and len(series) else None
    return series.unique() if table is None else _present_values(series, table[0])


def _presence(series: pl.Series) -> tuple[Bool[np.ndarray, "span"], Int64[np.ndarray, "E"]] | None:
    """For whole numbers that lie close together: which of the span from least to most occur, and the index of each.

    A table over the span takes far less memory than ranks. None for numbers that are spread too
    widely.
    """
    least, most = int(series.to_numpy().min()), int(series.to_numpy().max())
    if most - least >= min(2**31 - 1, max(4 * len(series), 2**16)) or most >= 2**63:
        return None
    # Unsigned ids are cast too: the check above says that the differences fit.
    index = np.subtract(series.to_numpy(), least, dtype=np.int64, casting="unsafe")
    present = np.zeros(most - least + 1, bool)
    present[index] = True
    return present, index


def _present_values(series: pl.Series, present: Bool[np.ndarray, "span"]) -> pl.Series:
    """The distinct values of `_presence`, sorted."""
    return (pl.Series(series.name, np.flatnonzero(present)) + series.min()).cast(series.dtype)


def hash_ids(state: Any, ids: pl.Series) -> None:
    """Add ids to a hash: the length of each as text, then all of them behind each other."""
    text = ids.cast(pl.String)
    state.update(text.str.len_bytes().cast(pl.Int64).to_numpy().astype("<i8").tobytes())
    for start in range(0, len(text), 1 << 20):  # ids of a large catalogue are not joined at once
        state.update(joined(text[start : start + (1 << 20)]))


def joined(text: pl.Series) -> bytes:
    """The bytes of all texts behind each other."""
    return text.str.join("").item().encode() if len(text) else b""


_DENSE = 1 << 22  # largest span of whole numbers that are looked up in a table
NATIVE = (pl.Int64, pl.Int32, pl.UInt64, pl.UInt32)
"""Whole numbers as numpy has them, which those of 128 bits are not."""


def take(series: pl.Series, places: np.ndarray, name: str) -> pl.Series:
    """Values at positions (0 or more), as a column of that name.

    Numbers go through numpy, which for a few costs a tenth of an expression; so does a value that
    is repeated, such as the user of a list.
    """
    if len(places) and (places == places[0]).all():
        return series.new_from_index(int(places[0]), len(places)).alias(name)
    if series.dtype in NATIVE and not series.null_count():
        return pl.Series(name, series.to_numpy()[places])
    return series[places].alias(name)


class IntIndex:
    """An index of a column of different whole numbers: a table where they lie close together, else a binary search."""

    def __init__(self, values: pl.Series):
        keys = values.to_numpy()
        self.low = int(keys.min()) if len(keys) else 0
        span = int(keys.max()) - self.low + 1 if len(keys) else 0
        self.table = None
        if span <= max(_DENSE, 4 * len(keys)):
            self.table = np.full(span + 2, -1, np.int32)  # an entry at either end for numbers outside
            self.table[keys - self.low + 1] = np.arange(len(keys), dtype=np.int32)
            # low - 1, brought into the range of signed numbers as the difference in `find` is
            self.shift = np.int64((self.low - 1 + 2**63) % 2**64 - 2**63)
        else:
            self.order = np.argsort(keys, kind="stable")
            self.sorted = keys[self.order]

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The row of each whole number, -1 where it is not there."""
        if self.table is not None:
            # A difference that does not fit 64 bits wraps round, but for a key outside
            # never to an entry inside.
            return self.table.take(keys.astype(np.int64, copy=False) - self.shift, mode="clip")
        at = np.minimum(np.searchsorted(self.sorted, keys), len(self.sorted) - 1)
        return np.where(self.sorted[at] == keys, self.order[at], -1)


class TextIndex:
    """An index of a column of different texts, by sorted 64-bit hashes; these differ between
    processes, so never store it."""

    def __init__(self, values: pl.Series):
        self.values = values
        for self.seed in range(8):
            hashes = values.hash(self.seed).to_numpy()
            self.order = np.argsort(hashes, kind="stable")
            self.sorted = hashes[self.order]
            if not (self.sorted[1:] == self.sorted[:-1]).any():
                return
        raise UserError(
            f"the vocabulary of {values.name!r} holds a value twice; prepare the data again", code="file-damaged"
        )

    def find(self, values: pl.Series) -> np.ndarray:
        """The row of each value, -1 where it is not there."""
        if len(self.values) == 0:
            return np.full(len(values), -1)
        at = np.searchsorted(self.sorted, values.hash(self.seed).to_numpy())
        rows = self.order[np.minimum(at, len(self.order) - 1)]
        same = (self.values.gather(rows) == values).fill_null(False).to_numpy()
        return np.where(same, rows, -1)


class IdIndex:
    """An index of a column of external ids, whole numbers or text, that holds each once."""

    def __init__(self, ids: pl.Series):
        whole = None if ids.dtype == pl.String else ids.cast(pl.Int64, strict=False)
        self.numbers = None if whole is None or whole.null_count() else IntIndex(whole)
        self._text = TextIndex(ids.cast(pl.String)) if self.numbers is None else None

    def find(self, ids: pl.Series) -> Int64[np.ndarray, "n"]:
        """The row of each id, -1 where it is not there."""
        if self._text is not None:  # and whole numbers beyond 64 bits with sign
            return self._text.find(ids.cast(pl.String)).astype(np.int64)
        assert self.numbers is not None
        whole = ids.cast(pl.Int64, strict=False)
        places = self.numbers.find(whole.fill_null(0).to_numpy())
        return np.where(whole.is_null().to_numpy(), -1, places).astype(np.int64)


def finite_numbers(series: pl.Series, what: str, *, least: float | None = None) -> Float64[np.ndarray, "E"]:
    """Finite numbers. Raises `UserError` for missing, text or infinite ones, and for those below `least`."""
    if not (series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.String)):
        raise wrong_type(series, what, "it must hold numbers")
    values = series.cast(pl.Float64, strict=False)
    refuse(
        values.is_null() | ~values.is_finite(), series, what, "missing or unreadable numbers", code="unreadable-numbers"
    )
    if least is not None:
        refuse(values < least, series, what, f"numbers below {least:g}", code="numbers-too-small")
    return values.to_numpy()


def names(series: pl.Series, what: str) -> pl.Series:
    """Event types as strings. Raises `UserError` for missing ones."""
    refuse(series.is_null(), series, what, "missing types", code="missing-types")
    if series.dtype.is_nested() or series.dtype.is_float():
        raise wrong_type(series, what, "event types are strings or whole numbers")
    return series.cast(pl.String)


def seconds(
    series: pl.Series, what: str, unit: Unit = "s", *, typed: bool = True, notes: set[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Times as (seconds [E] int64, sort key [E] of full precision).

    Whole numbers and floats count `unit` since 1970; strings are ISO 8601 (without an offset: UTC);
    dates and datetimes are taken as they are. Seconds round down; the key keeps what is below a
    second, so that order is kept. `notes` gets sentences about text. Raises `UserError` for
    missing, NaN, infinite or unreadable times, and for numbers of another unit.
    """
    series = moments(series, what, typed=typed, notes=notes)
    if isinstance(series.dtype, (pl.Date, pl.Datetime)):
        if unit != "s":
            raise no_effect(f"time_unit={unit!r}", f"since {called(series, what)} holds dates")
        refuse(series.is_null(), series, what, "missing times", code="missing-times")
        key = series.to_physical().cast(pl.Int64).to_numpy()
        if isinstance(series.dtype, pl.Date):
            return key * 86_400, key
        return key // _PER_SECOND[series.dtype.time_unit], key
    time, key = _clock(series, what, _PER_SECOND[unit])
    _refuse_other_unit(time, called(series, what), unit)
    return time, key


def _refuse_other_unit(time: Int64[np.ndarray, "E"], what: str, unit: Unit) -> None:
    """Raise `UserError` where numbers that were read as `unit` lie beyond the year
    5000: they count a finer one."""
    if not len(time) or max(int(time.max()), -int(time.min())) <= _YEAR_5000:
        return
    late = np.abs(time) > _YEAR_5000
    row, count = int(late.argmax()), int(late.sum())
    units = list(_PER_SECOND)
    number = int(time[row]) * _PER_SECOND[unit]
    remedy = "repair or drop these rows"
    for finer in units[units.index(unit) + 1 :]:
        if abs(number) // _PER_SECOND[finer] <= _YEAR_5000:
            remedy = f"are they {_WORDS[finer]}? then say time_unit={finer!r}"
            if count < len(time):
                remedy = f"are these in {_WORDS[finer]}? bring all rows to one unit, and name it by time_unit="
            break
    raise UserError(
        f"{what} has {count:,} times after the year 5000 as {_WORDS[unit]} among {len(time):,} rows, first in row "
        f"{row} (from 0): {number}; {remedy}",
        code="wrong-time-unit",
    )


def moments(series: pl.Series, what: str, *, typed: bool = True, notes: set[str] | None = None) -> pl.Series:
    """Times as numbers, dates or datetimes: text is parsed, the other types stay as they are, with their nulls.

    Text is ISO 8601; in an untyped file it is numbers where most values are. `notes` gets a
    sentence where some text has an offset and some has none. Raises `UserError` for text that is
    neither, and for columns of other types.
    """
    if series.dtype == pl.String:
        parsed, mixed, problem = None if typed else _numeric_text(series), False, "no numbers"
        if parsed is None:
            parsed, mixed = iso(series)
            problem = "not ISO 8601 (2014-06-01 12:00:00)"
        refuse(parsed.is_null(), series, what, f"times that are missing or {problem}", code="unreadable-times")
        if mixed and notes is not None:
            notes.add(
                f"times in column {series.name!r} have an offset from UTC in some rows and none in others, which "
                "are taken as UTC"
            )
        return parsed
    if not (series.dtype.is_numeric() or series.dtype in (pl.Date, pl.Datetime)):
        raise wrong_type(series, what, "times are numbers, ISO 8601 strings, dates or datetimes")
    return series


def in_time(
    series: pl.Series, what: str, unit: Unit = "s", *, typed: bool = True, notes: set[str] | None = None
) -> tuple[Int64[np.ndarray, "E"], Int64[np.ndarray, "E"] | None]:
    """Seconds [E] of events in input order, and their rows in order of time; None where they are in order already.

    Equal times keep input order. A store and a request are put in order by this same
    function, so that a model answers for the order that it was trained on. Times are read,
    and refused, as in `seconds`.
    """
    time, key = seconds(series, what, unit, typed=typed, notes=notes)
    if (key[1:] >= key[:-1]).all():
        return time, None
    return time, stable_order(key)


def iso(text: pl.Series) -> tuple[pl.Series, bool]:
    """Datetimes (microseconds, UTC) of ISO 8601 strings, null for other strings; and whether only some of them
    have an offset."""
    clean = text.str.strip_chars().str.replace(r"^(\d{4}-\d{2}-\d{2}) ", "${1}T").str.replace(r"[zZ]$", "+00:00")
    clean = clean.str.replace(r"(T\d{2}:\d{2})($|[+-])", "${1}:00${2}")
    parsers: tuple[Callable[[], pl.Series], ...] = (
        lambda: clean.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False),
        lambda: clean.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")),
        lambda: clean.str.to_datetime(
            "%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False
        ).dt.replace_time_zone(None),
    )
    moments = pl.Series(text.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(text))
    read = [0]  # strings that are read after each parser; the last one is for those with an offset
    for parse in parsers:  # a column nearly always has one format: the others are not tried
        if moments.null_count():
            parsed, known = parse(), moments.is_not_null()
            moments = moments.zip_with(known, parsed) if known.any() else parsed
        read.append(len(moments) - moments.null_count())
    return moments, 0 < read[-2] < read[-1]


def iso_seconds(text: str) -> int:
    """Seconds since 1970 of an ISO 8601 date. Raises `UserError` for other text."""
    moment = iso(pl.Series([text]))[0].to_physical()[0]
    if moment is None:
        raise UserError(f"{text!r} is not an ISO 8601 date (2014-06-01 or 2014-06-01T12:00:00Z)", code="not-a-date")
    return int(moment) // 10**6


def with_date(seconds: int) -> str:
    """Seconds since 1970 with their date in parentheses, where a calendar has it."""
    day = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds) if -6e10 < seconds < 1e11 else None
    return f"{seconds}" + (f" ({day:%Y-%m-%d})" if day else "")


def called(series: pl.Series, what: str) -> str:
    """The name of a column in errors: its own, and that of the table `what`; `what` alone where it has none."""
    return f"column {series.name!r} of {what}" if series.name else what


def refuse(bad: pl.Series, series: pl.Series, what: str, problem: str, *, code: str) -> None:
    """Raise `UserError` with count, first row and first value where any element of `bad` is true.

    `what` names the table, `problem` what is wrong with the column, for the sentence;
    `code` names it for programs.
    """
    bad = bad.fill_null(True)
    count = int(bad.sum())
    if count:
        row = int(bad.arg_max() or 0)
        raise UserError(
            f"{called(series, what)} has {count:,} {problem} among {len(bad):,} rows, first in row {row} (from 0): "
            f"{series[row]!r}; repair or drop these rows",
            code=code,
        )


def wrong_type(series: pl.Series, what: str, allowed: str) -> UserError:
    """The error for a column of the table `what` of another type than is `allowed` (a clause)."""
    return UserError(f"{called(series, what)} is of type {series.dtype}; {allowed}", code="wrong-column-type")


def none_known(ids: pl.Series, what: str, where: str, known: pl.Series) -> UserError:
    """The error for `ids` of which none is among the `known` ones of `where`: they are ids of something else."""
    theirs = f"its ids are such as {known[0]!r}" if len(known) else "it has no ids"
    return UserError(
        f"none of the {len(ids):,} {what} (such as {ids[0]!r}) is in {where} ({theirs}): is it the right one, and the "
        "right column?",
        code="no-known-ids",
    )


def _numeric_text(series: pl.Series) -> pl.Series | None:
    """Text as whole numbers or floats (null where a value is neither);
    None where most values are."""
    number = series.cast(pl.Float64, strict=False)
    if 2 * number.null_count() > len(series):
        return None
    whole = series.cast(pl.Int64, strict=False)
    return whole if whole.null_count() == number.null_count() else number


def _whole(series: pl.Series, what: str) -> pl.Series:
    """Whole numbers as int64. Raises `UserError` for those that do not fit."""
    whole = series.cast(pl.Int64, strict=False)
    refuse(whole.is_null(), series, what, "numbers that do not fit 64 bits", code="numbers-too-large")
    return whole


def _clock(series: pl.Series, what: str, per_second: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as (seconds [E], sort key [E]), where `per_second` of
    them make a second (`seconds`)."""
    if series.dtype.is_integer():
        refuse(series.is_null(), series, what, "missing times", code="missing-times")
        key = _whole(series, what).to_numpy()
        return (key if per_second == 1 else key // per_second), key
    exact = series.cast(pl.Float64, strict=False)
    bad = exact.is_null() | ~exact.is_finite()
    refuse(bad, series, what, "times that are missing, NaN or infinite", code="unreadable-times")
    refuse(exact.abs() > _LIMIT, series, what, "times that do not fit 64 bits", code="numbers-too-large")
    key = exact.to_numpy()
    return np.floor(key / per_second).astype(np.int64), key
