"""Write tables as Parquet, CSV or JSON lines: at once, or frame by frame in the memory of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from fullrank.core.errors import UserError, reason_line
from fullrank.core.files import NotWritten, Pending, whole_file

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".parquet", ".csv", ".jsonl")
"""Suffixes of the files that can be written."""


def check_suffix(name: str, suffix: str, allowed: Sequence[str] = SUFFIXES) -> None:
    """Raise `UserError` unless a suffix is allowed: by default one of `SUFFIXES`."""
    if suffix not in allowed:
        raise UserError(f"{name} has the suffix {suffix!r}; allowed: {', '.join(allowed)}", code="unknown-suffix")


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table by the suffix of `path` (`SUFFIXES`), whole or not at all.

    Raises `UserError` for another suffix, for lists in a CSV file, and where the disk refuses.
    """
    path = Path(path)
    check_suffix(str(path), path.suffix)
    _refuse_nested(frame, path)
    with whole_file(path) as part, _refusals(path):
        _put(frame, path.suffix, part)


class TableWriter:
    """A table that grows by frames into a file, in the memory of one frame. Use it in a `with`.

    Leaving without an error puts the file in place of an older one, else nothing is left.
    Parquet is gathered in pieces, because its rows are known only at the end. Raises
    `UserError` as `write_table` does.
    """

    def __init__(self, path: Path):
        check_suffix(str(path), path.suffix)
        self.path, self.rows = path, 0
        self._pending = Pending(path)
        self._file: IO[bytes] | None = None
        self._begun = False

    def __enter__(self) -> TableWriter:
        with ExitStack() as failed, _refusals(self.path):
            failed.callback(self._pending.abandon)
            self._part = self._pending.begin()
            if self.path.suffix != ".parquet":
                self._file = open(self._part, "wb")  # closed by `__exit__`
            elif self._pending.folder is None:
                raise OSError("it is a device or a pipe, and Parquet needs a file")
            else:
                self._pieces = self._part.with_name("pieces")
                self._pieces.mkdir()
            failed.pop_all()
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """More rows, of the same columns."""
        _refuse_nested(frame, self.path)
        with _refusals(self.path):
            file = self._file or self._pieces / f"{self.rows:015}"
            _put(frame, self.path.suffix, file, header=not self._begun)
        self._begun = True
        self.rows += len(frame)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        import polars as pl

        try:
            with _refusals(self.path):
                if self._file is not None:
                    self._file.close()
                if kind is None and self._file is None:
                    pl.scan_parquet(sorted(self._pieces.iterdir()), glob=False).sink_parquet(self._part)
                if kind is None:
                    self._pending.commit()
        finally:
            self._pending.abandon()


def _put(frame: pl.DataFrame, suffix: str, file: Path | IO[bytes], *, header: bool = True) -> None:
    if suffix == ".parquet":
        frame.write_parquet(file)
    elif suffix == ".csv":
        frame.write_csv(file, include_header=header)
    else:
        frame.write_ndjson(file)


def _refuse_nested(frame: pl.DataFrame, path: Path) -> None:
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    if nested and path.suffix == ".csv":
        raise UserError(
            f"column {nested[0]!r} holds lists, which CSV cannot: write {path.stem}.parquet", code="lists-in-csv"
        )


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn errors of polars and the system, a full disk too, into `NotWritten`."""
    from polars.exceptions import PanicException, PolarsError

    try:
        yield
    except (OSError, PolarsError, PanicException) as error:
        raise NotWritten(path, reason_line(error)) from error
