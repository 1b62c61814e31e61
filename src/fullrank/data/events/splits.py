"""Split rules: which events are trained on and which are predicted, as bounds inside each user's history.

Each rule returns bounds [U, 2], positions in the flat events: a user's training events end at
bounds[u, 0], validation targets at bounds[u, 1], test targets at the end of the history. Histories
are sorted by time: every rule is monotone. `rolling_time` has none of its own: it is `global_time`
on a table that was cut off at a moment.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from pydantic import Field, field_validator

from fullrank.core.constraints import Seconds
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged, offsets_of
from fullrank.core.spec import Spec, by_kind
from fullrank.data.histories import MANY_REPEATS, EvalSet, Histories
from fullrank.data.values import iso_seconds, with_date

Offsets = Int64[np.ndarray, "U1"]
"""Where each user's events begin, and where the last end."""
Bounds = Int64[np.ndarray, "U 2"]
"""Where each user's training events end, and the validation targets."""
Times = Int64[np.ndarray, "E"]
"""Seconds since 1970 of each event."""


class LeaveOneOut(Spec):
    """The last event of each user is the test target, the one before it the validation target."""

    kind: Literal["leave_one_out"] = "leave_one_out"

    def bounds(self, offsets: Offsets, times: Times | None) -> tuple[Bounds, JsonObject]:
        """Bounds, and facts for the manifest. Users with fewer than three events
        are trained on and not tested."""
        ends = offsets[1:]
        tested = np.diff(offsets) >= 3
        bounds = np.stack([ends - 2 * tested, ends - tested], axis=1)
        facts: JsonObject = {
            "leak": "leave_one_out trains on events that happened after other users' test events; "
            "split=global_time has no such leak",
        }
        if times is not None and tested.any():
            # the share of all training events that are later than a test event,
            # averaged over test events
            part = event_parts(offsets, bounds)
            train, test = np.sort(times[part == 0]), times[part == 2]
            share = 1 - np.searchsorted(train, test, side="right").mean() / len(train)
            facts["train_share_after_test"] = round(float(share), 4)
        return bounds, facts


Moment = Annotated[float, Field(gt=0, lt=1)]


class GlobalTime(Spec):
    """Two moments for all users: events before the first are trained on, those from the second on are tested.

    A moment is a share of all events (0 < x < 1), seconds since 1970 (a whole number), or an ISO 8601 date.
    """

    kind: Literal["global_time"] = "global_time"
    validation_from: Moment | Seconds | str = 0.8
    """The first moment of validation."""
    test_from: Moment | Seconds | str = 0.9
    """The first moment of the test."""

    @field_validator("validation_from", "test_from", mode="before")
    @classmethod
    def _moment(cls, moment: Any) -> Any:
        if isinstance(moment, (datetime.date, datetime.datetime)):
            return moment.isoformat()
        if isinstance(moment, bool) or (isinstance(moment, float) and not 0 < moment < 1):
            raise UserError(
                f"{moment!r} is neither a share between 0 and 1, nor whole seconds, nor an ISO 8601 date",
                code="not-a-moment",
            )
        return moment

    def at(self, times: Times | EventTimes | None) -> GlobalMoments:
        """The two moments in seconds. Raises `UserError` without times or where a part would be empty."""
        if times is None:
            raise needs_times(self.kind, "columns.time", "leave_one_out")
        known = ArrayTimes(times) if isinstance(times, np.ndarray) else times
        first, second = _resolve(self.validation_from, known), _resolve(self.test_from, known)
        check_moments(self, first, second)
        sizes = {"training": known.before(first), "test": known.count - known.before(second)}
        for part, size in sizes.items():
            if size == 0:
                raise UserError(
                    f"global_time leaves no {part} events: they span {with_date(known.kth(0))} to "
                    f"{with_date(known.kth(known.count - 1))}, validation begins {with_date(first)} "
                    f"and the test {with_date(second)}",
                    code="empty-split",
                )
        return GlobalMoments(int(first), int(second))


@runtime_checkable
class EventTimes(Protocol):
    """Order statistics of the times of all events, in seconds, for splits in time."""

    @property
    def count(self) -> int: ...
    def before(self, moment: int) -> int:
        """How many events lie before a moment."""
        ...

    def kth(self, k: int) -> int:
        """The time of the event that k others precede."""
        ...


@dataclass(frozen=True)
class ArrayTimes:
    """Order statistics of an array of times."""

    times: Times

    @property
    def count(self) -> int:
        return len(self.times)

    def before(self, moment: int) -> int:
        return int((self.times < moment).sum())

    def kth(self, k: int) -> int:
        return int(np.partition(self.times, k)[k])


@dataclass(frozen=True)
class GlobalMoments:
    """The rule of `global_time`, in seconds: a user may have no training event, or nothing but these."""

    first: int
    second: int
    kind: ClassVar[str] = "global_time"

    def bounds(self, offsets: Offsets, times: Times | None) -> tuple[Bounds, JsonObject]:
        """Bounds, and facts for the manifest."""
        assert times is not None
        moments = (self.first, self.second)
        bounds = np.stack([offsets[:-1] + _before(offsets, times, moment) for moment in moments], axis=1)
        return bounds, {"validation_from_seconds": self.first, "test_from_seconds": self.second, "leak": None}


class RollingTime(Spec):
    """`global_time` on windows of equal length that end with the newest event: one fold of a rolling evaluation.

    The test window of fold 0 is the last one, that of fold 1 the one before it, and so on.
    Validation is the window before the test's, training is all that came before; events behind the
    test window are left out, as if the table had been made on that day.
    """

    kind: Literal["rolling_time"] = "rolling_time"
    days: float = Field(30.0, gt=0, le=36_500)
    """Length of a window."""
    fold: int = Field(0, ge=0, le=10_000)
    """Windows between the end of the test's and the newest event."""

    def at(self, times: Times | None) -> tuple[GlobalTime, int]:
        """The split of this fold, and the first second that lies behind it. Raises `UserError` without times."""
        if times is None:
            raise needs_times(self.kind, "columns.time", "leave_one_out")
        window = max(round(self.days * 86_400), 1)
        until = int(times.max()) + 1 - self.fold * window
        if until - 2 * window <= int(times.min()):
            raise UserError(
                f"fold {self.fold} of windows of {self.days:g} days has no training events: they span "
                f"{with_date(int(times.min()))} to {with_date(int(times.max()))}; ask for shorter windows "
                "(split.days) or a fold nearer to the newest event (split.fold)",
                code="empty-split",
            )
        return GlobalTime(validation_from=until - 2 * window, test_from=until - window), until


def check_moments(split: Any, first: int, second: int) -> None:
    """Raise `UserError` unless the moments of a split, in seconds, are in order."""
    if first >= second:
        raise UserError(
            f"validation_from={split.validation_from!r} is {with_date(first)} and test_from={split.test_from!r} is "
            f"{with_date(second)}; the test must begin later than validation",
            code="moments-out-of-order",
        )


def needs_times(kind: str, setting: str, other: str) -> UserError:
    """The error for a split in time without times. `setting` names their column, `other`
    is a split that needs none."""
    return UserError(
        f"the {kind} split needs times: name their column with {setting}, or use {other}", code="split-needs-times"
    )


Split = Annotated[
    Annotated[LeaveOneOut | GlobalTime | RollingTime, Field(discriminator="kind")],
    by_kind("split", LeaveOneOut, GlobalTime, RollingTime),
]
"""A split rule: a spec, a mapping with `kind`, or the bare kind."""
Rule = LeaveOneOut | GlobalMoments
"""A rule that gives bounds."""


def split_counts(offsets: Offsets, bounds: Bounds, items: np.ndarray, num_items: int) -> JsonObject:
    """Counts of a split for the manifest: events and users by part, and targets that
    a trained model cannot know."""
    starts, ends, (middle, late) = offsets[:-1], offsets[1:], bounds.T
    part = event_parts(offsets, bounds)
    seen = np.bincount(items[part == 0], minlength=num_items) > 0
    counts: JsonObject = {"train": {"events": int((part == 0).sum()), "users": int((middle > starts).sum())}}
    counts["users_train_only"] = int(((middle == ends) & (ends > starts)).sum())
    for number, name, low, high in ((1, "validation", middle, late), (2, "test", late, ends)):
        targets = items[part == number]
        users = EvalSet(Histories(Jagged(items, starts, low)), Jagged(items, low, high))
        counts[name] = {
            "events": len(targets),
            "users": int((high > low).sum()),
            "users_without_history": int(((high > low) & (low == starts)).sum()),
            "events_of_items_not_in_train": int((~seen[targets]).sum()),
            "targets": len(users.truth.flat()),
            "repeated_targets": users.repeated_targets(),
        }
    return counts


def rule_of(split: JsonObject) -> JsonObject:
    """The entry of a manifest for a split, without the counts of its events."""
    counted = ("train", "validation", "test", "users_train_only", "train_share_after_test")
    return {key: fact for key, fact in split.items() if key not in counted}


def split_notes(split: JsonObject) -> list[str]:
    """Sentences to read before training on a split with these counts."""
    return [*repeat_notes(split), *empty_notes(split)]


def empty_notes(split: JsonObject) -> list[str]:
    """A sentence for each part that nothing can be evaluated on."""
    empty = [part for part in ("validation", "test") if not split[part]["users"]]
    return [f"the split leaves no {part} events: nothing can be evaluated there" for part in empty]


def repeat_notes(split: JsonObject) -> list[str]:
    """A sentence where many targets stand in the history, or none."""
    shares = {part: repeated_share(split[part]) for part in ("validation", "test")}
    if max(shares.values()) <= MANY_REPEATS:
        return []
    targets = " and ".join(f"{share:.1%} of the {part} targets" for part, share in shares.items())
    return [
        f"{targets} stand in their own user's history, which lists leave out, so none can hit them: evaluate with "
        "--set seen=keep (training chooses its best epoch that way)"
    ]


def repeated_share(counts: JsonObject) -> float:
    """The share of targets in their own users' histories, from the counts of a part of a split (`split_counts`).

    0 where an earlier version did not count them.
    """
    return float(counts.get("repeated_targets", 0) / max(1, counts.get("targets", 1)))


def event_parts(offsets: Offsets, bounds: Bounds) -> np.ndarray:
    """0 (train), 1 (validation) or 2 (test) for each event: int8 [E]."""
    edges = np.column_stack([offsets[:-1], bounds, offsets[1:]])
    return np.repeat(np.tile(np.arange(3, dtype=np.int8), len(edges)), np.diff(edges, axis=1).ravel())


def _before(offsets: np.ndarray, times: np.ndarray, moment: int) -> np.ndarray:
    """The number of each user's events before a moment."""
    total = offsets_of(times < moment)
    return total[offsets[1:]] - total[offsets[:-1]]


def _resolve(moment: float | int | str, times: EventTimes) -> int:
    if isinstance(moment, str):
        return iso_seconds(moment)
    if isinstance(moment, float):
        return times.kth(min(int(moment * times.count), times.count - 1))
    return moment
