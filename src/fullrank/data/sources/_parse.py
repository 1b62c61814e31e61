"""Publishers' text formats as polars frames: JSON lines, lines of Python literals, and delimited text, gzipped or not.

Nothing is evaluated: Python literals go through `ast.literal_eval`. A damaged or foreign file is a
`UserError` that names the file; a handful of broken lines among thousands is left out and counted.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl

from fullrank.core.errors import UserError, no_such, reason_line
from fullrank.core.parquet import BROKEN

BLOCK = 200_000
"""Lines held as Python objects before they become columns: bounds memory."""
TOLERATED = 1_000
"""One line in so many may be unreadable; more means that the file is not what it should be."""

_DAMAGED = (*BROKEN, EOFError, zlib.error, UnicodeDecodeError)
REVIEWS = {"user_id": pl.String, "item_id": pl.String, "timestamp": pl.Int64, "rating": pl.Float32}
"""Columns of reviews with stars."""
Record = dict[str, Any]
Row = tuple[Any, ...]
ColumnTypes = Mapping[str, Any]
"""Column name to polars type, in order."""


def require(folder: Path, *names: str, hint: str) -> Path:
    """The path of the first of these files, of which one has to be there. `hint`
    says what to do where none is."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"{folder} has no file {' or '.join(map(repr, names))}; {hint}", code="missing-file")
    return path


def open_text(path: Path) -> io.TextIOWrapper:
    """A UTF-8 text file, decompressed where it is gzip (known by its first bytes, not by its name)."""
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return (gzip.open if zipped else open)(path, "rt", encoding="utf-8", newline="\n")


def records(
    path: Path,
    schema: ColumnTypes,
    pick: Callable[[Record], Row | None],
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """One row per line of a file of JSON objects or Python dict literals, and the number of unreadable lines.

    `pick` makes the row (in the order of `schema`) of one object, or None to leave the object out.
    A line counts as unreadable where it is neither format, or `pick` misses a key or gets a value
    of the wrong type.
    """
    frames: list[pl.DataFrame] = []
    rows: list[Row] = []
    broken = total = 0
    for line in lines(path):
        total += 1
        try:
            row = pick(parse_line(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            broken += 1
            continue
        if row is not None:
            rows.append(row)
        if len(rows) >= BLOCK:
            frames.append(_frame(rows, schema, path))
            rows = []
    if broken * TOLERATED > total:
        lines_of = f"{broken:,} of {total:,} lines are unreadable: is it of this source and variant?"
        raise damaged_download(path, ValueError(lines_of))
    frames.append(_frame(rows, schema, path))
    notes = (f"{broken:,} unreadable lines of {path.name} were left out",) if broken else ()
    return pl.concat(frames), notes


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file that are not blank. Raises `UserError` where the file is damaged."""
    with reading(path), open_text(path) as stream:
        for line in stream:
            if line := line.strip():
                yield line


def parse_line(line: str) -> Record:
    """One object, from strict JSON or from a Python literal. Raises `ValueError` where it is neither."""
    # JSON objects open with a double quote; Python 2 wrote {'a': ...} or {u'a': ...}.
    literal = line[1:2] == "'" or line[1:3] in ("u'", 'u"')
    for read in (ast.literal_eval,) if literal else (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            record = read(line)
            if isinstance(record, dict):
                return record
    raise ValueError("the line is no object, neither in JSON nor as a Python literal")


def delimited(
    path: Path,
    columns: ColumnTypes,
    *,
    separator: str = ",",
    header: bool = True,
    quoted: bool = True,
    content: bytes | None = None,
) -> pl.DataFrame:
    """Columns of a delimited file; without a header `columns` names them from the left.

    `content` replaces the file's bytes where they had to be rewritten first. Raises
    `UserError` with the file's name.
    """
    with reading(path):
        return pl.read_csv(
            path if content is None else content,
            has_header=header,
            columns=list(columns) if header else None,
            schema_overrides=dict(columns) if header else None,
            schema=None if header else dict(columns),
            separator=separator,
            quote_char='"' if quoted else None,
            glob=False,
        )


def damaged_download(path: Path, error: BaseException) -> UserError:
    """The error for a file that cannot be read to its end."""
    return UserError(
        f"{path} is damaged or not in the publisher's format ({reason_line(error)}); delete it and download it again",
        code="wrong-download",
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise `UserError` where the block cannot read a file to its end."""
    try:
        yield
    except _DAMAGED as error:
        raise damaged_download(path, error) from None


def number(entry: Any) -> float | None:
    """A price or a quantity: 12.5, "12.5", "$1,299.00"; None for anything else ("Free To Play" is 0)."""
    if isinstance(entry, bool) or entry is None:
        return None
    if isinstance(entry, (int, float)):
        return float(entry) if abs(entry) < float("inf") else None
    text = str(entry).strip().lower()
    if text.startswith("free"):
        return 0.0
    try:
        return float(text.removeprefix("$").replace(",", ""))
    except ValueError:
        return None


def text(entry: Any) -> str | None:
    """A title or a name: trimmed, on one line; None where nothing is left."""
    return " ".join(entry.split()) or None if isinstance(entry, str) else None


def joined(values: Any) -> str | None:
    """A list of labels as one string with | between them, as MovieLens writes genres; None for an empty list."""
    if isinstance(values, str):
        return text(values)
    if not isinstance(values, (list, tuple)):
        return None
    return "|".join(label for label in map(text, values) if label) or None


def rows_with_events(items: pl.DataFrame, events: pl.DataFrame, key: str = "item_id") -> pl.DataFrame:
    """The first row of each item (or user) that has an event."""
    return items.unique(key, keep="first", maintain_order=True).join(
        events.select(pl.col(key).unique()), on=key, how="semi", maintain_order="left"
    )


def _frame(rows: Sequence[Row], schema: ColumnTypes, path: Path) -> pl.DataFrame:
    try:
        return pl.DataFrame(rows, schema=dict(schema), orient="row")
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        raise damaged_download(path, error) from None


def scanned(path: Path, columns: Sequence[str]) -> pl.LazyFrame:
    """A CSV file with a header, as text and lazily: it may be larger than memory.

    Raises `UserError` for missing columns with the nearest that is there.
    """
    with reading(path):
        frame = pl.scan_csv(path, infer_schema=False, glob=False)
        names = frame.collect_schema().names()
    for column in columns:
        if column not in names:
            what = f"{path} is not in the publisher's format: it has no column"
            raise no_such(what, column, names, "columns", code="missing-column")
    return frame
