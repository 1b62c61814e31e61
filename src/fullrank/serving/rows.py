"""RowReader: values of the columns that a run declares, as JSON gives them, checked and made a table.

Rows of a ranking model's requests have every column (`frame`); events and requests of a recommender
have those features that somebody knows (`columns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import polars as pl

from fullrank.core.errors import did_you_mean
from fullrank.data.impressions.schema import AnyField, Categorical, Numeric
from fullrank.serving.messages import LONGEST_TEXT, JsonObject
from fullrank.serving.problems import COLUMN, MOST_ERRORS

NOTHING = type(None)
NUMBERS = {NOTHING, bool, int, float}
VALUES = {*NUMBERS, str}
MOST_WHOLE = 2**63
Location = tuple[str | int, ...]
"""Path to a row in a body, as pydantic tells it."""
Row = Mapping[str, Any]
Mistake = tuple[Any, ...]
"""(row, sentence, column, position in a list)."""
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
    """Columns of a run, as rows of JSON give them; values are those of JSON."""

    def __init__(self, fields: Iterable[AnyField], longest: int, largest: float = math.inf):
        self.fields = {field.name: field for field in fields}
        self.longest, self.largest = longest, largest
        """Most values of a list, and the bound of numbers."""
        self._accepted = {name: _accepted(field, longest) for name, field in self.fields.items()}

    @property
    def properties(self) -> dict[str, JsonObject]:
        """The JSON Schema of each column."""
        return {name: form for name, (form, _, _) in self._accepted.items()}

    def schema(self, title: str, description: str, *, whole: bool = False) -> JsonObject:
        """The JSON Schema of a row; `whole`: of one that has every column and no other."""
        form = {"title": title, "type": "object", "description": description, "properties": self.properties}
        if whole:
            return form | {"required": list(self.fields), "additionalProperties": False}
        return form | {"type": ["object", "null"]}

    def frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        """Whole rows as a table whose types follow from the columns alone. Raises `RowMistakes`."""
        columns = self.columns(rows, lambda row: ("rows", row), whole=True)
        return pl.DataFrame([_column(field, columns[name]) for name, field in self.fields.items()])

    def columns(
        self,
        rows: Sequence[Row],
        at: Callable[[int], Location] | None = None,
        others: Collection[str] = (),
        *,
        whole: bool = False,
    ) -> dict[str, list[Any]]:
        """The values of each column that some row has, None where a row has none; `whole`: every row has every column.

        A name that is no column (nor one of `others`) and a value that its column does not take are
        mistakes of the row `at` its location (`RowMistakes`); without `at` they are passed over.
        """
        columns, present = dict[str, list[Any]](), set[str]().union(*set(map(tuple, rows)))
        if at is not None and (whole or not present <= self.fields.keys() | set(others)):
            _refuse(self._misnamed(rows, {*self.fields, *others}, whole), at)
        for name in [name for name in self.fields if name in present]:
            columns[name] = values = [row.get(name) for row in rows]
            wrong = self._mistyped(self.fields[name], values)
            if at is not None:
                _refuse(wrong, at)
            for row, *_ in wrong:
                values[row] = None
        return columns

    def _misnamed(self, rows: Sequence[Row], known: Collection[str], whole: bool) -> Iterator[Mistake]:
        """A mistake for each name that is no column, and (`whole`) for
        each column that a row lacks."""
        expected = self.fields.keys()
        for number, row in enumerate(rows):
            if row.keys() == expected:
                continue
            for name in [name for name in row if name not in known]:
                sentence = f"there is no such column{did_you_mean(name, expected)} (allowed: {', '.join(expected)})"
                yield number, sentence, name
            for name in [name for name in expected if whole and name not in row]:
                yield number, "the model reads this column: give its value, or null where it is missing", name

    def _mistyped(self, field: AnyField, values: Sequence[Any]) -> Iterator[Mistake]:
        """A mistake for each value that the column does not take; looked for where a
        quick look does not accept all."""
        numeric = isinstance(field, Numeric)
        _, allowed, expected = self._accepted[field.name]
        lists = [value for value in values if type(value) is list]
        most = min(self.largest, MOST_WHOLE) if numeric else MOST_WHOLE
        if _fit(values, allowed, numeric, most) and _fit(list(chain.from_iterable(lists)), VALUES, numeric):
            if max(map(len, lists), default=0) <= self.longest:
                return
        for number, value in enumerate(values):
            if type(value) not in allowed:
                yield number, f"this column takes {expected}", field.name
            elif isinstance(value, list):
                if len(value) > self.longest:
                    many = f"there are {len(value):,} values, and this service takes at most {self.longest:,}"
                    yield number, many, field.name
                for at, part in enumerate(value[: self.longest]):
                    if (
                        wrong := f"a value of this list is {CATEGORY}"
                        if type(part) not in VALUES
                        else _mistake_in(part)
                    ):
                        yield number, wrong, field.name, at
            elif wrong := _mistake_in(value, numeric=numeric):
                yield number, wrong, field.name
            elif numeric and value is not None and abs(value) > self.largest:
                yield number, f"a number lies within {self.largest:g} of 0", field.name


def _refuse(mistakes: Iterable[Mistake], at: Callable[[int], Location]) -> None:
    """Raise `RowMistakes` where there are any."""
    if first := list(islice(mistakes, MOST_ERRORS)):
        raise RowMistakes([{"type": COLUMN, "loc": (*at(row), *way), "msg": sentence} for row, sentence, *way in first])


def _accepted(field: AnyField, longest: int) -> tuple[JsonObject, set[type], str]:
    """The values that a column takes: as a JSON Schema, as the types
    of its values, and in words."""
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


def _fit(values: Sequence[Any], allowed: set[type], numeric: bool, most: float = MOST_WHOLE) -> bool:
    """Whether a quick look accepts all values, numbers from -`most` to below it.

    After False each value has to be looked at.
    """
    kinds = set(map(type, values))
    if not kinds <= allowed or (float in kinds and not numeric):
        return False
    if kinds <= {NOTHING, str, list}:
        return all(value is None or type(value) is list or len(value) <= LONGEST_TEXT for value in values)
    return str not in kinds and all(value is None or -most <= value < most for value in values)


def _mistake_in(value: Any, *, numeric: bool = False) -> str | None:
    """The mistake of one value of a type that is allowed; None where it has none."""
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
        return pl.Series(field.name, values if whole else texts_of(values), dtype=dtype).cast(pl.String)
    return pl.Series(field.name, lists_of_texts(field.separator, values), dtype=pl.List(pl.String))


def lists_of_texts(separator: str | None, values: list[Any]) -> list[list[str | None] | None]:
    """Lists, or text with a separator between its values, as lists of text."""
    cut = ([part.strip() for part in value.split(separator)] if isinstance(value, str) else value for value in values)
    return [value if value is None else texts_of(value) for value in cut]


def texts_of(values: list[Any]) -> list[str | None]:
    """Categories as text, by which vocabularies compare them (`impressions.vocabulary.canonical`)."""
    return [value if value is None or type(value) is str else _text(value) for value in values]


def _text(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(int(value))
