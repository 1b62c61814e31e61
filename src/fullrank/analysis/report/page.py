"""One HTML page: a summary, sections of figures, a block for each run. Every text is escaped; nothing runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank import __version__
from fullrank.analysis.report import Figure, Missing, RunTable
from fullrank.analysis.report.results import RunResult
from fullrank.core.errors import UserError
from fullrank.core.files import write_text
from fullrank.problem import Problem

TEMPLATE = "page.html.j2"
FOOT = f"Written by fullrank {__version__}. The numbers behind each figure can be unfolded below it."


@dataclass(frozen=True)
class SummaryRow:
    """One run (or store) of the table at the top."""

    key: str
    name: str
    colour: str
    """As in the figures."""
    cells: tuple[Any, ...]


@dataclass(frozen=True)
class SummaryTable:
    """The table at the top of a page."""

    headers: tuple[str, ...]
    rows: tuple[SummaryRow, ...]
    note: str


@dataclass(frozen=True)
class RunBlock:
    """What the page shows of one run alone."""

    key: str
    name: str
    note: str
    figures: tuple[Figure | Missing, ...]
    tables: tuple[RunTable, ...]


@dataclass(frozen=True)
class Report:
    """A page and what is on it."""

    title: str
    subtitle: str
    sentences: tuple[str, ...]
    """What there is to see."""
    summary: SummaryTable
    sections: tuple[Figure | Missing, ...]
    """Figures of all runs together."""
    words: tuple[tuple[str, str], ...]
    """What a reader may not know, and what it means."""
    blocks: tuple[RunBlock, ...] = ()
    problem: Problem | None = None
    """Of the runs; None where the page is about something else."""
    results: tuple[RunResult, ...] = ()
    heading: str = "The runs"
    one_of: str = "run"
    """What a row of the summary is."""

    def __repr__(self) -> str:
        return f"Report({self.title!r}: {len(self.figures)} figures)"

    @property
    def figures(self) -> tuple[Figure | Missing, ...]:
        """Those of all runs, then those of each."""
        return (*self.sections, *(figure for block in self.blocks for figure in block.figures))

    @cached_property
    def html(self) -> str:
        """The page."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
            trim_blocks=False, keep_trailing_newline=True,
        )  # fmt: skip
        environment.filters["shown"] = format_cell
        return environment.get_template(TEMPLATE).render(page=self, foot=FOOT)

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        write_text(path, self.html)


def check_extra() -> None:
    """Raise `UserError` naming the extra where matplotlib or jinja2 is not installed."""
    for package in ("matplotlib", "jinja2"):
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != package:
                raise
            raise UserError(
                f"a report needs the package {package!r}: pip install 'fullrank[report]'", code="missing-package"
            ) from None


def format_cell(value: Any) -> str:
    """A table's cell: four significant digits, a dash for what is not there."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value != value else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
