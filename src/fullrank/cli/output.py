"""Output of the verbs: sentences, tables and progress for a person; or, with --json, one object on stdout.

Sentences and tables are a verb's result and go to stdout, unless ``--json`` claims it: then they go
to stderr. Progress always goes to stderr. Colour appears on a terminal only, and never where
NO_COLOR is set.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

import typer

from fullrank.cli.options import AsJson
from fullrank.core.errors import UserError
from fullrank.core.files import jsonable
from fullrank.core.log import CONTROLS, Progress, Tell, printable, reporting, stages

UNBOUNDED = 10_000
"""Columns of a table that is written to a pipe or a file."""


@dataclass(frozen=True)
class Output:
    """Printer of a verb; its field --json is an option of every verb (`verbs.py`)."""

    as_json: AsJson = False
    _begun: float = field(default_factory=time.perf_counter, init=False)

    @property
    def silent(self) -> bool:
        """Whether this is a process of torchrun, for which the first process prints."""
        return os.environ.get("RANK", "0") != "0"

    def say(self, text: str = "", *, wrap: bool = True) -> None:
        """Print lines for a person, wrapped at the terminal's width unless they are to be pasted (`wrap=False`)."""
        if self.silent:
            return
        text, width = printable(text), self._width()
        if wrap and width is not None:
            lines = text.splitlines() or [""]
            text = "\n".join(
                textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in lines
            )
        print(text, file=self._human, flush=True)

    def notes(self, notes: Iterable[str]) -> None:
        """Print notes for a person, a line each."""
        for note in notes:
            self.say(f"note: {note}")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
        """Print columns under headers: numbers are right-aligned, a long last column is wrapped on a terminal."""
        if self.silent:
            return
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        def shown_line(value: Any) -> str:
            return printable(shown(value)).replace("\n", "\\n").replace("\t", "\\t")

        headers, cells = [shown_line(name) for name in headers], [[shown_line(value) for value in row] for row in rows]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for position, name in enumerate(headers):
            column = [row[position] for row in rows]
            numeric = bool(rows) and all(isinstance(value, int | float) or value is None for value in column)
            last = position == len(headers) - 1
            width = None if last else max(cell_len(text) for text in (name, *(row[position] for row in cells)))
            table.add_column(name, justify="right" if numeric else "left", no_wrap=not last, min_width=width)
        for row in cells:
            table.add_row(*map(Text, row))
        console = Console(
            file=self._human, highlight=False, markup=False, emoji=False, width=self._width() or UNBOUNDED
        )
        if title is not None:
            console.print(Text(printable(title), style="bold"))
        with console.capture() as captured:
            console.print(table)
        text = captured.get()
        print(
            text if console.is_terminal else "\n".join(line.rstrip() for line in text.splitlines()),
            file=self._human,
            flush=True,
        )

    def progress(self, what: str) -> AbstractContextManager[Progress]:
        """Progress of one long thing, called with (done, in all): a bar on a terminal, else a line now and then."""
        return reporting(what, shown=not self.silent)

    def stages(self) -> AbstractContextManager[Tell]:
        """Progress of one thing after another."""
        return stages(shown=not self.silent)

    def finish(self, result: Mapping[str, Any], *, broken: UserError | None = None) -> None:
        """Print the verb's result for a program, if --json was given.

        An error that the verb came upon (`broken`) is part of the result, and the verb
        then ends with exit code 2.
        """
        if self.as_json and not self.silent:
            print_json({**result, **({} if broken is None else {"error": str(broken), "code": broken.code})})
        if broken is not None and self.as_json:  # the report is the one line of JSON
            typer.echo(f"Error: {broken}", err=True)
            raise typer.Exit(2)
        if broken is not None:
            raise broken

    @property
    def spent(self) -> float:
        """Seconds since the verb began."""
        return round(time.perf_counter() - self._begun, 3)

    def _width(self) -> int | None:
        """Columns of a terminal, or of COLUMNS; None for a pipe or a file, whose
        lines are left whole for `grep`."""
        fixed = os.environ.get("COLUMNS", "").isdecimal()
        return max(40, shutil.get_terminal_size().columns) if fixed or self._human.isatty() else None

    @property
    def _human(self) -> Any:  # a text stream, or what a test puts in its place
        return sys.stderr if self.as_json else sys.stdout


def print_json(result: Mapping[str, Any]) -> None:
    """One line of JSON on the process's own stdout; numbers that do not exist (NaN, infinity) become null."""
    out = REAL_STDOUT[-1] if REAL_STDOUT else sys.stdout
    ascii_only = (getattr(out, "encoding", None) or "ascii").lower().replace("-", "") != "utf8"
    text = json.dumps(jsonable(result), ensure_ascii=ascii_only, allow_nan=False)
    print(CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text), file=out, flush=True)


REAL_STDOUT: list[TextIO] = []
"""Where stdout went before `only_json` lent it to stderr."""


@contextmanager
def only_json() -> Iterator[None]:
    """Send whatever prints to stdout in the block to stderr: stdout is kept for the one JSON object."""
    REAL_STDOUT.append(sys.stdout)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = REAL_STDOUT.pop()


def shown(value: Any) -> str:
    """A table's cell: floats with four decimals, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def seconds(spent: float) -> str:
    """A duration in words: 4.0 s, 2 min 10 s."""
    whole = round(spent)
    return f"{spent:.1f} s" if spent < 10 else f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
