"""Fields of the calendar from seconds, by whole numbers alone (Hinnant, "chrono-compatible low-level date algorithms").

Dates are of the Gregorian calendar and in UTC; every field counts from 0.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

FIELDS = {"year": 200, "month": 12, "day": 31, "weekday": 7, "day of year": 366, "week": 53, "hour": 24}
"""How many values each field has; years count from 1970."""
DAY, HOUR = 86_400, 3_600
"""Seconds."""


def calendar_fields(seconds: Int[Tensor, "*n"]) -> Int[Tensor, "*n 7"]:
    """The fields of times in seconds since 1970, in the order of `FIELDS`."""
    days, weekday = seconds // DAY, weekday_of(seconds)
    year, month, day = _civil(days)
    thursday = days - weekday + 3  # an ISO week belongs to the year of its Thursday
    week = (thursday - _new_year(_civil(thursday)[0])) // 7
    since = (year - 1970).clamp(0, FIELDS["year"] - 1)
    return torch.stack([since, month, day, weekday, days - _new_year(year), week, hour_of(seconds)], -1)


def hour_of(seconds: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """The hour of the day (UTC), from 0."""
    return seconds % DAY // HOUR


def weekday_of(seconds: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """The day of the week (UTC); 0 is Monday."""
    return (seconds // DAY + 3) % 7  # 1970 began on a Thursday


def day_of(seconds: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """The day of the month (UTC), from 0."""
    return _civil(seconds // DAY)[2]


def _civil(days: Int[Tensor, "*n"]) -> tuple[Tensor, Tensor, Tensor]:
    """Year, and month and day from 0, of days since 1970."""
    shifted = days + 719_468  # days since 1 March of year 0, so that a leap day is the last of its year
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    of_years = of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096
    year = of_years // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153  # from March
    day = of_year - (153 * month + 2) // 5
    january = (month >= 10).long()
    return year + era * 400 + january, month + 2 - 12 * january, day


def _new_year(year: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Days from 1970 to the first day of a year."""
    past = year - 1
    return 365 * past + past // 4 - past // 100 + past // 400 - 719_162
