"""One HTML page: the answer, a table, sections of figures, models from inside (folded).

Every text is escaped, and no script runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank import __version__
from fullrank.analysis.report import Drawn, Figure, Missing, TableCell
from fullrank.analysis.report.results import RunResult
from fullrank.core.errors import package
from fullrank.core.files import write_text
from fullrank.core.registry import Problem

TEMPLATE = "page.html.j2"
FOOT = f"Written by fullrank {__version__}. The data table of each figure can be unfolded below it."


@dataclass(frozen=True)
class SummaryRow:
    """The row of a run (or a store) in the table at the top."""

    key: str
    name: str
    colour: str
    """Colour in the figures."""
    cells: tuple[Any, ...]
    note: str = ""
    """Text below the name."""


@dataclass(frozen=True)
class SummaryTable:
    """The table at the top of a page."""

    headers: tuple[Any, ...]
    rows: tuple[SummaryRow, ...]
    note: str


@dataclass(frozen=True)
class RunBlock:
    """The part of the page about a single run."""

    key: str
    name: str
    note: str
    figures: tuple[Drawn | Missing, ...]


@dataclass(frozen=True)
class Report:
    """The contents of a page."""

    title: str
    subtitle: str
    sentences: tuple[str, ...]
    """The answer, the most important sentence first."""
    summary: SummaryTable
    sections: tuple[Drawn | Missing, ...]
    """Figures of all runs together: parts of the answer first."""
    words: tuple[tuple[str, str], ...]
    """Glossary: a word, and what it means."""
    facts: tuple[tuple[str, str], ...] = ()
    """Data, protocol, date and cost of the numbers."""
    internals: tuple[Drawn | Missing, ...] = ()
    """Figures of all runs that show the models from inside; folded, with the blocks."""
    blocks: tuple[RunBlock, ...] = ()
    problem: Problem | None = None
    """Problem of the runs; None where the page is about something else."""
    results: tuple[RunResult, ...] = ()
    heading: str = "The runs"
    one_of: str = "run"
    """Header of the first column of the summary."""

    def __repr__(self) -> str:
        return f"Report({self.title!r}: {len(self.figures)} figures)"

    def with_lead(self, sentence: str) -> Report:
        """Put a sentence before all others."""
        return replace(self, sentences=(sentence, *self.sentences))

    @property
    def figures(self) -> tuple[Drawn | Missing, ...]:
        """All figures in the order of the page: of all runs, internal ones, then of each run."""
        return (*self.sections, *self.internals, *(figure for block in self.blocks for figure in block.figures))

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """(title of a figure, why it, or a run in it, is missing) of each such figure."""
        reasons = ((f.title, f.why if isinstance(f, Missing) else " ".join(f.absent)) for f in self.figures)
        return tuple((title, why) for title, why in reasons if why)

    @cached_property
    def html(self) -> str:
        """The page."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        folder = FileSystemLoader(Path(__file__).parent)
        environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
        environment.filters["shown"] = format_cell
        environment.tests["cell"] = lambda value: isinstance(value, TableCell)
        environment.tests["drawn"] = lambda figure: not isinstance(figure, Missing)
        environment.tests["wide"] = is_wide
        return environment.get_template(TEMPLATE).render(page=self, foot=FOOT)

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        write_text(path, self.html)


def is_wide(figure: Drawn) -> bool:
    """Whether a figure takes the whole width: any but one with a single pair of axes."""
    return not isinstance(figure, Figure) or figure.open or len(figure.panels) != 1


def is_table(figure: Drawn | Missing) -> bool:
    """Whether a figure is a table without a drawing, folded."""
    return isinstance(figure, Figure) and not figure.panels and not figure.open


def check_extra() -> None:
    """Raise `UserError` naming the extra where matplotlib or jinja2 is not installed."""
    for name in ("matplotlib", "jinja2"):
        package(name, "report", "a report")


def format_cell(value: Any) -> str:
    """Text of a table's cell: four significant digits, a dash for a missing value."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value != value else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
