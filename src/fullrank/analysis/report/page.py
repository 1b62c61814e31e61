"""One HTML page: the answer, a table, sections of figures, models from inside (folded). Every text is escaped; nothing
runs.
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
    """One run (or store) of the table at the top."""

    key: str
    name: str
    colour: str
    """As in the figures."""
    cells: tuple[Any, ...]
    note: str = ""
    """Below its name."""


@dataclass(frozen=True)
class SummaryTable:
    """The table at the top of a page."""

    headers: tuple[Any, ...]
    rows: tuple[SummaryRow, ...]
    note: str


@dataclass(frozen=True)
class RunBlock:
    """What the page shows of one run alone."""

    key: str
    name: str
    note: str
    figures: tuple[Drawn | Missing, ...]


@dataclass(frozen=True)
class Report:
    """A page and what is on it."""

    title: str
    subtitle: str
    sentences: tuple[str, ...]
    """What there is to see."""
    summary: SummaryTable
    sections: tuple[Drawn | Missing, ...]
    """What all runs are in together: parts of the answer, then figures."""
    words: tuple[tuple[str, str], ...]
    """What a reader may not know, and what it means."""
    facts: tuple[tuple[str, str], ...] = ()
    """What the numbers rest on: data, protocol, date and cost."""
    internals: tuple[Drawn | Missing, ...] = ()
    """Figures of all runs that show the models from inside; folded, with the blocks."""
    blocks: tuple[RunBlock, ...] = ()
    problem: Problem | None = None
    """Of the runs; None where the page is about something else."""
    results: tuple[RunResult, ...] = ()
    heading: str = "The runs"
    one_of: str = "run"
    """What a row of the summary is."""

    def __repr__(self) -> str:
        return f"Report({self.title!r}: {len(self.figures)} figures)"

    def with_lead(self, sentence: str) -> Report:
        """The same page, whose first sentence is this one."""
        return replace(self, sentences=(sentence, *self.sentences))

    @property
    def figures(self) -> tuple[Drawn | Missing, ...]:
        """Those of all runs, those of them that are internal, then those of each run."""
        return (*self.sections, *self.internals, *(figure for block in self.blocks for figure in block.figures))

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Title of a figure -> why it, or a run in it, is not there."""
        reasons = []
        for figure in self.figures:
            whys = (figure.why,) if isinstance(figure, Missing) else figure.absent
            if whys:
                reasons.append((figure.title, " ".join(whys)))
        return tuple(reasons)

    @cached_property
    def html(self) -> str:
        """The page."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=False,
            keep_trailing_newline=True,
        )
        environment.filters["shown"] = format_cell
        environment.tests["cell"] = lambda value: isinstance(value, TableCell)
        environment.tests["drawn"] = lambda figure: not isinstance(figure, Missing)
        environment.tests["wide"] = is_wide
        return environment.get_template(TEMPLATE).render(page=self, foot=FOOT)

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        write_text(path, self.html)


def is_wide(figure: Drawn) -> bool:
    """Whether it takes the whole width: all but a figure of one pair of axes, of which two stand side by side."""
    return not isinstance(figure, Figure) or figure.open or len(figure.panels) != 1


def is_table(figure: Drawn | Missing) -> bool:
    """Whether it is numbers alone, folded."""
    return isinstance(figure, Figure) and not figure.panels and not figure.open


def check_extra() -> None:
    """Raise `UserError` naming the extra where matplotlib or jinja2 is not installed."""
    for name in ("matplotlib", "jinja2"):
        package(name, "report", "a report")


def format_cell(value: Any) -> str:
    """A table's cell: four significant digits, a dash for what is not there."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value != value else f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
