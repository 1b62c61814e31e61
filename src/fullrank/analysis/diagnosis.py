"""Rows of a diagnosis, and their file: one figure of one model a row, one JSON object a line.

A row is a plain mapping with the keys of `row`: which diagnostic, the name of the figure, where it was taken (layer,
head, index, label) and its value. Layers and heads count from 0. What a model does not have (a baseline has no layers)
has a row named `left_out` that says why.
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
"""One figure, as it stands in diagnosis.jsonl."""

NAME = "diagnosis.jsonl"
"""File of a run folder."""
LEFT_OUT = "left_out"
"""The name of a row that says why a diagnostic, or a part of one, is missing."""


def row(
    diagnostic: str,
    name: str,
    value: float | int | None,
    *,
    layer: int | None = None,
    head: int | None = None,
    index: int | None = None,
    label: str | None = None,
) -> Row:
    """One figure. `value` is None where the number does not exist."""
    where: Row = {"layer": layer, "head": head, "index": index, "label": label}
    return {"diagnostic": diagnostic, "name": name, **where, "value": value}


def rows_of(diagnostic: str, figures: Mapping[str, Any], **where: Any) -> list[Row]:
    """A row of each figure (name -> number, also one of torch or numpy), all taken at one place."""
    return [
        row(diagnostic, name, value if isinstance(value, int | None) else float(value), **where)
        for name, value in figures.items()
    ]


def not_measured(diagnostic: str, why: str) -> Row:
    """The row of a diagnostic, or of a part of one, that this model does not have."""
    return row(diagnostic, LEFT_OUT, None, label=why)


KEYS = frozenset(row("", "", None))


def about_rows(what: str, split: str, count: int, seed: int, fingerprint: str, weights: str | None) -> Iterator[Row]:
    """What all figures of a diagnosis depend on; `what` was counted (users, impressions)."""
    yield row("about", "split", None, label=split)
    yield row("about", what, count)
    yield row("about", "seed", seed)
    yield row("about", "fingerprint", None, label=fingerprint)
    if weights is not None:
        yield row("about", "weights", None, label=weights)


@dataclass(frozen=True)
class Diagnosis:
    """The rows of one model. The first ones, of the diagnostic `about`, say what the others depend on."""

    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        names = dict.fromkeys(one["diagnostic"] for one in self.rows)
        return f"Diagnosis({len(self.rows):,} rows: {', '.join(names)})"

    def about(self) -> JsonObject:
        """Split, users (of a ranking model: impressions), seed, fingerprint, and where known the weights' hash."""
        return {one["name"]: one["value"] if one["label"] is None else one["label"] for one in self.of("about")}

    def of(self, diagnostic: str, name: str | None = None) -> list[Row]:
        """The rows of one diagnostic (and name), without those that say what was left out."""
        return [
            one for one in self.rows
            if one["diagnostic"] == diagnostic and one["name"] != LEFT_OUT and name in (None, one["name"])
        ]  # fmt: skip

    def value(self, diagnostic: str, name: str) -> float | None:
        """A figure that is there once; None where it is not."""
        found = self.of(diagnostic, name)
        return found[0]["value"] if found else None

    def values(self, diagnostic: str, name: str | None, *keys: str, **where: Any) -> dict[Any, float]:
        """Place -> value, where both are there. A place is what `keys` (layer, head, index, label, name) hold: one of
        them alone, or a tuple. `where` are the keys that a row must hold as they are given."""
        place = itemgetter(*keys)
        return {
            place(one): one["value"] for one in self.of(diagnostic, name)
            if None not in (place(one), one["value"]) and where.items() <= one.items()
        }  # fmt: skip

    def last_layer(self, diagnostic: str, name: str) -> float | None:
        """A figure behind the last layer that has it; None where no layer has."""
        values = self.values(diagnostic, name, "layer")
        return values[max(values)] if values else None

    def left_out(self) -> dict[str, str]:
        """Diagnostic -> why it, or a part of it, is not there."""
        return {one["diagnostic"]: str(one["label"]) for one in self.rows if one["name"] == LEFT_OUT}

    def save(self, path: str | Path) -> None:
        """One JSON object a line."""
        write_jsonl(path, (jsonable(one) for one in self.rows))

    @staticmethod
    def load(path: str | Path) -> Diagnosis:
        """The inverse of `save`. Raises `UserError` for a file that is none."""
        with in_context(f"{path} is no readable diagnosis (", "); `fullrank diagnose` writes one", code="file-damaged"):
            rows = read_jsonl(path, torn=False)
            wrong = [f"line {number} is {brief(one)}" for number, one in enumerate(rows, 1) if not is_row(one)]
            if wrong or not rows:
                raise UserError(wrong[0] if wrong else "it holds 0 rows", code="file-damaged")
        return Diagnosis(tuple(rows))


def is_row(one: Any) -> bool:
    """Whether a value is a row: the keys of `row`, each of its type."""
    if not isinstance(one, dict) or set(one) != KEYS:
        return False
    numbers = all(one[key] is None or type(one[key]) is int for key in ("layer", "head", "index"))
    texts = isinstance(one["diagnostic"], str) and isinstance(one["name"], str)
    return numbers and texts and isinstance(one["label"], str | None) and isinstance(one["value"], int | float | None)
