"""Numbers as a ranker reads them: as they are, standardised, logarithms, or the bucket between training quantiles.

Statistics are gathered from one chunk after another, on training rows. Quantiles are exact up to `SAMPLE` rows; beyond
that they are those of a sample that a hash of the row number picks, the same however the table is cut. `Moments` are
floats, whose last digits depend on the chunks; `ExactMoments` are whole numbers, the same in any order, and add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float32, Float64, Int64, UInt64

from fullrank.core.errors import UserError
from fullrank.core.random import bits_of_rows
from fullrank.data.impressions.schema import BUCKETS, AnyField, Numeric
from fullrank.data.values import refuse, wrong_type

Numbers = Float64[np.ndarray, "R"]
"""NaN where missing."""
Places = Int64[np.ndarray, "R"]
Fitted = dict[str, Any]
"""What was fitted for a field, as JSON has it."""
MOST_STANDARD = 1e150
"""The largest number whose square, which a deviation is made of, a double holds for some billion rows."""
SAMPLE = 1 << 18
"""Training rows that quantiles are taken from."""


def parse_numbers(series: pl.Series, what: str) -> Numbers:
    """Numbers, NaN where missing (null, NaN, empty text). Raises `UserError` for other text and infinite values."""
    if not (series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.String, pl.Null)):
        raise wrong_type(series, what, "a numeric field holds numbers")
    values = series.cast(pl.Float64, strict=False)
    lost = values.is_null() & series.is_not_null()
    if series.dtype == pl.String and lost.any():
        lost = lost & (series.str.strip_chars() != "")
    refuse(lost | (values.is_infinite() & values.is_not_null()).fill_null(False), series, what,
           "values that are no finite numbers", code="unreadable-numbers")  # fmt: skip
    return values.fill_null(np.nan).to_numpy()


def field_numbers(field: Numeric, series: pl.Series, what: str) -> Numbers:
    """The numbers of a field that is to be fitted. Raises `UserError` as `parse_numbers`, and for those too large."""
    numbers = parse_numbers(series, what)
    if field.transform == "standard":
        refuse(
            pl.Series(np.abs(numbers) > MOST_STANDARD), series, what,
            f"numbers beyond {MOST_STANDARD:g}, which transform=standard cannot square (log or bucket can),",
            code="numbers-too-large",
        )  # fmt: skip
    return numbers


class Moments:
    """Mean and deviation of many chunks (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Numbers, rows: Places) -> None:
        known = values[~np.isnan(values)]
        if len(known) == 0:
            return
        mean, total = float(known.mean()), self.count + len(known)
        away = mean - self.mean
        self.squares += float(((known - mean) ** 2).sum()) + away * away * self.count * len(known) / total
        self.mean += away * len(known) / total
        self.count = total

    def fitted(self) -> Fitted:
        """`mean` and `scale` (1 / deviation; 0 for a constant column, which says nothing)."""
        return _scaling(self.mean, (self.squares / max(self.count, 1)) ** 0.5)


@dataclass
class ExactMoments:
    """Mean and deviation of many chunks without rounding: sums of numbers and of their squares as whole numbers.

    A double is m 2^(e - 53) with a whole m of 53 bits. Mantissas are added by exponent, in halves of 27 bits whose sums
    a double holds exactly, and each sum is shifted to its place among whole numbers of any size.
    """

    count: int = 0
    total: int = 0
    """The sum of the values in units of 2^-`_LOWEST`."""
    squares: int = 0
    """That of their squares in units of 2^-(2 `_LOWEST`)."""

    def add(self, values: Numbers, rows: Places) -> None:
        known = values[~np.isnan(values)]
        for start in range(0, len(known), _MOST_ADDED):
            self._add(known[start : start + _MOST_ADDED])

    def _add(self, known: Numbers) -> None:
        fraction, exponent = np.frexp(known)
        whole = (fraction * 2.0**53).astype(np.int64)
        place = exponent.astype(np.int64) - 53 + _LOWEST
        high, low = np.abs(whole) >> 27, np.abs(whole) & _LOW
        sign = np.sign(whole)
        self.count += len(known)
        self.total += _summed(place, sign * high, 27) + _summed(place, sign * low, 0)
        for product, shift in ((high * high, 54), (high * low, 28), (low * low, 0)):
            self.squares += _summed(2 * place, product >> 27, shift + 27) + _summed(2 * place, product & _LOW, shift)

    def __add__(self, other: ExactMoments) -> ExactMoments:
        return ExactMoments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def fitted(self) -> Fitted:
        """`mean` and `scale` (1 / deviation; 0 for a constant column, which says nothing)."""
        count = max(self.count, 1)
        spread = Fraction(count * self.squares - self.total**2, count**2 << 2 * _LOWEST)
        try:
            deviation = float(spread) ** 0.5
        except OverflowError:  # of numbers beyond 1e154, whose squares no double holds
            deviation = np.inf
        return _scaling(float(Fraction(self.total, count << _LOWEST)), deviation)


_LOWEST = 1126
"""The least double is 2^-1074, of a mantissa of 53 bits that ends 52 places below."""
_LOW = np.int64((1 << 27) - 1)
_MOST_ADDED = 1 << 25
"""Halves of 27 bits whose sum is below 2^53."""


def _summed(place: Places, parts: Places, shift: int) -> int:
    """The sum of whole numbers, each times 2^(place + shift)."""
    if not len(place):
        return 0
    lowest = int(place.min())
    sums = np.bincount(place - lowest, weights=parts)
    return sum(int(sums[at]) << (lowest + int(at) + shift) for at in np.flatnonzero(sums))


def _scaling(mean: float, deviation: float) -> Fitted:
    return {"mean": mean, "scale": 1 / deviation if deviation > 1e-9 * max(abs(mean), 1) else 0.0}


class Quantiles:
    """Borders between equally filled buckets."""

    def __init__(self, buckets: int, sample: int = SAMPLE):
        self.buckets, self.sample = buckets, sample
        self._place, self._values = np.empty(0, np.uint64), np.empty(0)

    def add(self, values: Numbers, rows: Places) -> None:
        known = ~np.isnan(values)
        place = np.concatenate([self._place, bits_of_rows(0, rows[known])])
        self._keep(place, np.concatenate([self._values, values[known]]))

    def __add__(self, other: Quantiles) -> Quantiles:
        whole = Quantiles(self.buckets, self.sample)
        whole._keep(np.concatenate([self._place, other._place]), np.concatenate([self._values, other._values]))
        return whole

    def _keep(self, place: UInt64[np.ndarray, "n"], values: Float64[np.ndarray, "n"]) -> None:
        if len(place) > self.sample:  # the rows of the smallest hashes: the same sample however the table is cut
            kept = np.argpartition(place, self.sample - 1)[: self.sample]
            place, values = place[kept], values[kept]
        self._place, self._values = place, values

    def fitted(self) -> Fitted:
        """`edges`: a value belongs to the bucket after the last edge that is at most the value."""
        if len(self._values) == 0:
            return {"edges": []}
        shares = np.arange(1, self.buckets) / self.buckets
        return {"edges": np.unique(np.quantile(self._values, shares, method="inverted_cdf")).tolist()}


def statistics_of(field: AnyField, *, exact: bool = False) -> Moments | ExactMoments | Quantiles | None:
    """What has to be gathered for a field, `exact` the same in any order; None for what is no number, and where its
    transform needs nothing."""
    if not isinstance(field, Numeric):
        return None
    if field.transform == "standard":
        return ExactMoments() if exact else Moments()
    return Quantiles(field.buckets or BUCKETS) if field.transform == "bucket" else None


def transform_numbers(field: Numeric, fitted: Fitted, values: Numbers, what: str) -> Float32[np.ndarray, "R"]:
    """The numbers of a field that is not in buckets; NaN where missing."""
    if field.transform == "standard":
        values = (values - fitted["mean"]) * fitted["scale"]
    elif field.transform == "log":
        values = np.sign(values) * np.log1p(np.abs(values))
    with np.errstate(over="ignore"):
        small = values.astype(np.float32)
    if np.isinf(small).any():
        raise UserError(
            f"column {field.name!r} of {what} holds numbers beyond 3e38, which do not fit; use transform=log or drop "
            "them",
            code="numbers-too-large",
        )
    return small
