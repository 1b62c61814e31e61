"""Parquet files of a folder whose columns are of different types, as files of different months are: one type for all.

A column is cast where that loses nothing: whole numbers of any width, whole numbers beside floats without fractions
(what pandas makes of a column with a gap), text beside categories, dates beside datetimes. Any other is left out, and
who asks for it is told why.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

_DATETIME = pl.Datetime("us")


@dataclass(frozen=True)
class UnlikeFiles:
    """Files as one table."""

    frame: pl.LazyFrame
    left_out: dict[str, str]
    """Column -> why it has no common type, for a sentence."""


def unlike_files(folder: Path) -> UnlikeFiles | None:
    """The files of a folder, by name, as one table; None where all have the same columns and types."""
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
        types[name] = _common(name, files, kinds)
        if types[name] is None:
            del types[name]
            other = next((n for n, kind in enumerate(kinds) if _group(kind) != _group(kinds[0])), 1)
            left_out[name] = (f"is of type {kinds[0]} in {files[0].name!r} and of type {kinds[other]} in "
                              f"{files[other].name!r}, and a cast would change values")  # fmt: skip
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
    if groups == {"text"}:
        return pl.String()
    if groups == {"date"}:
        return _DATETIME
    if groups == {"float"}:
        return pl.Float64()
    if groups == {"unsigned"}:
        return pl.UInt64()
    if not groups <= {"signed", "unsigned", "float"}:
        return None

    def any_of(group: tuple[str, ...], bad: pl.Expr) -> bool:
        frames = [pl.scan_parquet(file, glob=False).select(bad.any()) for file, kind in known if _group(kind) in group]
        return any(frame.collect().item() for frame in frames)

    column = pl.col(name)
    if any_of(("unsigned",), column.cast(pl.Int64, strict=False).is_null() & column.is_not_null()):
        return None
    if not any_of(("float",), (column.fill_nan(None) != column.floor()) | (column.fill_nan(None).abs() > 2**53)):
        return pl.Int64()
    return None if any_of(("signed", "unsigned"), column.cast(pl.Int64).abs() > 2**53) else pl.Float64()


def _cast(name: str, kind: Any, common: Any) -> pl.Expr:
    column = pl.col(name)
    if isinstance(kind, pl.Datetime) and common == _DATETIME:
        column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if kind.time_zone else column
    if kind.is_float() and common.is_integer():
        column = column.fill_nan(None)
    return column.cast(common)
