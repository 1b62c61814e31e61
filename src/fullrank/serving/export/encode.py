"""Raw columns of impressions to the inputs of the graph in this folder. It needs numpy alone, and not fullrank.

    encode = Encoder("exports/ranker")
    inputs = encode({"user": [7, None], "genres": ["Drama|Comedy", None], "price": [9.5, 3]})

A copy of this file lies in every export of a ranking model, and of a recommender that reads
features, whose roles (`event`, `request`, `user`) have an encoder each. What it does, for
code in other languages:

- A category is text: 42 and 42.0 are "42", true is "true". Null, NaN and "" are missing. Ids: 0
  missing, 1 unknown, else 2 + the place in the field's list in vocabulary.json. With `shares` the
  list is that of the field named there.
- With `hash_buckets` there is no list: BLAKE2b of the UTF-8 text with a digest of 8 bytes, as a
  whole number with the lowest byte first, modulo `hash_buckets`, plus 2.
- Numbers are float32, NaN where missing: `linear` x; `standard` (x - mean) * scale, so `scale` is 1
  / deviation; `log` sign(x) log(1 + |x|). `bucket` is an id: 2 plus how many `edges` are at most x
  (a value on an edge belongs to the bucket above it), 0 where missing.
- A bag or sequence is a list, or text that is cut at `separator` and stripped. Missing values are
  left out; then a bag keeps its first `max_length` values, a sequence its last.

B rows, F categorical fields and numbers in buckets, X other numbers, L values of the longest row of
a bag.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

MISSING, UNKNOWN, FIRST = 0, 1, 2


class Encoder:
    """The encoder that encoder.json and vocabulary.json of a folder describe; call it with raw columns."""

    def __init__(self, folder: str | Path = ".", role: str = "fields"):
        encoder = json.loads((Path(folder) / "encoder.json").read_text(encoding="utf-8"))
        values = json.loads((Path(folder) / "vocabulary.json").read_text(encoding="utf-8"))
        self.fields = encoder["schema"][role]
        self._fitted = encoder["fitted"]
        self._ids = {name: {value: FIRST + at for at, value in enumerate(listed)} for name, listed in values.items()}
        self._buckets = {field["name"]: field.get("hash_buckets") for field in self.fields}

    def __call__(self, columns: Any) -> dict[str, np.ndarray]:
        """The inputs by name: `categorical` [B F], `numeric` [B X], `bag_0` [B L], `bag_lengths_0` [B], ...

        `columns[name]` are the values of each field: a mapping to lists, or a DataFrame.
        Raises `KeyError` for a column that is not there, and `ValueError` for values that
        training would have refused.
        """
        ids: list[np.ndarray] = []
        numbers: list[np.ndarray] = []
        inputs: dict[str, np.ndarray] = {}
        for field in self.fields:
            column = list(columns[field["name"]])
            if field["kind"] in ("bag", "sequence"):
                number = sum(name.startswith("bag_lengths_") for name in inputs)
                rows = [self._several(field, value) for value in column]
                padded = np.zeros((len(rows), max([1, *map(len, rows)])), np.int64)
                for at, row in enumerate(rows):
                    padded[at, : len(row)] = row
                inputs[f"bag_{number}"] = padded
                inputs[f"bag_lengths_{number}"] = np.array([len(row) for row in rows], np.int64)
            elif field["kind"] != "numeric":
                ids.append(np.array([self._id(field, category(value)) for value in column], np.int64))
            elif field["transform"] == "bucket":
                ids.append(self._bucket_ids(field["name"], column))
            else:
                numbers.append(self._numbers(field, column))
        inputs |= {"categorical": np.stack(ids, 1)} if ids else {}
        return inputs | ({"numeric": np.stack(numbers, 1)} if numbers else {})

    def _id(self, field: dict[str, Any], value: str | None) -> int:
        owner = field.get("shares") or field["name"]
        if value is None:
            return MISSING
        if self._buckets[owner] is not None:
            return FIRST + hash_bucket(value, self._buckets[owner])
        return self._ids[owner].get(value, UNKNOWN)

    def _several(self, field: dict[str, Any], value: Any) -> list[int]:
        """The ids of a bag or sequence: a list, or text that is cut at the separator;
        missing values are left out."""
        if is_missing(value):
            return []
        if isinstance(value, str):
            if field["separator"] is None:
                raise ValueError(f"{field['name']} is text, and its schema has no separator: give lists")
            value = [part.strip() for part in value.split(field["separator"])]
        known = [text for text in map(category, value) if text is not None]
        limited = known[-field["max_length"] :] if field["kind"] == "sequence" else known[: field["max_length"]]
        return [self._id(field, text) for text in limited]

    def _bucket_ids(self, name: str, column: Iterable[Any]) -> np.ndarray:
        values = np.array([number(value) for value in column], np.float64)
        ids = np.searchsorted(np.array(self._fitted[name]["edges"], np.float64), values, side="right") + FIRST
        return np.where(np.isnan(values), MISSING, ids).astype(np.int64)

    def _numbers(self, field: dict[str, Any], column: Iterable[Any]) -> np.ndarray:
        """A numeric column, transformed as in training."""
        values = np.array([number(value) for value in column], np.float64)
        if field["transform"] == "standard":
            values = (values - self._fitted[field["name"]]["mean"]) * self._fitted[field["name"]]["scale"]
        elif field["transform"] == "log":
            values = np.sign(values) * np.log1p(np.abs(values))
        if (np.abs(values) > np.finfo(np.float32).max).any():
            raise ValueError(f"{field['name']} holds numbers beyond 3e38")
        return values.astype(np.float32)


def is_missing(value: Any) -> bool:
    """Null, NaN, and what pandas has for them."""
    return (
        value is None
        or type(value).__name__ == "NAType"
        or (isinstance(value, float | np.floating) and bool(value != value))
    )


def category(value: Any) -> str | None:
    """A category as text; None where it is missing."""
    if is_missing(value) or value == "":
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        value = int(value)
    if not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no category: give text, a whole number or a boolean")
    return str(value)


def number(value: Any) -> float:
    """A number as float, NaN where it is missing."""
    if is_missing(value) or (isinstance(value, str) and not value.strip()):
        return math.nan
    parsed = float(value)
    if math.isinf(parsed):
        raise ValueError(f"{value!r} is no finite number")
    return parsed


def hash_bucket(text: str, buckets: int) -> int:
    """The hash bucket of a value: 0 .. buckets - 1."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % buckets
