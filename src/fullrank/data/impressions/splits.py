"""Which impressions are trained on: at random by place, by time, or as a column says.

A rule gives every row a part: 0 train, 1 validation, 2 test. It sees a table in chunks and needs memory for one.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Int64
from pydantic import Field, field_validator, model_validator

from fullrank.core.constraints import MOST_SEED, Seconds, Share, needs
from fullrank.core.errors import UserError, no_effect
from fullrank.core.random import uniform_of_rows
from fullrank.core.spec import Spec
from fullrank.data.events.splits import by_kind, check_moments
from fullrank.data.values import iso_seconds, refuse, without_categories, wrong_type

PARTS = ("train", "validation", "test")
_ALIASES = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
Shares = tuple[Share, Share, Share]


class _Shared(Spec):
    shares: Shares = (0.8, 0.1, 0.1)
    """Shares of train, validation and test; they sum to 1."""

    @field_validator("shares")
    @classmethod
    def _whole(cls, given: Shares) -> Shares:
        if min(given) < 0 or given[0] <= 0 or abs(sum(given) - 1) > 1e-9:
            raise UserError(
                f"shares {given} must be at least 0, with something to train on, and sum to 1", code="wrong-shares"
            )
        return given


class RandomSplit(_Shared):
    """Each row on its own, by a hash of seed and row number: the same however the table is cut into chunks."""

    kind: Literal["random"] = "random"
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Which of the random splits."""

    def parts(self, rows: Int64[np.ndarray, "R"]) -> np.ndarray:
        """The part of each row number: int8 [R]."""
        place = uniform_of_rows(self.seed, rows)
        first, second = self.shares[0], self.shares[0] + self.shares[1]
        return ((place >= first).astype(np.int8) + (place >= second)).astype(np.int8)


class TemporalSplit(_Shared):
    """The earliest rows are trained on, the latest tested. Rows of equal time keep input order, also at the borders.

    The borders are shares of the rows, or two moments, such as those by which a store of events was split.
    """

    kind: Literal["temporal"] = "temporal"
    validation_from: Annotated[Seconds | str | None, needs("test_from")] = None
    """The first moment of validation, seconds since 1970 or an ISO 8601 date; None goes by `shares`."""
    test_from: Annotated[Seconds | str | None, needs("validation_from")] = None
    """The first moment of the test, likewise."""

    @field_validator("validation_from", "test_from", mode="before")
    @classmethod
    def _text(cls, given: Any) -> Any:
        return given.isoformat() if isinstance(given, (datetime.date, datetime.datetime)) else given

    @model_validator(mode="after")
    def _sound(self) -> TemporalSplit:
        if self.moments is not None:
            if self.shares != type(self).model_fields["shares"].default:
                raise no_effect("shares", "with validation_from and test_from")
            check_moments(self, *self.moments)
        return self

    @property
    def moments(self) -> tuple[int, int] | None:
        """The first seconds of validation and of the test, where they are given."""
        if self.validation_from is None or self.test_from is None:
            return None
        first, second = (iso_seconds(m) if isinstance(m, str) else m for m in (self.validation_from, self.test_from))
        return first, second


class GivenSplit(Spec):
    """A column says train, validation (or valid, val, dev) or test."""

    kind: Literal["given"] = "given"
    column: str = Field("split", min_length=1)
    """The column."""

    def parts(self, column: pl.Series, what: str) -> np.ndarray:
        """The part of each row: int8 [R]. Raises `UserError` for any other value."""
        column = without_categories(column)
        if column.dtype != pl.String:
            raise wrong_type(column, what, f"a split column says {', '.join(PARTS)}")
        found = column.str.strip_chars().str.to_lowercase().replace_strict(_ALIASES, default=None, return_dtype=pl.Int8)
        refuse(
            found.is_null(),
            column,
            what,
            f"values other than {', '.join(PARTS)} (or valid, val, dev)",
            code="unknown-split",
        )
        return found.to_numpy()


ImpressionSplit = Annotated[
    Annotated[RandomSplit | TemporalSplit | GivenSplit, Field(discriminator="kind")],
    by_kind("split", RandomSplit, TemporalSplit, GivenSplit),
]
"""A split rule: a spec, a mapping with `kind`, or the bare kind."""


class TimeParts:
    """The part of each row by its time; asked once for every chunk, in input order."""

    def __init__(self, borders: list[tuple[Any, int] | None]):
        """`borders`: a time, and how many rows of that time lie before the border; None lies behind all rows."""
        self._left = borders

    def parts(self, times: np.ndarray) -> np.ndarray:
        """int8 [R]."""
        part = np.zeros(len(times), np.int8)
        for at, border in enumerate(self._left):
            if border is not None:
                moment, ties = border
                equal = times == moment
                first = equal & (np.cumsum(equal) <= ties)
                self._left[at] = moment, max(ties - int(equal.sum()), 0)
                part += ~((times < moment) | first)
        return part
