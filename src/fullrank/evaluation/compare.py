"""Two models, or the seeds of two models, on the same users: is the difference real?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.errors import UserError, unknown
from fullrank.evaluation import bqs_like
from fullrank.evaluation.result import Evaluated, differing, remedy
from fullrank.evaluation.spec import Evaluation
from fullrank.evaluation.statistics import bounds, column, resample, sign_flip
from fullrank.metrics.names import PAIRED, Name, parse

FREE = ("bootstrap", "metrics", "ks", "reasoning", "decoding")
"""Parts of a protocol that may differ: what else was computed, how intervals were drawn, how long a model thought or
how it searched."""
MOST = 1000
"""Most bootstrap samples: more do not move an interval visibly."""


@dataclass(frozen=True)
class Comparison:
    """b minus a on the same users."""

    metric: str
    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    """Percentile bootstrap over users, who keep both of their values."""
    p: float
    """Two-sided; the smallest possible value is 1 / (samples + 1)."""
    test: str
    users: int

    def dump(self) -> dict[str, Any]:
        return asdict(self)


def check_alike(a: Evaluation, b: Evaluation) -> None:
    """Raises `UserError` where two evaluations that are still to come could not be compared."""
    for name in ("protocol", "seen", "popularity", "empty", "negatives", "negatives_from"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if ours != theirs:
            raise UserError(
                f"these runs are evaluated differently: {name} is {ours!r} in the first and {theirs!r} in the second; "
                f"evaluate them alike with --set {name}={'null' if ours is None else ours}"
            )


def compare(
    a: Evaluated | Sequence[Evaluated],
    b: Evaluated | Sequence[Evaluated],
    metric: str,
    *,
    samples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """The paired difference b - a of one metric, its bootstrap interval and a p value.

    Several evaluations of a side, one for each seed of a model, count as their mean, user by user. The interval is then
    about other users and these trained models: how far seeds lie apart has to be told beside it.

    p is that of a sign-flip permutation test of the users' differences; for metrics of all lists together (gini,
    coverage) of the differences of their influences. `bqs_like@k` (see there) has `a` as its reference, at 0.5. Raises
    `UserError` where the protocols differ, naming how, or where a metric was not computed.
    """
    ours, theirs = ([side] if isinstance(side, Evaluated) else list(side) for side in (a, b))
    if not ours or not theirs:
        raise UserError("there is nothing to compare: give at least one evaluation of each side")
    read = bqs_like.quality(metric)
    name = parse(metric) if read is None else read
    for side in (*ours, *theirs):
        _same_protocol(ours[0], side)
        if str(name) not in side.metrics:
            raise unknown("metric of this evaluation", str(name), side.metrics)
    if samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    before, after = (float(np.mean([one.metrics[str(name)] for one in side])) for side in (ours, theirs))
    gap = _mean_column(theirs, name) - _mean_column(ours, name)
    if read is not None:
        return _stand_in(ours[0], gap, name.k, samples, level, seed)
    drawn = resample(gap[:, None], samples=min(samples, MOST), seed=seed)[:, 0]
    test = f"paired sign-flip permutation of {'values' if name.per_user else 'influences'}, {samples} flips"
    p = sign_flip(gap, samples, seed)
    return Comparison(str(name), before, after, after - before, bounds(drawn, level), p, test, len(gap))


def _stand_in(a: Evaluated, gap: Float[np.ndarray, "U"], k: int, samples: int, level: float, seed: int) -> Comparison:
    parts, influences = bqs_like.columns(gap, bqs_like.bands_of(a))
    drawn = resample(influences[:, None], samples=min(samples, MOST), seed=seed)[:, 0]
    half, found = bqs_like.score(0.0), bqs_like.score(float(parts.mean()))
    low, high = (bqs_like.score(end) - half for end in bounds(drawn, level))
    test = f"a stand-in, not BQS; paired sign-flip permutation of each user's part, {samples} flips"
    p = sign_flip(parts, samples, seed)
    return Comparison(f"{PAIRED}@{k}", half, found, found - half, (low, high), p, test, len(gap))


def _column(side: Evaluated, name: Name) -> Float[np.ndarray, "U"]:
    return column(name, side.per_user.values, side.per_user.lists, side.protocol["items"])


def _mean_column(sides: Sequence[Evaluated], name: Name) -> Float[np.ndarray, "U"]:
    return np.mean([_column(side, name) for side in sides], axis=0)


def _same_protocol(a: Evaluated, b: Evaluated) -> None:
    ours, theirs = ({k: v for k, v in side.protocol.items() if k not in FREE} for side in (a, b))
    if ours != theirs:
        raise UserError(
            f"these evaluations cannot be compared: their protocols differ in {differing(ours, theirs)}"
            f"{remedy(ours, theirs) or '; evaluate both in the same way'}"
        )
    if not np.array_equal(a.per_user.users, b.per_user.users):
        raise UserError("these evaluations cannot be compared: they hold different users")
