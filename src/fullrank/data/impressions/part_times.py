"""The temporal split of impressions in parts: the moments of its borders, found by counting in every part.

A border is the time of the row that a share of all rows precede; equal times go by input order. Parts hold input rows
in a row, so a part has to know how many rows of that time the parts before it have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from fullrank.data.impressions.splits import Shares, TimeParts

WAYS = 1024
"""Moments that a search asks for at once."""
_MAGNITUDE = 2**63 - 1


@dataclass(frozen=True)
class TimeSpan:
    """The times of some rows: the first, the last, and whether all are whole numbers. None of no rows."""

    low: Any = None
    high: Any = None
    whole: bool = True

    @classmethod
    def of(cls, times: np.ndarray) -> TimeSpan:
        return cls(times.min().item(), times.max().item(), times.dtype.kind == "i") if len(times) else cls()

    def __add__(self, other: TimeSpan) -> TimeSpan:
        both = [span for span in (self, other) if span.low is not None]
        whole = all(span.whole for span in both)
        low, high = min((one.low for one in both), default=None), max((one.high for one in both), default=None)
        return TimeSpan(low, high, whole)


@dataclass(frozen=True)
class Borders:
    """What decides the part of the split of each row."""

    moments: tuple[Any, ...]
    """The time of each border; None lies behind all rows."""
    ties: tuple[int, ...]
    """How many rows of that time lie before the border."""
    earlier: tuple[tuple[int, ...], ...]
    """For each border how many rows of that time lie in the parts before each part."""

    def of_part(self, number: int) -> TimeParts:
        """The rule of one part, whose rows are asked for in input order."""
        left = zip(self.moments, self.ties, self.earlier, strict=True)
        return TimeParts([None if m is None else (m, max(ties - before[number], 0)) for m, ties, before in left])

    @classmethod
    def at(cls, moments: tuple[int, ...], count: int) -> Borders:
        """Those of parts of the split that begin at these moments, for so many parts of the store."""
        return cls(moments, (0,) * len(moments), ((0,) * count,) * len(moments))


def find_borders(
    rows: int,
    parts: int,
    shares: Shares,
    span: TimeSpan,
    before: Callable[[np.ndarray], Int64[np.ndarray, "m"]],
    equal: Callable[[tuple[Any, ...]], Int64[np.ndarray, "borders parts"]],
) -> Borders:
    """The borders of so many rows in so many parts: `before` counts the rows before each of some rising moments,
    `equal` those of some moments in each part."""
    places = [int(rows * share + 1e-6) for share in (shares[0], shares[0] + shares[1])]
    inside = [place for place in places if place < rows]
    found = _at_places(inside, span, before) if inside else []
    moments = tuple(found) + (None,) * (len(places) - len(inside))
    ties, earlier = [0] * len(places), [(0,) * parts] * len(places)
    if inside:
        counts = equal(tuple(found))
        for border, place in enumerate(inside):
            ties[border] = place - int(before(np.array([found[border]]))[0])
            earlier[border] = tuple((np.cumsum(counts[border]) - counts[border]).tolist())
    return Borders(moments, tuple(ties), tuple(earlier))


def _at_places(places: list[int], span: TimeSpan, before: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
    """The times at some places in the order of time: each is the last moment that at most so many rows precede.

    Times are whole numbers, or doubles, which are in the order of their bits.
    """
    ends = (span.low, span.high) if span.whole else (_bits(float(span.low)), _bits(float(span.high)))
    low, high = [ends[0]] * len(places), [ends[1]] * len(places)
    while any(a < b for a, b in zip(low, high, strict=True)):
        asked = sorted({a + 1 + (b - a - 1) * way // (WAYS - 1)
                        for a, b in zip(low, high, strict=True) if a < b for way in range(WAYS)})  # fmt: skip
        counts = before(np.array(asked, np.int64) if span.whole else _doubles(np.array(asked, np.int64)))
        for at, place in enumerate(places):
            reached = int(np.searchsorted(counts, place, side="right"))  # of the moments that at most `place` precede
            low[at] = max(low[at], asked[reached - 1]) if reached else low[at]
            high[at] = min(high[at], asked[reached] - 1) if reached < len(asked) else high[at]
    return [one if span.whole else float(_doubles(np.array([one], np.int64))[0]) for one in low]


def _bits(number: float) -> int:
    """A whole number that is in the order of doubles; `_doubles` gives them back."""
    bits = int(np.float64(number + 0.0).view(np.int64))
    return bits if bits >= 0 else bits ^ _MAGNITUDE


def _doubles(bits: Int64[np.ndarray, "n"]) -> np.ndarray:
    return np.where(bits >= 0, bits, bits ^ np.int64(_MAGNITUDE)).view(np.float64)
