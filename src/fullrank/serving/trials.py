"""How a new version is tried before it answers, by the family of its model (`problem.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fullrank.problem import Problem
from fullrank.serving.canary import asked_all, check_model, read_canaries, sample_canaries
from fullrank.serving.row_canary import ask_rows, check_predictor, no_rows, read_rows


@dataclass(frozen=True)
class Trial:
    """Canaries of one family, and what is asked by them."""

    read: Callable[..., Any]
    """(path of a table, settings) -> canaries."""
    sample: Callable[..., Any]
    """(store, settings) -> canaries, awaited."""
    ask: Callable[..., Any]
    """(version, canaries, k, run): have it answer them."""
    check: Callable[..., Any]
    """(version, the one that answers or None, canaries, settings, run) -> checks."""


TRIALS: dict[Problem, Trial] = {
    "retrieval": Trial(read_canaries, sample_canaries, asked_all, check_model),
    "ranking": Trial(read_rows, no_rows, ask_rows, check_predictor),
}
