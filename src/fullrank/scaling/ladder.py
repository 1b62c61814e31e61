"""The runs of a ladder: what each measured on its way, and how large its model and its data were.

What cannot be fitted (a metric that is not a number, FLOPs below zero) is refused here, whatever it was read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.core.errors import UserError


@dataclass(frozen=True)
class Trace:
    """One run: its metric at one or more moments of training."""

    run: str
    metric: Float[np.ndarray, "P"]
    flops: Float[np.ndarray, "_"] | None = None
    """Spent from the start to each moment, ascending."""
    epochs: Float[np.ndarray, "_"] | None = None
    """Passes over the data at each moment."""
    parameters: float | None = None
    """N of Eq. 4."""
    data: float | None = None
    """T of Eq. 4: interactions that one epoch trains on."""
    size: float | None = None
    """What models of one size have in common: parameters without tables where they are known, else all."""
    group: str = ""
    """The data set's name."""

    def best(self, *, lower: bool = False) -> int:
        """The moment of the best metric, the first where several are equal."""
        return int(self.metric.argmin() if lower else self.metric.argmax())


@dataclass(frozen=True)
class Ladder:
    """Runs that differ in size, data or training."""

    traces: tuple[Trace, ...]
    metric: str
    source: str = "these runs"
    """Where they come from, for messages."""
    missing: str = ""
    """What the source lacks and how to get it, for messages."""

    def __len__(self) -> int:
        return len(self.traces)

    def __post_init__(self) -> None:
        for trace in self.traces:
            self._check(trace)

    def require(self, *names: str) -> None:
        """Raises `UserError` where a run does not have one of these."""
        for name in names:
            without = [trace.run for trace in self.traces if getattr(trace, name) is None]
            if without:
                raise UserError(
                    f"{self.source}: {len(without)} of {len(self)} runs have no {name} (the first is {without[0]!r}); "
                    + (self.missing or f"give them as `{name}` of each trace"),
                    code="missing-sizes",
                )

    def subset(self, places: Sequence[int]) -> Ladder:
        """The runs at these places; a place may stand several times."""
        return Ladder(tuple(self.traces[i] for i in places), self.metric, self.source, self.missing)

    def _check(self, trace: Trace) -> None:
        where = f"{self.source}, run {trace.run!r}"
        if not len(trace.metric):
            raise UserError(f"{where}: no value of {self.metric}; leave the run out, or evaluate it", code="no-values")
        if not np.isfinite(trace.metric).all():
            raise UserError(
                f"{where}: {self.metric} holds {trace.metric[~np.isfinite(trace.metric)][0]}, and a number is needed; "
                "leave the run out, or evaluate it again",
                code="not-finite",
            )
        for name in ("flops", "epochs", "parameters", "data", "size"):
            values = getattr(trace, name)
            if values is None:
                continue
            require_positive(f"{where}: {name}", values, "correct it in the file")
            if np.ndim(values) == 0:
                continue
            if len(values) != len(trace.metric):
                raise UserError(
                    f"{where}: {len(values)} {name} for {len(trace.metric)} values of {self.metric}",
                    code="wrong-length",
                )
            if (np.diff(values) <= 0).any():
                raise UserError(
                    f"{where}: {name} must rise from moment to moment; give those spent since the start",
                    code="not-rising",
                )


def require_positive(name: str, values: Any, remedy: str) -> None:
    """Raise `UserError` for a number that is not above 0, or not finite."""
    numbers = np.atleast_1d(np.asarray(values, float))
    wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
    if len(wrong):
        raise UserError(f"{name} is {wrong[0]:g}; it must be a number above 0: {remedy}", code="not-positive")
