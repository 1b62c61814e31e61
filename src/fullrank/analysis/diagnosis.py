"""Rows of a diagnosis, and their file: a row is one number measured of one model, a JSON object a line.

A row is a plain mapping with the keys of `row`: the diagnostic, the name of the number, where it
was measured (layer, head, index, label) and its value. Layers and heads count from 0. A part that a
model does not have (a baseline has no layers) gets a row named `left_out` that says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError, brief, in_context
from fullrank.core.files import JsonObject, jsonable, write_jsonl
from fullrank.core.readers import read_jsonl

Row = JsonObject
"""A line of diagnosis.jsonl."""

NAME = "diagnosis.jsonl"
"""Name of the file in a run folder."""
LEFT_OUT = "left_out"
"""The name of a row that says why a diagnostic, or a part of one, is missing."""


def row(
    diagnostic: str,
    name: str,
    value: Any,
    *,
    layer: int | None = None,
    head: int | None = None,
    index: int | None = None,
    label: str | None = None,
) -> Row:
    """A row.

    `value` is a number, also one of torch or numpy; None where the number does not exist.
    """
    where: Row = {"layer": layer, "head": head, "index": index, "label": label}
    number = value if isinstance(value, int | None) else float(value)
    return {"diagnostic": diagnostic, "name": name, **where, "value": number}


def rows_of(diagnostic: str, figures: Mapping[str, Any], **where: Any) -> list[Row]:
    """A row for each figure (name -> number), all measured at one place."""
    return [row(diagnostic, name, value, **where) for name, value in figures.items()]


def not_measured(diagnostic: str, why: str) -> Row:
    """The row that says why a diagnostic, or a part of one, is missing."""
    return row(diagnostic, LEFT_OUT, None, label=why)


KEYS = frozenset(row("", "", None))


def about_rows(unit: str, split: str, count: int, seed: int, fingerprint: str, weights: str | None) -> Iterator[Row]:
    """First rows of a diagnosis: the sample of `count` units, the data and the weights."""
    yield row("about", "split", None, label=split)
    yield row("about", unit, count)
    yield row("about", "seed", seed)
    yield row("about", "fingerprint", None, label=fingerprint)
    if weights is not None:
        yield row("about", "weights", None, label=weights)


@dataclass(frozen=True)
class Diagnosis:
    """The rows of one model; the first ones, of `about`, say what all others depend on."""

    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        names = dict.fromkeys(row["diagnostic"] for row in self.rows)
        return f"Diagnosis({len(self.rows):,} rows: {', '.join(names)})"

    def about(self) -> JsonObject:
        """Split, users or impressions, seed, fingerprint, and the weights' hash where known."""
        return {row["name"]: row["value"] if row["label"] is None else row["label"] for row in self.of("about")}

    def of(self, diagnostic: str, name: str | None = None) -> list[Row]:
        """The rows of one diagnostic (and name), without those that say what was left out."""
        return [
            row
            for row in self.rows
            if row["diagnostic"] == diagnostic and row["name"] != LEFT_OUT and name in (None, row["name"])
        ]

    def value(self, diagnostic: str, name: str) -> float | None:
        """The number of a name with a single row; None where there is no such row."""
        rows = self.of(diagnostic, name)
        return rows[0]["value"] if rows else None

    def values(self, diagnostic: str, name: str | None, *keys: str, **where: Any) -> dict[Any, float]:
        """Place -> value of the rows of one diagnostic (and name) that have both.

        The place is the value of `keys` (layer, head, index, label, name) in a row: of a single
        key, or a tuple of several. `where` selects the rows with these values.
        """
        place_of = itemgetter(*keys)
        return {
            place_of(row): row["value"]
            for row in self.of(diagnostic, name)
            if None not in (place_of(row), row["value"]) and where.items() <= row.items()
        }

    def last_layer(self, diagnostic: str, name: str) -> float | None:
        """The number of the last layer that has it; None where no layer has it."""
        values = self.values(diagnostic, name, "layer")
        return values[max(values)] if values else None

    def left_out(self) -> dict[str, str]:
        """Diagnostic -> why it, or a part of it, is missing."""
        return {row["diagnostic"]: str(row["label"]) for row in self.rows if row["name"] == LEFT_OUT}

    def save(self, path: str | Path) -> None:
        """Write one JSON object a line."""
        write_jsonl(path, (jsonable(row) for row in self.rows))

    @staticmethod
    def load(path: str | Path) -> Diagnosis:
        """Read a file of `save`. Raises `UserError` where it is damaged or holds something else."""
        with in_context(f"{path} is no readable diagnosis (", "); `fullrank diagnose` writes one", code="file-damaged"):
            rows = read_jsonl(path, torn=False)
            wrong = [f"line {number} is {brief(entry)}" for number, entry in enumerate(rows, 1) if not is_row(entry)]
            if wrong or not rows:
                raise UserError(wrong[0] if wrong else "it holds 0 rows", code="file-damaged")
        return Diagnosis(tuple(rows))


def is_row(entry: Any) -> bool:
    """Whether a value is a row: the keys of `row`, each of its type."""
    if not isinstance(entry, dict) or set(entry) != KEYS:
        return False
    numbers = all(entry[key] is None or type(entry[key]) is int for key in ("layer", "head", "index"))
    texts = isinstance(entry["diagnostic"], str) and isinstance(entry["name"], str)
    return (
        numbers and texts and isinstance(entry["label"], str | None) and isinstance(entry["value"], int | float | None)
    )
