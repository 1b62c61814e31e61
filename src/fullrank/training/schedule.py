"""Learning rate as a pure function of the step: warm-up, then constant, linear, cosine or one cycle.

With the schedule `plateau` it also depends on how many validations brought no improvement (as in FuxiCTR).
"""

from __future__ import annotations

import math

from fullrank.experiment import Training


def lr_factor(training: Training, step: int, total: int) -> float:
    """Multiple of the peak learning rate at optimizer step `step` (from 0) of `total`."""
    rise = round(training.warmup * total)
    if training.schedule == "one_cycle":
        return _one_cycle(step, max(1, rise), max(2, total))
    if step < rise:
        return (step + 1) / (rise + 1)
    done = min(1.0, (step - rise) / max(1, total - rise))
    if training.schedule == "linear":
        return 1.0 - done
    if training.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


CUT, FLOOR = 0.1, 1e-6
"""Of the schedule `plateau`: what each cut multiplies the rate by, and the rate that cuts do not go below."""


def plateau_factor(training: Training, cuts: int) -> float:
    """Multiple of the learning rate that is left after some cuts; 1 for the other schedules."""
    if training.schedule != "plateau":
        return 1.0
    return max(CUT**cuts, min(1.0, FLOOR / training.lr))


def _one_cycle(step: int, rise: int, total: int) -> float:
    """Cosine from 1/25 up to 1, cosine down to 1/10 (SRT, released schedule)."""
    if step < rise:
        low, high, done = 1 / 25, 1.0, step / rise
    else:
        low, high, done = 1.0, 1 / 10, min(1.0, (step - rise) / max(1, total - rise))
    return low + (high - low) * 0.5 * (1 - math.cos(math.pi * done))
