"""Run folders -> figures, tables and one HTML page that needs no network.

    report(["runs/a", "runs/b"]).save("report.html")

`collect.py` evaluates and diagnoses what is missing in the folders and gives a `RunResult` of each
run; the sections of `diagnostics/` make a `Figure` or `Examples` of these, or a `Missing` that says
why there is none; `answer.py` writes the sentences, `page.py` puts everything on a page: the answer
first, models from inside last. Names of runs and titles of items, which come from data, are escaped
there. Needs the extra `report` (matplotlib, jinja2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cells = tuple[tuple[Any, ...], ...]
SVG, SVG_LINKS = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
"""XML namespaces of a standalone SVG document."""


@dataclass(frozen=True)
class Panel:
    """The drawing of one pair of axes."""

    svg: str
    alt: str
    """Description for those who cannot see the drawing."""

    def _repr_svg_(self) -> str:
        """A standalone document, which notebooks show."""
        return self.svg.replace("<svg ", f'<svg xmlns="{SVG}" xmlns:xlink="{SVG_LINKS}" width="460" ', 1)


@dataclass(frozen=True)
class TableCell:
    """A cell of a table with a line below its value in smaller type: an interval, a recipe."""

    value: Any
    below: str = ""


@dataclass(frozen=True)
class Figure:
    name: str
    """Id on the page."""
    title: str
    caption: str
    """Explanation for a reader who does not know the papers."""
    panels: tuple[Panel, ...]
    """The drawings; empty for a table."""
    headers: tuple[Any, ...]
    """Headers of the data table: words, or a `TableCell` with a word and the metric's name."""
    rows: Cells
    """Rows of the data table."""
    absent: tuple[str, ...] = ()
    """A sentence for each run, or chart, that is not in the figure."""
    open: bool = False
    """Whether the data table stands open, as a part of the answer."""


@dataclass(frozen=True)
class RankedList:
    """The best items of one run for one user."""

    key: str
    name: str
    colour: str
    items: tuple[tuple[str, bool], ...]
    """Title of an item, and whether the user chose it next; best first."""


@dataclass(frozen=True)
class Example:
    """One user: the last events, the items chosen next, and the list of each run."""

    user: str
    history: tuple[str, ...]
    """Titles, the most recent first."""
    chosen: tuple[str, ...]
    """Titles of the items chosen next."""
    lists: tuple[RankedList, ...]


@dataclass(frozen=True)
class Examples:
    """Lists of some users, runs side by side."""

    name: str
    title: str
    caption: str
    users: tuple[Example, ...]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn, and why."""

    name: str
    title: str
    why: str


Drawn = Figure | Examples
"""A part of a page, as a section makes it."""
Shown = Drawn | Missing | None
"""A drawing, the reason why there is none, or None for a section that is left out silently."""


def plural(count: int, word: str) -> str:
    """A count with its word: `1 run`, `1,234 runs`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """A duration in words: `18 s`, `4 min`, `2.5 h`."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def join_words(words: Sequence[str]) -> str:
    """Words as a list in a sentence: `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
