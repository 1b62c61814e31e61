"""Findings about prepared data: each a sentence with its number and its grade."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "note", "warning"]
"""ok: in order; note: worth knowing when a recipe and a split are chosen; warning: likely to make results worthless."""


@dataclass(frozen=True)
class Finding:
    """A fact about the data that was counted."""

    name: str
    grade: Grade
    value: float | None
    """The number, a share where the sentence says nothing else; None where there is none."""
    said: str
    """One sentence: the number and, unless it is in order, what it means for the recipe or the split."""


def finding(
    name: str, value: float, fact: str, meaning: str, *, note: float = 0.0, warning: float = math.inf
) -> Finding:
    """A finding: a note above the value `note`, a warning above `warning`, either with its `meaning`; else ok."""
    grade: Grade = "warning" if value > warning else "note" if value > note else "ok"
    return Finding(name, grade, round(value, 6), fact if grade == "ok" else f"{fact}: {meaning}")


def share(part: float, whole: float) -> float:
    """A part over its whole; 0 where the whole is 0."""
    return float(part / whole) if whole else 0.0
