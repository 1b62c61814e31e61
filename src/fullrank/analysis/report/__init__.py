"""Run folders -> figures, tables and one HTML page that needs no network.

    report(["runs/a", "runs/b"]).save("report.html")

`collect.py` evaluates and diagnoses what is missing in the folders and gives a `RunResult` of each run; the sections of
`diagnostics/` make a `Figure` of these, or a `Missing` that says why there is none, and `page.py` puts them on a page.
Whatever comes from data (names of runs, titles of items) is text there and nothing else. Needs the extra `report`
(matplotlib, jinja2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cells = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    svg: str
    alt: str
    """What it shows, for who cannot see it."""


@dataclass(frozen=True)
class Figure:
    name: str
    """Its id on the page."""
    title: str
    caption: str
    """For a person who has not read the papers."""
    panels: tuple[Panel, ...]
    headers: tuple[str, ...]
    rows: Cells
    """The numbers behind it."""
    absent: tuple[str, ...] = ()
    """A sentence for each run that is not in it."""


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn."""

    name: str
    title: str
    why: str


@dataclass(frozen=True)
class RunTable:
    """Numbers without a figure, folded until they are asked for."""

    title: str
    caption: str
    headers: tuple[str, ...]
    rows: Cells


def plural(count: int, one: str) -> str:
    """`1 run`, `1,234 runs`."""
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def join_words(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
