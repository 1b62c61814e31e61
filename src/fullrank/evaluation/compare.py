"""Two models, or the seeds of two models, on the same users or impressions: is the difference real?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from fullrank.core.errors import UserError, unknown
from fullrank.evaluation import bqs_like
from fullrank.evaluation.result import EvaluationResult, differing, remedy
from fullrank.evaluation.spec import Evaluation
from fullrank.evaluation.statistics import (
    RESAMPLED,
    bootstrap_p,
    bounds,
    column,
    resample,
    resample_clicks,
    sign_flip,
)
from fullrank.metrics.names import PAIRED, Name, parse_metric
from fullrank.problem import Problem

FREE = ("bootstrap", "metrics", "ks", "reasoning", "decoding")
"""Parts of a protocol of retrieval that may differ: what else was computed, how intervals were drawn, how long a model
thought or how it searched."""
FREE_OF_CLICKS = ("bootstrap", "bins", "gauc_groups", "gauc_left_out")
"""The same of ranking."""
MOST = 1000
"""Most bootstrap samples of users: more do not move an interval visibly."""

Side = Sequence[EvaluationResult]


@dataclass(frozen=True)
class Comparison:
    """b minus a on the same users or impressions."""

    metric: str
    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    """Percentile bootstrap over users or impressions, which keep both of their values."""
    p: float
    """Two-sided; the smallest possible value is 1 / (samples + 1), of impressions twice that."""
    test: str
    users: int
    """How many users, or impressions."""

    def dump(self) -> dict[str, Any]:
        return asdict(self)


class Compare(Protocol):
    """The difference b - a of one metric of one problem; a side holds one evaluation or more."""

    def __call__(
        self, a: Side, b: Side, metric: str, *, samples: int | None, level: float, seed: int
    ) -> Comparison: ...


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
    a: EvaluationResult | Side,
    b: EvaluationResult | Side,
    metric: str,
    *,
    samples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """The paired difference b - a of one metric, on the same users or the same impressions, an interval and a p value.

    Several evaluations of a side, one for each seed of a model, count as their mean, row by row. The interval is then
    about other users (or impressions) and these trained models: how far seeds lie apart has to be told beside it.

    Retrieval: p is that of a sign-flip permutation test of the users' differences; for metrics of all lists together
    (gini, coverage) of the differences of their influences. `bqs_like@k` (see there) has `a` as its reference, at 0.5.
    Ranking: both sides are resampled together, and p comes from the bootstrap samples.
    `samples`: permutations of users (None is 10,000), or bootstrap samples of impressions (None is 1,000).

    Raises `UserError` where the protocols differ, naming how, or where a metric was not computed.
    """
    ours, theirs = ([side] if isinstance(side, EvaluationResult) else list(side) for side in (a, b))
    if not ours or not theirs:
        raise UserError("there is nothing to compare: give at least one evaluation of each side")
    if len({one.problem for one in (*ours, *theirs)}) > 1:
        raise UserError("one run ranks items and the other predicts clicks; compare two of the same kind")
    if samples is not None and samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}")
    return COMPARE[ours[0].problem](ours, theirs, metric, samples=samples, level=level, seed=seed)


def _compare_lists(a: Side, b: Side, metric: str, *, samples: int | None, level: float, seed: int) -> Comparison:
    samples = 10_000 if samples is None else samples
    read = bqs_like.quality(metric)
    name = parse_metric(metric) if read is None else read
    for side in (*a, *b):
        _check_protocols(a[0], side, FREE)
        if str(name) not in side.metrics:
            raise unknown("metric of this evaluation", str(name), side.metrics)
    before, after = (_mean_metric(side, str(name)) for side in (a, b))
    gap = _mean_column(b, name) - _mean_column(a, name)
    if read is not None:
        return _stand_in(a[0], gap, name.k, samples, level, seed)
    drawn = resample(gap[:, None], samples=min(samples, MOST), seed=seed)[:, 0]
    test = f"paired sign-flip permutation of {'values' if name.per_user else 'influences'}, {samples} flips"
    p = sign_flip(gap, samples, seed)
    return Comparison(str(name), before, after, after - before, bounds(drawn, level), p, test, len(gap))


def _stand_in(
    a: EvaluationResult, gap: Float[np.ndarray, "U"], k: int, samples: int, level: float, seed: int
) -> Comparison:
    parts, influences = bqs_like.columns(gap, bqs_like.bands_of(a))
    drawn = resample(influences[:, None], samples=min(samples, MOST), seed=seed)[:, 0]
    half, found = bqs_like.score(0.0), bqs_like.score(float(parts.mean()))
    low, high = (bqs_like.score(end) - half for end in bounds(drawn, level))
    test = f"a stand-in, not BQS; paired sign-flip permutation of each user's part, {samples} flips"
    p = sign_flip(parts, samples, seed)
    return Comparison(f"{PAIRED}@{k}", half, found, found - half, (low, high), p, test, len(gap))


def _compare_clicks(a: Side, b: Side, metric: str, *, samples: int | None, level: float, seed: int) -> Comparison:
    samples = 1000 if samples is None else samples
    for side in (*a, *b):
        _check_protocols(a[0], side, FREE_OF_CLICKS)
    if metric not in RESAMPLED:
        raise unknown("metric of a comparison of clicks", metric, RESAMPLED)
    unit = a[0].protocol["bootstrap"]["unit"]
    before, after = (_mean_metric(side, metric) for side in (a, b))
    drawn = _mean_drawn(b, metric, unit, samples, seed) - _mean_drawn(a, metric, unit, samples, seed)
    test = f"paired bootstrap of {unit}s, {samples} samples"
    count = len(a[0].per_impression.rows)
    return Comparison(metric, before, after, after - before, bounds(drawn, level), bootstrap_p(drawn), test, count)


COMPARE: Mapping[Problem, Compare] = {"retrieval": _compare_lists, "ranking": _compare_clicks}


def _mean_metric(sides: Side, name: str) -> float:
    return float(np.mean([one.metrics[name] for one in sides]))


def _mean_column(sides: Side, name: Name) -> Float[np.ndarray, "U"]:
    each = [column(name, one.per_user.values, one.per_user.lists, one.protocol["items"]) for one in sides]
    return np.mean(each, axis=0)


def _mean_drawn(sides: Side, metric: str, unit: str, samples: int, seed: int) -> Float[np.ndarray, "S"]:
    rows = [one.per_impression for one in sides]
    each = [
        resample_clicks(
            one.probabilities, one.labels, one.groups if unit == "group" else None, samples=samples, seed=seed
        )[metric]
        for one in rows
    ]
    return np.mean(each, axis=0)


def _check_protocols(a: EvaluationResult, b: EvaluationResult, free: Sequence[str]) -> None:
    """Raise `UserError` where two results are not of the same protocol and the same rows."""
    ours, theirs = ({k: v for k, v in side.protocol.items() if k not in free} for side in (a, b))
    if ours != theirs:
        raise UserError(
            f"these evaluations cannot be compared: their protocols differ in {differing(ours, theirs)}"
            f"{remedy(ours, theirs) or '; evaluate both in the same way'}"
        )
    if not np.array_equal(a.rows.ids, b.rows.ids):
        what = "users" if a.problem == "retrieval" else "impressions"
        raise UserError(f"these evaluations cannot be compared: they hold different {what}")
