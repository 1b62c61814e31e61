"""ServedPredictor: one version of a ranking model's service, opened: what its rows are, and their probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from fullrank.core.errors import did_you_mean, in_context
from fullrank.data.impressions.encoding import transform
from fullrank.data.impressions.schema import AnyField, Categorical, Numeric, Schema
from fullrank.data.impressions.vocabulary import Vocabulary
from fullrank.inference.predict import ROWS, predict_batch
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.serving.card import FEW, run_facts
from fullrank.serving.messages import LONGEST_TEXT, JsonObject
from fullrank.serving.problems import COLUMN, MOST_ERRORS
from fullrank.serving.settings import ServeSettings


class ServedPredictor:
    """A version: `rows` reads on any thread, `answer` is of the model thread."""

    def __init__(self, run: Run, predictor: Predictor, longest: int):
        self.run, self.name, self.predictor = run, run.path.name, predictor
        self.rows = RowReader(predictor.encoder.schema, longest)

    @classmethod
    def open(cls, folder: str | Path, settings: ServeSettings) -> ServedPredictor:
        """The run in `folder`. Raises `UserError` for a recommender and for a damaged folder."""
        run = Run.open(folder)
        encoder = run.encoder()  # refuses a recommender
        predictor = Predictor(run.model(encoder), encoder, device=settings.device, name=run.path.name)
        return cls(run, predictor, settings.history_most)

    @property
    def blank(self) -> pl.DataFrame:
        """One row in which every column is missing."""
        return self.rows.frame([dict.fromkeys(self.rows.fields)])

    def answer(self, frames: Sequence[pl.DataFrame]) -> list[list[float]]:
        """The click probabilities of each table of rows; all go through the model together."""
        found = self.probabilities(pl.concat(frames)).tolist()
        ends = np.cumsum([len(frame) for frame in frames])
        return [found[end - len(frame) : end] for end, frame in zip(ends, frames, strict=True)]

    def probabilities(self, frame: pl.DataFrame) -> Float[np.ndarray, "R"]:
        """The click probabilities of a table. Raises `UserError` where a column holds what the model refuses."""
        model, encoder = self.predictor.model, self.predictor.encoder
        with in_context("", public=True):
            batches = [transform(encoder, part, "the rows") for part in frame.iter_slices(ROWS)]
        return np.concatenate([predict_batch(model, batch) for batch in batches])

    def card(self) -> JsonObject:
        """What the model is, was trained on, and reads."""
        return {
            **run_facts(self.run),
            "problem": "ranking",
            "columns": [self._described(name) for name in self.rows.fields],
        }

    def _described(self, name: str) -> JsonObject:
        """A column for a form: `kind`, and the values of a category that has few."""
        field, encoder = self.rows.fields[name], self.predictor.encoder
        found = {"name": name, "kind": field.kind}
        if isinstance(field, Categorical):
            known = encoder.lookup(field)
            if isinstance(known, Vocabulary) and len(known.values) <= FEW:
                return found | {"values": sorted(known.values.to_list())}
        return found


NOTHING = type(None)
NUMBERS = {NOTHING, bool, int, float}
VALUES = {*NUMBERS, str}
MOST_WHOLE = 2**63
CATEGORY = "text, a whole number of at most 64 bits, true or false, or null"
TYPES = ["string", "integer", "boolean", "null"]


class RowMistakes(Exception):
    """Values that the columns of a run do not take; `errors` as pydantic's `ValidationError` has them."""

    def __init__(self, mistakes: Sequence[Mapping[str, Any]]):
        super().__init__(f"{len(mistakes)} mistakes in rows")
        self._mistakes = mistakes

    def errors(self) -> Sequence[Mapping[str, Any]]:
        return self._mistakes


class RowReader:
    """The columns of a run, as rows of JSON give them; lists hold at most `longest` values."""

    def __init__(self, schema: Schema, longest: int):
        self.fields: dict[str, AnyField] = {field.name: field for field in schema.fields}
        self.longest = longest

    @property
    def properties(self) -> dict[str, JsonObject]:
        """The JSON Schema of each column."""
        return {name: _taken(field, self.longest)[0] for name, field in self.fields.items()}

    @property
    def schema(self) -> JsonObject:
        """The JSON Schema of a row."""
        return {
            "title": "Row", "type": "object", "description": "An impression: every column, null where it is missing.",
            "properties": self.properties, "required": list(self.fields), "additionalProperties": False,
        }  # fmt: skip

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """The rows as a table whose types follow from the columns alone. Raises `RowMistakes`."""
        mistakes = list(islice(self._misnamed(rows), MOST_ERRORS))
        if mistakes:
            raise RowMistakes(mistakes)
        columns = []
        for name, field in self.fields.items():
            values = [row[name] for row in rows]
            if mistakes := list(islice(self._mistyped(field, values), MOST_ERRORS)):
                raise RowMistakes(mistakes)
            columns.append(_column(field, values))
        return pl.DataFrame(columns)

    def _misnamed(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[JsonObject]:
        expected = self.fields.keys()
        for place, row in enumerate(rows):
            if row.keys() == expected:
                continue
            for name in [name for name in row if name not in expected]:
                told = f"there is no such column{did_you_mean(name, expected)} (allowed: {', '.join(expected)})"
                yield _mistake(place, name, told)
            for name in [name for name in expected if name not in row]:
                yield _mistake(place, name, "the model reads this column: give its value, or null where it is missing")

    def _mistyped(self, field: AnyField, values: Sequence[Any]) -> Iterator[JsonObject]:
        numeric = isinstance(field, Numeric)
        _, allowed, told = _taken(field, self.longest)
        lists = [value for value in values if type(value) is list]
        if _fit(values, allowed, numeric) and _fit(list(chain.from_iterable(lists)), VALUES, numeric):
            if max(map(len, lists), default=0) <= self.longest:
                return
        for place, value in enumerate(values):
            if type(value) not in allowed:
                yield _mistake(place, field.name, f"this column takes {told}")
            elif isinstance(value, list):
                if len(value) > self.longest:
                    many = f"there are {len(value):,} values, and this service takes at most {self.longest:,}"
                    yield _mistake(place, field.name, many)
                for at, part in enumerate(value[: self.longest]):
                    if wrong := f"a value of this list is {CATEGORY}" if type(part) not in VALUES else _wrong(part):
                        yield _mistake(place, field.name, wrong, at)
            elif wrong := _wrong(value, numeric=numeric):
                yield _mistake(place, field.name, wrong)


def _mistake(row: int, column: str, told: str, *place: int) -> JsonObject:
    return {"type": COLUMN, "loc": ("rows", row, column, *place), "msg": told}


def _taken(field: AnyField, longest: int) -> tuple[JsonObject, set[type], str]:
    """Values that a column takes: as a JSON Schema, as the types of its values, and in words."""
    if isinstance(field, Numeric):
        return {"type": ["number", "boolean", "null"]}, NUMBERS, "a number, true or false, or null"
    value: JsonObject = {"type": TYPES, "maxLength": LONGEST_TEXT}
    if isinstance(field, Categorical):
        return value, VALUES, CATEGORY
    types, text = ["array", "null"], ""
    kinds: set[type] = {NOTHING, list}
    if field.separator is not None:
        types, kinds = ["array", "string", "null"], {NOTHING, list, str}
        text = f" or text with {field.separator!r} between its values,"
    form = {"type": types, "items": value, "maxItems": longest}
    return form, kinds, f"a list of values,{text} or null"


def _fit(values: Sequence[Any], allowed: set[type], numeric: bool) -> bool:
    """Whether all are well, by a look that is quick; False says that each has to be looked at."""
    kinds = set(map(type, values))
    if not kinds <= allowed or (float in kinds and not numeric):
        return False
    if kinds <= {NOTHING, str, list}:
        return all(value is None or type(value) is list or len(value) <= LONGEST_TEXT for value in values)
    return str not in kinds and all(value is None or -MOST_WHOLE <= value < MOST_WHOLE for value in values)


def _wrong(value: Any, *, numeric: bool = False) -> str | None:
    """What is wrong with one value of a type that is allowed."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"a text has at most {LONGEST_TEXT:,} characters"
    if isinstance(value, int) and not -MOST_WHOLE <= value < MOST_WHOLE:
        return "a whole number has at most 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number is finite"
    if isinstance(value, float) and not numeric and (value != math.floor(value) or abs(value) > 2**53):
        return f"a fraction is no category: this column takes {CATEGORY}"
    return None


def _column(field: AnyField, values: list[Any]) -> pl.Series:
    """Values that fit, always of one type, so that tables of several requests can be joined."""
    if isinstance(field, Numeric):
        numbers = [None if value is None else float(value) for value in values]
        return pl.Series(field.name, numbers, dtype=pl.Float64)
    if isinstance(field, Categorical):
        whole = set(map(type, values)) <= {NOTHING, int}
        dtype: Any = pl.Int64() if whole else pl.String()
        return pl.Series(field.name, values if whole else _texts(values), dtype=dtype).cast(pl.String)
    lists = [
        [part.strip() for part in value.split(field.separator)] if isinstance(value, str) else value for value in values
    ]
    texts = [value if value is None else _texts(value) for value in lists]
    return pl.Series(field.name, texts, dtype=pl.List(pl.String))


def _texts(values: list[Any]) -> list[str | None]:
    """Categories as text, by which vocabularies compare them (`impressions.vocabulary.canonical`)."""
    return [value if value is None or type(value) is str else _text(value) for value in values]


def _text(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(int(value))
