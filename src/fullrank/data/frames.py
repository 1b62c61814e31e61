"""Reading any table (a path, or a DataFrame that narwhals reads) as a polars frame of chosen columns.

Only those columns are read: Parquet and lazy engines (DuckDB, Spark, polars) never load the
others. Every check and every filter happens afterwards on the same arrays, so that all
engines give the same store.

`Chunks` gives a table as frames of `CHUNK` rows in input order, as often as needed, in the
memory of one of them. Parquet is read by row groups. What cannot be read from the middle
(CSV, JSONL, lazy queries) is first streamed into a Parquet file in a scratch folder. A
DataFrame in memory is cut as it is.
"""

from __future__ import annotations

import csv
import difflib
import errno
import glob
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from fullrank.core.checks import check_once, check_that
from fullrank.core.errors import UserError, brief, no_effect, no_such, reason_line
from fullrank.core.parquet import BROKEN, UnlikeFiles, refuse_oversized, unlike_files, unreadable
from fullrank.core.readers import read_json_text
from fullrank.core.tables import check_suffix
from fullrank.data import values
from fullrank.parallel import in_order, thread_count

SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
"""File names that `InputTable` reads."""

SEPARATORS = (",", ";", "\t", "|")
"""What may stand between the columns of a text file; of two that are as frequent in its first line, the first."""
LONGEST_HEADER = 1 << 20
"""Most bytes that are read of a line of a text file."""

CHUNK = 1 << 17
"""Rows of a chunk. Statistics are summed by chunk, so another size may change their last digits."""

MOST_LINES = 1_000
"""Most JSON lines that are searched for a number in place of text."""
MOST_OTHERS = 100_000
"""Files and folders beside Parquet files in a folder that is read: with more, a wrong one such as `/` was named."""
_FAILURES = (*BROKEN, UnicodeError)
R = TypeVar("R")


class InputTable:
    """A table that is read when its columns are known.

    `table` is a path (Parquet, CSV, TSV or JSONL, by suffix; a folder of Parquet files), or an
    eager or lazy DataFrame of any engine that narwhals reads. `what` names it in errors ("events").
    `typed` is False where values are text whose type is not known yet (CSV). `sliced` is True where
    some rows can be read without the rest (Parquet). `separator` stands between the columns of a
    text file; without it, it is inferred from the first line.
    """

    def __init__(self, table: Any, what: str, *, separator: str | None = None):
        self.what, self.table = what, table
        self.path = Path(table) if isinstance(table, (str, os.PathLike)) else None
        self.separator: str | None = None
        """The separator of a text file; None for other tables."""
        self.unlike: UnlikeFiles | None = None
        """The columns of a folder whose files are of different types; None for other tables."""
        self.typed = True
        self.sliced = False
        self.frame: nw.LazyFrame[Any] | nw.DataFrame[Any]
        if (path := self.path) is not None:
            suffix = _suffix(path)
            self.name = f"{what} {str(path)!r}"
            self.typed = not suffix.startswith((".csv", ".tsv"))
            self.sliced = path.is_dir() or suffix in (".parquet", ".pq")
            if not self.typed:
                header = next(_lines(path), b"").decode("utf-8-sig", errors="replace").rstrip("\r\n")
                self.separator = check_separator(separator) or _infer_separator(path, header)
                with suppress(csv.Error):  # a column that is named twice would get another name
                    names = next(csv.reader([header], delimiter=self.separator), [])
                    _require_distinct(self.name, [name for name in names if name])
            if path.is_dir():
                _require_parquet(path, self.name)
                self.unlike = self.attempt(lambda: unlike_files(path))
                self.sliced = self.unlike is None
            scanned = _scan(path, self.name, self.separator) if self.unlike is None else self.unlike.frame
            self.frame = nw.from_native(scanned)
        else:
            self.name = what
            self.frame = _wrap(table, what)
        if separator is not None and self.separator is None:
            raise no_effect(f"separator={brief(separator, 80)}", f"since {self.name} is not a .csv or .tsv file")
        self.columns = self.attempt(lambda: self.frame.collect_schema().names())
        _require_distinct(self.name, self.columns)

    def require(self, column: str, setting: str) -> None:
        """Raise `UserError` unless there is such a column; `setting` says how to name another."""
        if self.unlike is not None and column in self.unlike.left_out:
            raise UserError(
                f"column {column!r} of {self.name} {self.unlike.left_out[column]}; write all files with one type",
                code="files-differ",
            )
        if column not in self.columns:
            remedy = f"; {setting}{self._other_separator()}"
            raise no_such(f"{self.name} has no column", column, self.columns, "columns", remedy, code="missing-column")

    def require_rows(self, rows: int) -> None:
        """Raise `UserError` unless the table has rows."""
        require_rows(self.name, rows)

    def _other_separator(self) -> str:
        """A hint where names of columns contain a character that may separate columns."""
        others = {*SEPARATORS} - {self.separator}
        if self.separator is None or not any(other in name for other in others for name in self.columns):
            return ""
        return f"; its columns were taken to be separated by {self.separator!r}, others are named by separator="

    def read(self, names: Sequence[str]) -> pl.DataFrame:
        """Read columns, rows in input order. A column named twice is read once."""
        chosen = self.frame.select(*dict.fromkeys(names))
        return self.attempt(lambda: to_polars(chosen))

    def ids(self, frame: pl.DataFrame, column: str, *, text: bool = False) -> pl.Series:
        """A column of a frame that was read, as ids (`values.ids`); with `text`, those of a text file stay text.

        Raises `UserError` for values that are no ids, and for JSON lines with numbers beside text.
        """
        self.require_one_kind(column)
        return values.ids(frame[column], self.name, typed=self.typed or text)

    def require_one_kind(self, column: str) -> None:
        """Raise `UserError` where JSON lines hold numbers beside text in a column: 7
        and "7" would become one id."""
        if self.path is None or not _is_json(self.path) or self.frame.collect_schema()[column] != nw.String:
            return
        lines = pl.scan_csv(
            self.path,
            has_header=False,
            new_columns=["line"],
            separator="\x01",
            quote_char=None,
            infer_schema=False,
            glob=False,
        ).with_row_index("row", offset=1)
        pattern = re.escape(json.dumps(column, ensure_ascii=False)) + r"\s*:\s*-?\d"
        likely = lines.filter(pl.col("line").str.contains(pattern)).head(MOST_LINES)  # or inside of another value
        for row, line in self.attempt(lambda: likely.collect(engine="streaming").iter_rows()):
            number = read_json_text(line).get(column)
            if isinstance(number, int | float):
                raise UserError(
                    f"column {column!r} of {self.name} holds text, and in line {row} the number {number}: as ids "
                    f"{json.dumps(str(number))} and {number} would be one; write all of them as text, or all as "
                    "numbers",
                    code="mixed-ids",
                )

    def infer(self, frame: pl.DataFrame, keep_text: str | None = None) -> pl.DataFrame:
        """Cast columns of an untyped file (not `keep_text`) to integers, floats or
        booleans where all values fit."""
        return frame if self.typed else frame.with_columns(_inferred(s) for s in frame if s.name != keep_text)

    def attempt(self, action: Callable[[], R]) -> R:
        """Call `action`; errors of the table's engine become `UserError`s that name the table."""
        try:
            return action()
        except UserError:
            raise
        except ImportError as error:  # polars and pandas say which package only in the sentence
            package = error.name or next((name for name in ("pyarrow", "pandas") if name in str(error)), "unknown")
            raise UserError(
                f"reading {self.name} needs the package {package!r}: pip install {package}", code="missing-package"
            ) from None
        # Each engine has errors of its own; polars' panic is no Exception. The cause stays for
        # --debug.
        except (Exception, pl.exceptions.PanicException) as error:
            if "utf" in str(error).lower() and self.separator is not None and self.path is not None:
                _refuse_other_encoding(self.path, self.name)
            if isinstance(error, _FAILURES):
                raise unreadable(self.name, error) from None
            raise UserError(
                f"{self.name} cannot be read by its engine: {reason_line(error)}", code="table-unreadable"
            ) from error


class Chunks:
    """Columns of a table in chunks; iterate over it for (row number of the first row, frame).

    With `spooled`, `scratch` holds the Parquet file of a table that an earlier process could
    not read from the middle.
    """

    def __init__(self, source: InputTable, columns: Sequence[str], scratch: Path, *, spooled: bool = False):
        self.name = source.name
        self._source = source
        self._columns = list(columns)
        self._lazy: pl.LazyFrame
        if isinstance(source.frame, nw.DataFrame):
            self._lazy = source.read(self._columns).lazy()
        elif source.sliced:
            native = source.frame.to_native()
            assert isinstance(native, pl.LazyFrame)
            self._lazy = native.select(self._columns)
        elif spooled:
            self._lazy = pl.scan_parquet(scratch / "input.parquet", glob=False)
        else:
            self._lazy = self._spooled(scratch / "input.parquet")
        counted = self._lazy.select(pl.len())
        self.rows = int(source.attempt(lambda: counted.collect().item()))

    def __iter__(self) -> Iterator[tuple[int, pl.DataFrame]]:
        return self.of(self._columns)

    @property
    def empty(self) -> pl.DataFrame:
        """The columns without rows."""
        return self._read(0, self.rows, self._columns).clear()

    def each(self, work: Callable[[int, pl.DataFrame], R], columns: Sequence[str]) -> Iterator[R]:
        """Call `work` with the first row number and the frame of each chunk;
        results in order, several at once."""
        chosen, starts = list(dict.fromkeys(columns)), range(0, self.rows, CHUNK)
        return in_order(lambda start: work(start, self._read(start, self.rows, chosen)), starts, thread_count())

    def of(self, columns: Sequence[str], first: int = 0, stop: int | None = None) -> Iterator[tuple[int, pl.DataFrame]]:
        """The chunks of rows `first` .. `stop` - 1 (None: of all that follow) with these columns."""
        chosen, stop = list(dict.fromkeys(columns)), self.rows if stop is None else stop
        for start in range(first, stop, CHUNK):
            yield start, self._read(start, stop, chosen)

    def _read(self, start: int, stop: int, columns: list[str]) -> pl.DataFrame:
        size = min(CHUNK, stop - start)
        frame = self._source.attempt(self._lazy.slice(start, size).select(columns).collect)
        assert isinstance(frame, pl.DataFrame)
        # The table is read twice; a file that grew or shrank between would give a
        # store that fits neither.
        if len(frame) != size:
            raise UserError(f"{self.name} changed while it was read; run it again", code="table-changed")
        return frame

    def _spooled(self, path: Path) -> pl.LazyFrame:
        frame = self._source.frame.select(*self._columns)
        try:
            native = frame.to_native()
            if isinstance(native, pl.LazyFrame):
                self._source.attempt(
                    lambda: native.sink_parquet(path, compression="lz4", statistics=False, row_group_size=CHUNK)
                )
            else:
                assert isinstance(frame, nw.LazyFrame)
                self._source.attempt(lambda: frame.sink_parquet(path))
        except UserError as error:
            if os.strerror(errno.ENOSPC) in str(error):  # the engine's error, which would blame the input
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
            raise
        return pl.scan_parquet(path, glob=False)


def input_name(table: Any) -> str:
    """The origin of a table, for a manifest: a file's name (not its folder), or the type of the DataFrame."""
    if isinstance(table, (str, Path)):
        return Path(table).name
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"


def name_rows(name: str, rows: int, start: int, frame: pl.DataFrame) -> str:
    """The name of a table in errors, with the rows of a frame where the table has more `rows` than it."""
    return name if rows == len(frame) else f"{name}, rows {start:,} to {start + len(frame) - 1:,},"


def _wrap(table: Any, what: str) -> nw.LazyFrame[Any] | nw.DataFrame[Any]:
    try:
        return nw.from_native(table)
    except TypeError:
        kind = f"{type(table).__module__}.{type(table).__qualname__}".removeprefix("builtins.")
        raise UserError(
            f"{what} is a {kind}; give a path ({', '.join(SUFFIXES)}) or a DataFrame "
            "(polars, pandas, Arrow, DuckDB relation, Spark)",
            code="not-a-table",
        ) from None
    except nw.exceptions.DuplicateError:
        raise UserError(f"{what} has two columns of the same name; rename one", code="repeated-column") from None


def require_rows(name: str, rows: int) -> None:
    """Raise `UserError` unless a table has rows."""
    if not rows:
        raise UserError(f"{name} has no rows", code="empty-table")


def _require_distinct(name: str, columns: Sequence[str]) -> None:
    check_once(columns, f"columns of {name}", "rename or remove one of the two", code="repeated-column")


def check_separator(separator: Any) -> str | None:
    """A character that separates columns (`tab` is one), or None. Raises `UserError` for anything else."""
    if separator is None:
        return None
    if isinstance(separator, str) and separator in ("tab", "\\t"):  # which a shell passes on as they are
        return "\t"
    single = isinstance(separator, str) and len(separator) == 1 and separator.isascii()
    sound = single and not separator.isalnum() and separator not in '"\r\n'
    shown = ", ".join(map(repr, SEPARATORS)).replace("\\t", "tab")
    demand = f": give the one character that separates columns, such as {shown}"
    check_that(sound, "separator", separator, demand, code="not-a-separator")
    return str(separator)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, of at most `LONGEST_HEADER` bytes each;
    none where it cannot be read."""
    if not path.is_file():  # missing, or a pipe, which would wait
        return
    try:
        with gzip.open(path) if _suffix(path).endswith(".gz") else open(path, "rb") as file:
            while line := file.readline(LONGEST_HEADER):
                yield line
    except (OSError, EOFError, zlib.error):  # unreadable or damaged: whoever reads it says so
        return


def _refuse_other_encoding(path: Path, name: str) -> None:
    """Raise `UserError` that names the first line of a text file that is
    not UTF-8, if there is one."""
    for number, line in enumerate(_lines(path), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            shown = line[max(error.start - 20, 0) : error.start + 20].decode("latin-1").strip()
            raise UserError(
                f"{name} is not UTF-8: line {number} holds the byte 0x{line[error.start]:02x} (as latin-1: {shown!r}); "
                "save it as UTF-8, such as by iconv -f LATIN1 -t UTF-8 OLD > NEW",
                code="not-utf-8",
            ) from None


def _infer_separator(path: Path, header: str) -> str:
    """The separator of a text file: that of its suffix where its first line has it,
    else the most frequent one."""
    usual = "\t" if _suffix(path).startswith(".tsv") else ","
    header = re.sub('"[^"]*"', "", header)
    return usual if usual in header else max(SEPARATORS, key=lambda mark: (header.count(mark), mark == usual))


def _scan(path: Path, name: str, separator: str | None) -> pl.LazyFrame:
    if path.is_dir():
        for file in path.rglob("*.parquet"):
            refuse_oversized(file, f"{name}: {file.name}")
        literal = glob.escape(str(path))  # `a[b]` would be read as `ab`
        return pl.scan_parquet(path if literal == str(path) else f"{literal}/**/*.parquet", hive_partitioning=True)
    if not path.exists():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, near, n=1, cutoff=0.6)
        raise UserError(
            f"{name} does not exist" + (f"; did you mean {str(path.parent / close[0])!r}?" if close else ""),
            code="missing-file",
        )
    suffix = _suffix(path)
    check_suffix(name, suffix, SUFFIXES)
    if path.stat().st_size == 0:
        raise UserError(f"{name} is empty", code="empty-file")
    try:
        if suffix in (".parquet", ".pq"):
            refuse_oversized(path, name)
            return pl.scan_parquet(path, glob=False)
        if _is_json(path):
            return pl.scan_ndjson(glob.escape(str(path)), infer_schema_length=None)
        # Text stays text: guessing types from the first rows would turn the id 0042 into 42.
        return pl.scan_csv(path, separator=separator or ",", infer_schema=False, glob=False)
    except _FAILURES as error:
        raise unreadable(name, error) from None


def _require_parquet(folder: Path, name: str) -> None:
    """Raise `UserError` unless the folder holds Parquet files and, at any depth,
    few others: not a whole disk."""
    tables = others = 0
    for _, folders, files in os.walk(folder):
        parquet = sum(file.endswith(".parquet") for file in files)
        tables, others = tables + parquet, others + len(files) - parquet + len(folders)
        if others > MOST_OTHERS:
            raise UserError(
                f"{name} is a folder of more than {MOST_OTHERS:,} other files and folders; give a file or a folder of "
                ".parquet files",
                code="folder-too-large",
            )
    if not tables:
        raise UserError(
            f"{name} is a folder without Parquet files; give a file or a folder of .parquet files", code="empty-folder"
        )


def _suffix(path: Path) -> str:
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def _is_json(path: Path) -> bool:
    return _suffix(path).startswith((".jsonl", ".ndjson"))


def to_polars(frame: nw.LazyFrame[Any] | nw.DataFrame[Any]) -> pl.DataFrame:
    """Read a table of any engine."""
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect(backend="polars")
    native = frame.to_polars()
    assert isinstance(native, pl.DataFrame)
    return native


def _inferred(series: pl.Series) -> pl.Series:
    if series.dtype != pl.String or series.null_count() == len(series):
        return series
    for dtype in (pl.Int64, pl.Float64):
        cast = series.cast(dtype, strict=False)
        if cast.null_count() == series.null_count():
            return cast
    lower = series.str.to_lowercase()
    return lower == "true" if lower.drop_nulls().is_in(["true", "false"]).all() else series
