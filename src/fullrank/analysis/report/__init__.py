"""Rows -> tables, SVG figures and one HTML page that needs no network.

    report(["runs/a", "runs/b"]).save("report.html")

`findings.py` collects what is known of each run, a figure (`figures/`) is a function of all findings that gives a
`Figure`, or a `Missing` that says why there is none; `page.py` puts them on a page. Whatever comes from data (names of
runs, titles of items) is text there and nothing else. Needs the extra `report` (matplotlib, jinja2).
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


def plural(count: int, one: str) -> str:
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
