"""Parquet files that somebody else made: refused where they would take too much memory, and of one type in a folder.

A few bytes can announce a billion equal values, and a page of some KB can unpack to gigabytes. So
the footer and the header of every page are read first (https://parquet.apache.org/docs/file-format,
Thrift's compact protocol), and a file that would take memory out of all proportion to its size is
refused. What the library writes takes up to a hundred times its bytes.

Files of a folder may have columns of different types, as those of different months do
(`unlike_files`). A column is cast where that loses nothing: whole numbers of any width, whole
numbers beside floats without fractions (what pandas makes of a column with a gap), text beside
categories, dates beside datetimes. Any other is left out, and who asks for it is told why.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl

from fullrank.core.errors import UserError, reason_line
from fullrank.core.readers import cannot_open, refuse_special

MOST_RATIO, FLOOR = 1000, 64 * 2**20
"""A file may take so many times its bytes of memory, and so many bytes more."""
MOST_FOOTER = 8 * 2**20
"""Bytes of a footer: some ten thousand columns and groups of rows."""
PAGE = 64 * 2**10
"""Bytes that each page counts as at least, which bounds how many pages are looked at."""
HEADER, MOST_HEADER = 2**12, 2**20
"""Bytes of a page's header, and of one that holds long texts (minimum and maximum)."""
_TEXT, _END = 6, b"PAR1"
"""The number of the type of texts (BYTE_ARRAY in parquet.thrift), and the last bytes of a file."""
BROKEN = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises for a file that it cannot read."""


def read_parquet(
    path: Path, what: str, *, rows: int | None = None, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """The table of a folder's file, of so many `rows` where the caller knows; `what` names it in errors.

    Raises `FileNotFoundError`, and `UserError` for a file that is damaged, has other rows, or
    is out of all proportion.
    """
    name = f"{what} {str(path)!r}"
    try:
        refuse_special(path)
        with open(path, "rb") as file:
            _refuse_oversized(file, path.stat().st_size, rows, name)
        return pl.read_parquet(path, glob=False, columns=None if columns is None else list(columns))
    except FileNotFoundError:
        raise
    except (*BROKEN, IndexError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise cannot_open(path, error) or unreadable(name, error) from None


def unreadable(name: str, error: BaseException) -> UserError:
    """The error for a file that is there and cannot be parsed."""
    if isinstance(error, pl.exceptions.NoDataError):
        return UserError(f"{name} is empty", code="empty-file")
    return UserError(
        f"{name} cannot be read, it is damaged or not what its suffix says: {reason_line(error)}",
        code="table-unreadable",
    )


def _refuse_oversized(file: IO[bytes], size: int, rows: int | None, name: str, *, whole: bool = True) -> None:
    """Raise `UserError` for other rows than expected, and for more memory than goes with the `size`: of all pages
    (`whole`), or of one."""
    file.seek(max(size - 8, 0))
    length, end = int.from_bytes(file.read(4), "little"), file.read(4)
    if end != _END or not 0 < length <= min(MOST_FOOTER, size - 8):
        raise ValueError(f"its footer of {length:,} bytes is none")
    file.seek(size - 8 - length)
    # Fields by their numbers in parquet.thrift: of the footer 3 rows and 4 row groups; of a group 1
    # columns and 3 rows; of a column's metadata 1 type, 7 bytes, 9 first data page, 11 dictionary
    # page; of a page's header 2 and 3 bytes uncompressed and compressed, and 5, 7 or 8 the kind of
    # page, whose 1 is how many values it has.
    footer, _ = _struct(file.read(length), 0)
    if rows is not None and footer[3] != rows:
        raise UserError(f"{name} is damaged: it has {footer[3]:,} rows, not {rows:,}", code="file-damaged")
    most, needed = FLOOR + MOST_RATIO * size, 0
    for group in footer[4]:
        for chunk in group[1]:
            column = chunk[3]
            width = 16 if column[1] == _TEXT else 8
            needed = (needed if whole else 0) + group[3] * width
            at = min(offset for offset in (column.get(11), column[9]) if offset)
            stop = at + column[7]
            while at < stop and needed <= most:
                header, read = _header(file, at, stop)
                values = (header.get(5) or header.get(7) or header.get(8) or {1: 0})[1]
                if min(header[2], header[3], values) < 0:
                    raise unreadable(name, ValueError("a page has a negative size"))
                needed = (needed if whole else 0) + max(PAGE, header[2]) + values * width
                at += read + header[3]
            if group[3] < 0 or needed > most:
                raise UserError(
                    f"{name} has {size:,} bytes and would take more than {most:,} of memory ({footer[3]:,} rows): it "
                    "is damaged, or made to fill memory; take another copy",
                    code="file-oversized",
                )


def refuse_oversized(path: Path, name: str) -> None:
    """Raise `UserError` for a user's file with a page out of all proportion, or of a negative size.

    The engine would end the process where it cannot get the memory. What cannot be followed here is
    left to it: files of any writer come here, also wide ones of which most columns are empty.
    """
    try:
        refuse_special(path)
        with open(path, "rb") as file:
            _refuse_oversized(file, path.stat().st_size, None, name, whole=False)
    except UserError:
        raise
    except (OSError, IndexError, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return


def _header(file: IO[bytes], at: int, stop: int) -> tuple[dict[int, Any], int]:
    """The header of a page, and its length; most are short, so little is read."""
    for most in (HEADER, MOST_HEADER):
        file.seek(at)
        with suppress(IndexError):
            return _struct(file.read(min(most, stop - at)), 0)
    raise IndexError("a page's header has no end")


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The fields of a Thrift struct by their numbers, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:  # a byte: in its upper half the step from the number before, in its lower half the kind
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _whole(data, at)
        # kinds 1 and 2 are the truth values themselves
        fields[number], at = (head & 15 == 1, at) if head & 15 < 3 else _value(data, at, head & 15)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value of one of Thrift's kinds, and where it ends; None for floats
    and texts, which are skipped."""
    if kind in (4, 5, 6):  # whole numbers of 16, 32 and 64 bits
        return _whole(data, at)
    if kind in (1, 2, 3):  # a truth value in a list, or a byte
        return data[at], at + 1
    if kind == 7:  # a float
        return None, at + 8
    if kind == 8:  # text, behind its length
        length, at = _varint(data, at)
        return None, at + length
    if kind == 12:
        return _struct(data, at)
    if kind not in (9, 10):  # neither a list nor a set
        raise ValueError(f"its footer holds a value of kind {kind}")
    length, inner, at = data[at] >> 4, data[at] & 15, at + 1
    if length == 15:
        length, at = _varint(data, at)
    elements = []
    for _ in range(length):
        value, at = _value(data, at, inner)
        elements.append(value)
    return elements, at


def _whole(data: bytes, at: int) -> tuple[int, int]:
    """A whole number with a sign, which lies in its last bit, and where the number ends."""
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, the lowest first, and where it ends: the
    byte whose eighth bit is 0."""
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if shift > 70:
            raise ValueError("its footer holds a number of more than 64 bits")
        if not data[at - 1] & 128:
            return number, at


_DATETIME = pl.Datetime("us")


@dataclass(frozen=True)
class UnlikeFiles:
    """Files as one table."""

    frame: pl.LazyFrame
    left_out: dict[str, str]
    """Column -> why it has no common type, for a sentence."""


def unlike_files(folder: Path) -> UnlikeFiles | None:
    """The files of a folder as one table; None where all have the same columns and types."""
    files = sorted(folder.rglob("*.parquet"))
    schemas = [dict(pl.read_parquet_schema(glob.escape(str(file)))) for file in files]
    if all(schema == schemas[0] for schema in schemas):
        return None
    types: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name in schemas[0]:
        lacking = [file.name for file, schema in zip(files, schemas, strict=True) if name not in schema]
        if lacking:
            left_out[name] = f"is not in the file {lacking[0]!r}"
            continue
        kinds = [schema[name] for schema in schemas]
        if (common := _common(name, files, kinds)) is not None:
            types[name] = common
            continue
        other = next((n for n, kind in enumerate(kinds) if _group(kind) != _group(kinds[0])), 1)
        left_out[name] = (
            f"is of type {kinds[0]} in {files[0].name!r} and of type {kinds[other]} in {files[other].name!r}, and a "
            "cast would change values"
        )
    for schema in schemas:
        left_out |= {name: f"is not in the file {files[0].name!r}" for name in schema if name not in schemas[0]}
    return UnlikeFiles(
        pl.concat(
            pl.scan_parquet(file, glob=False).select(_cast(name, schema[name], kind) for name, kind in types.items())
            for file, schema in zip(files, schemas, strict=True)
        ),
        left_out,
    )


def _group(kind: Any) -> str:
    if kind.is_integer():
        return "signed" if kind.is_signed_integer() else "unsigned"
    if kind.is_float():
        return "float"
    if kind == pl.String or isinstance(kind, pl.Categorical | pl.Enum):
        return "text"
    return "date" if kind == pl.Date or isinstance(kind, pl.Datetime) else str(kind)


def _common(name: str, files: Sequence[Path], kinds: Sequence[Any]) -> Any:
    """The type that holds a column of all files, of these types; None where there is none."""
    known = [(file, kind) for file, kind in zip(files, kinds, strict=True) if kind != pl.Null]
    groups = {_group(kind) for _, kind in known}
    if len({str(kind) for _, kind in known}) < 2:
        return known[0][1] if known else pl.Null()
    widest = {"text": pl.String(), "date": _DATETIME, "float": pl.Float64(), "unsigned": pl.UInt64()}
    if len(groups) == 1 and groups <= widest.keys():
        return widest[groups.pop()]
    if not groups <= {"signed", "unsigned", "float"}:
        return None

    def any_of(group: tuple[str, ...], bad: pl.Expr) -> bool:
        """Whether `bad` holds in any row of the files whose columns are of these groups."""
        frames = [pl.scan_parquet(file, glob=False).select(bad.any()) for file, kind in known if _group(kind) in group]
        return any(frame.collect().item() for frame in frames)

    column = pl.col(name)
    if any_of(("unsigned",), column.cast(pl.Int64, strict=False).is_null() & column.is_not_null()):
        return None
    # a float holds every whole number up to 2^53
    if not any_of(("float",), (column.fill_nan(None) != column.floor()) | (column.fill_nan(None).abs() > 2**53)):
        return pl.Int64()
    return None if any_of(("signed", "unsigned"), column.cast(pl.Int64).abs() > 2**53) else pl.Float64()


def _cast(name: str, kind: Any, common: Any) -> pl.Expr:
    column = pl.col(name)
    if isinstance(kind, pl.Datetime) and kind.time_zone and common == _DATETIME:
        column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if kind.is_float() and common.is_integer():
        column = column.fill_nan(None)
    return column.cast(common)
