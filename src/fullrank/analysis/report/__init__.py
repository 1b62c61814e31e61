"""Run folders -> figures, tables and one HTML page that needs no network.

    report(["runs/a", "runs/b"]).save("report.html")

`collect.py` evaluates and diagnoses what is missing in the folders and gives a `RunResult` of each run; the sections of
`diagnostics/` make a `Figure` or `Examples` of these, or a `Missing` that says why there is none;
`answer.py` says in sentences what they come to, `page.py` puts them on a page: the answer first, models from inside
last. Whatever comes from data (names of runs, titles of items) is text there and nothing else. Needs the extra `report`
(matplotlib, jinja2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cells = tuple[tuple[Any, ...], ...]
SVG, SVG_LINKS = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
"""The names of what a document of its own is made of."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    svg: str
    alt: str
    """What it shows, for who cannot see it."""

    def _repr_svg_(self) -> str:
        """A document of its own, which notebooks show."""
        return self.svg.replace("<svg ", f'<svg xmlns="{SVG}" xmlns:xlink="{SVG_LINKS}" width="460" ', 1)


@dataclass(frozen=True)
class TableCell:
    """A value of a table with what stands below it in smaller type: its interval, its recipe."""

    value: Any
    below: str = ""


@dataclass(frozen=True)
class Figure:
    name: str
    """Its id on the page."""
    title: str
    caption: str
    """For a person who has not read the papers."""
    panels: tuple[Panel, ...]
    """Empty of a table, where there is nothing to draw."""
    headers: tuple[Any, ...]
    """Words, or a `TableCell` with a word and the metric's name."""
    rows: Cells
    """Its data table."""
    absent: tuple[str, ...] = ()
    """A sentence for each run that is not in it."""
    open: bool = False
    """Whether the data table stands open: it is a part of the answer."""


@dataclass(frozen=True)
class RankedList:
    """The best items of one run for one user."""

    key: str
    name: str
    colour: str
    items: tuple[tuple[str, bool], ...]
    """Title, and whether it is what the user chose next; best first."""


@dataclass(frozen=True)
class Example:
    """One user: what they did last, what they chose next, and the list of each run."""

    user: str
    history: tuple[str, ...]
    """Titles, the most recent first."""
    chosen: tuple[str, ...]
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
    """A figure that cannot be drawn."""

    name: str
    title: str
    why: str


Drawn = Figure | Examples
"""What a section may put on a page."""
Shown = Drawn | Missing | None
"""A drawing, the reason why there is none, or None for a section that is left out silently."""


def plural(count: int, word: str) -> str:
    """`1 run`, `1,234 runs`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """`18 s`, `4 min`, `2.5 h`."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def join_words(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
