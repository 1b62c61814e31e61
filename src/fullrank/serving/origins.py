"""Origins: what is said of an item that a run does not have, and where its vector comes from (`growth.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Rule = Literal["like", "features", "title", "none"]
Near = tuple[tuple[int, ...], tuple[float, ...]]
"""Items of the run, by their numbers, and their shares in a mean."""


@dataclass(frozen=True)
class Newcomer:
    """What is said of an item that the run does not have."""

    id: int | str
    title: str | None = None
    text: str | None = None
    cells: Mapping[str, Any] = field(default_factory=dict)
    """Values of its columns."""
    like: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where the vector of a new item comes from; two that are equal give equal vectors."""

    item: int | str
    rule: Rule
    neighbours: tuple[int, ...] = ()
    """Items of the run, by their numbers."""
    weights: tuple[float, ...] = ()
    """Their shares, which add up to 1."""
    read: tuple[tuple[str, Any], ...] = ()
    """What the item module reads of the item itself."""
    copied: int | None = None
    """The item of the run whose codes or text it has."""
