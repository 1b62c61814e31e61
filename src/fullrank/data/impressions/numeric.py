"""Numbers as a ranker reads them: as they are, standardised, logarithms, or the bucket between training quantiles.

Statistics are gathered from one chunk after another, on training rows. Quantiles are exact up to
`SAMPLE` rows; beyond that they are those of a sample that a hash of the row number picks, the same
however the table is cut. `Moments` are floats, whose last digits depend on the chunks;
`ExactMoments` are sums of whole numbers, the same in any order, and of several parts they add up.
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
"""The numbers of a column, NaN where missing."""
RowNumbers = Int64[np.ndarray, "R"]
Fitted = dict[str, Any]
"""Fitted statistics of a field, as JSON has them."""
MOST_STANDARD = 1e150
"""The largest number whose squares a double can sum over some billion rows."""
SAMPLE = 1 << 18
"""Training rows that quantiles are taken from."""


def parse_numbers(series: pl.Series, what: str) -> Numbers:
    """Numbers, NaN for null, NaN and empty text. Raises `UserError` for other text and infinity."""
    if not (series.dtype.is_numeric() or series.dtype in (pl.Boolean, pl.String, pl.Null)):
        raise wrong_type(series, what, "a numeric field holds numbers")
    values = series.cast(pl.Float64, strict=False)
    lost = values.is_null() & series.is_not_null()
    if series.dtype == pl.String and lost.any():
        lost = lost & (series.str.strip_chars() != "")
    refuse(
        lost | (values.is_infinite() & values.is_not_null()).fill_null(False),
        series,
        what,
        "values that are no finite numbers",
        code="unreadable-numbers",
    )
    return values.fill_null(np.nan).to_numpy()


def field_numbers(field: Numeric, series: pl.Series, what: str) -> Numbers:
    """Numbers to fit a field on. Raises `UserError` as `parse_numbers`, and for too large ones."""
    numbers = parse_numbers(series, what)
    if field.transform == "standard":
        refuse(
            pl.Series(np.abs(numbers) > MOST_STANDARD),
            series,
            what,
            f"numbers beyond {MOST_STANDARD:g}, which transform=standard cannot square (log or bucket can),",
            code="numbers-too-large",
        )
    return numbers


class Moments:
    """Mean and deviation of many chunks (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Numbers, rows: RowNumbers) -> None:
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

    A double is m 2^(e - 53) with a whole m of 53 bits. Mantissas are added by exponent, in halves
    of 27 bits whose sums a double holds exactly, and each sum is shifted to its place among whole
    numbers of any size.
    """

    count: int = 0
    total: int = 0
    """The sum of the values, in units of 2^-`_LOWEST`."""
    squares: int = 0
    """The sum of their squares, in units of 2^-(2 `_LOWEST`)."""

    def add(self, values: Numbers, rows: RowNumbers) -> None:
        known = values[~np.isnan(values)]
        for start in range(0, len(known), _MOST_ADDED):
            self._add(known[start : start + _MOST_ADDED])

    def _add(self, known: Numbers) -> None:
        fractions, exponents = np.frexp(known)
        whole = (fractions * 2.0**53).astype(np.int64)
        exponents = exponents.astype(np.int64) - 53 + _LOWEST
        high, low = np.abs(whole) >> 27, np.abs(whole) & _LOW
        sign = np.sign(whole)
        self.count += len(known)
        self.total += _summed(exponents, sign * high, 27) + _summed(exponents, sign * low, 0)
        # a mantissa is high 2^27 + low, and its square high^2 2^54 + high low 2^28 + low^2
        for product, shift in ((high * high, 54), (high * low, 28), (low * low, 0)):
            self.squares += _summed(2 * exponents, product >> 27, shift + 27) + _summed(
                2 * exponents, product & _LOW, shift
            )

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
"""Bits behind the point that hold every double: the least is 2^-1074, and the 53 bits of a mantissa end
52 further down."""
_LOW = np.int64((1 << 27) - 1)
_MOST_ADDED = 1 << 25
"""Halves of 27 bits whose sum is below 2^53."""


def _summed(exponents: Int64[np.ndarray, "n"], numbers: Int64[np.ndarray, "n"], shift: int) -> int:
    """The sum of whole numbers, each times 2^(its exponent + shift)."""
    if not len(exponents):
        return 0
    lowest = int(exponents.min())
    sums = np.bincount(exponents - lowest, weights=numbers)
    return sum(int(sums[at]) << (lowest + int(at) + shift) for at in np.flatnonzero(sums))


def _scaling(mean: float, deviation: float) -> Fitted:
    """`mean` and `scale`, 1 / deviation; 0 where the deviation is no
    more than rounding of the mean."""
    return {"mean": mean, "scale": 1 / deviation if deviation > 1e-9 * max(abs(mean), 1) else 0.0}


class Quantiles:
    """Borders between equally filled buckets."""

    def __init__(self, buckets: int, sample: int = SAMPLE):
        self.buckets, self.sample = buckets, sample
        self._hashes, self._values = np.empty(0, np.uint64), np.empty(0)

    def add(self, values: Numbers, rows: RowNumbers) -> None:
        known = ~np.isnan(values)
        self._extend(bits_of_rows(0, rows[known]), values[known])

    def __add__(self, other: Quantiles) -> Quantiles:
        whole = Quantiles(self.buckets, self.sample)
        for part in (self, other):
            whole._extend(part._hashes, part._values)
        return whole

    def _extend(self, hashes: UInt64[np.ndarray, "n"], values: Float64[np.ndarray, "n"]) -> None:
        hashes, values = np.concatenate([self._hashes, hashes]), np.concatenate([self._values, values])
        if len(hashes) > self.sample:  # the rows of the smallest hashes: the same sample however the table is cut
            smallest = np.argpartition(hashes, self.sample - 1)[: self.sample]
            hashes, values = hashes[smallest], values[smallest]
        self._hashes, self._values = hashes, values

    def fitted(self) -> Fitted:
        """`edges`: a value belongs to the bucket after the last edge that is at most the value."""
        if len(self._values) == 0:
            return {"edges": []}
        shares = np.arange(1, self.buckets) / self.buckets
        return {"edges": np.unique(np.quantile(self._values, shares, method="inverted_cdf")).tolist()}


def statistics_of(field: AnyField, *, exact: bool = False) -> Moments | ExactMoments | Quantiles | None:
    """A collector of a field's statistics, `exact` in any order; None where none are needed."""
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
