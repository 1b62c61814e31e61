"""Compare two models, or the seeds of two models, on the same users or impressions: paired differences and p values.

`bqs_like@k` asks whether one run is better than a reference for popular, middling and niche targets
alike. It is a stand-in, not BQS: the Balanced Quality Score (Coppolillo et al., ACM TIST 2024;
SPRINT, Table 8) compares quality in three classes of popularity with a reference model, which
stands at 0.5, but its formula is in none of the papers that this library follows. Ours is 1 / (1 +
exp(-sum over head, mid and tail of the difference in mean NDCG@k)), each user in the band of their
target (`popularity_bands`). It has the same reference point and counts a niche user more than the
mean does; its numbers are not those of BQS and may not be reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from fullrank.core.checks import check_type, public
from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject
from fullrank.core.registry import Problem
from fullrank.evaluation.result import EvaluationResult, require_same_protocol
from fullrank.evaluation.spec import Evaluation
from fullrank.evaluation.statistics import (
    LABELS,
    RESAMPLED,
    bootstrap_p,
    bounds,
    metric_values,
    resample,
    sign_flip,
)
from fullrank.evaluation.summary import UNREAD
from fullrank.metrics import UserValues
from fullrank.metrics.names import PAIRED, Name, parse_metric, split_name

MAY_DIFFER = (
    *("bootstrap", "metrics", "ks", "reasoning", "decoding", "popularity_discount"),
    *("events", "lists", "targets", "features", "slices"),
)
"""Parts of a protocol of retrieval that may differ in two evaluations that are compared.

They say what else was computed, how intervals were drawn, how many steps a model reasoned, how it
searched, whether its lists were re-ranked against popularity, how much of later events may have
leaked into it (the users, histories and targets are in the fingerprint), whether lists were made
elsewhere, the number of targets (which older results do not have), the types by which users are
told apart, and the features read, except whether they describe the target's own request.
"""
MAY_DIFFER_RANKING = ("bootstrap", "bins", "gauc_groups", "gauc_left_out", "metrics", "slices", "calibration")
"""Parts of a protocol of ranking that may differ."""
MAX_RESAMPLES = 1000
"""Most bootstrap samples of users: more do not move an interval visibly."""

Results = Sequence[EvaluationResult]


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
    """Number of users, or of impressions."""

    def __str__(self) -> str:
        low, high = self.interval
        change = f"{self.difference:+.4f} ({low:+.4f} to {high:+.4f})"
        return f"{self.metric}: {self.a:.4f} to {self.b:.4f}, {change}, p = {self.p:.2g}, {self.users:,} compared"

    def dump(self) -> JsonObject:
        return asdict(self)


def check_comparable(a: Evaluation, b: Evaluation) -> None:
    """Raises `UserError` where two evaluations that are still to come could not be compared."""
    for name in ("protocol", "seen", "popularity", "empty", "negatives", "negatives_from", "targets"):
        ours, theirs = a.dump()[name], b.dump()[name]
        if ours != theirs:
            raise UserError(
                f"these runs are evaluated differently: {name} is {ours!r} in the first and {theirs!r} in the second; "
                f"evaluate them alike with --set {name}={'null' if ours is None else ours}",
                code="protocols-differ",
            )


@public
def compare(
    a: EvaluationResult | Results,
    b: EvaluationResult | Results,
    metric: str,
    *,
    samples: Annotated[int, Field(ge=1)] | None = None,
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Comparison:
    """The paired difference b - a of one metric, on the same users or the same impressions, an interval and a p value.

    Several evaluations of a side, one for each seed of a model, count as their mean, row by row.
    The interval is then about other users (or impressions) and these trained models: how far seeds
    lie apart has to be reported beside it.

    Retrieval: p is that of a sign-flip permutation test of the users' differences; for metrics of
    all lists together (gini, coverage) of the differences of their influences. `bqs_like@k` (see
    there) has `a` as its reference, at 0.5. Ranking: both sides are resampled together (gauc by
    groups with both classes), and p comes from the samples. `samples`: permutations of users (None
    is 10,000), or bootstrap samples of impressions (None is 1,000).

    Raises `UserError` where the protocols differ, naming how, or where a metric was not computed.
    """
    ours, theirs = (list(side if isinstance(side, list | tuple) else (side,)) for side in (a, b))
    for name, side in (("a", ours), ("b", theirs)):
        for evaluation in side:
            check_type(name, evaluation, EvaluationResult, "an evaluation (what fr.evaluate gives), or a list of them")
    if not ours or not theirs:
        raise UserError("there is nothing to compare: give at least one evaluation of each side", code="no-evaluations")
    if len({evaluation.problem for evaluation in (*ours, *theirs)}) > 1:
        raise UserError(
            "one run ranks items and the other predicts clicks; compare two of the same kind", code="problems-differ"
        )
    return COMPARE[ours[0].problem](ours, theirs, metric, samples, level, seed)


def _compare_lists(a: Results, b: Results, metric: str, samples: int | None, level: float, seed: int) -> Comparison:
    """`compare` for evaluations of lists."""
    samples = samples or 10_000
    quality = bqs_like_quality(metric)
    name = parse_metric(metric) if quality is None else quality
    for side in (*a, *b):
        _check_protocols(a[0], side, MAY_DIFFER)
        if str(name) not in side.metrics:
            raise unknown("metric", str(name), side.metrics)
    values = influences = _mean_column(b, name) - _mean_column(a, name)
    if quality is not None:
        if "target" not in a[0].per_user.groups:
            raise UserError(
                f"{PAIRED} needs the popularity of the targets: evaluate with slices=true", code="slices-needed"
            )
        values, influences = bqs_like_columns(values, a[0].per_user.groups["target"])
    span = bounds(resample(influences[:, None], samples=min(samples, MAX_RESAMPLES), seed=seed)[:, 0], level)
    p, users = sign_flip(values, samples, seed), len(values)
    if quality is None:
        before, after = (_mean_metric(side, str(name)) for side in (a, b))
        test = f"paired sign-flip permutation of {'values' if name.per_user else 'influences'}, {samples} flips"
        return Comparison(str(name), before, after, after - before, span, p, test, users)
    half, score = _logistic(0.0), _logistic(float(values.mean()))
    low, high = (_logistic(end) - half for end in span)
    test = f"a stand-in, not BQS; paired sign-flip permutation of each user's part, {samples} flips"
    return Comparison(f"{PAIRED}@{name.k}", half, score, score - half, (low, high), p, test, users)


def _compare_clicks(a: Results, b: Results, metric: str, samples: int | None, level: float, seed: int) -> Comparison:
    """`compare` for evaluations of click probabilities."""
    samples = samples or 1000
    for side in (*a, *b):
        _check_protocols(a[0], side, MAY_DIFFER_RANKING)
        if metric not in RESAMPLED or metric not in side.metrics:
            raise unknown("metric", metric, [name for name in RESAMPLED if name in side.metrics])
    unit = "group" if metric == "gauc" else a[0].protocol["bootstrap"]["unit"]
    before, after = (_mean_metric(side, metric) for side in (a, b))
    drawn = _mean_drawn(b, metric, unit, samples, seed) - _mean_drawn(a, metric, unit, samples, seed)
    test = f"paired bootstrap of {unit}s, {samples} samples"
    count = len(a[0].per_impression.rows)
    return Comparison(metric, before, after, after - before, bounds(drawn, level), bootstrap_p(drawn), test, count)


COMPARE: Mapping[Problem, Callable[[Results, Results, str, int | None, float, int], Comparison]] = {
    "retrieval": _compare_lists,
    "ranking": _compare_clicks,
}


def _mean_metric(sides: Results, name: str) -> float:
    return float(np.mean([side.metrics[name] for side in sides]))


def _mean_column(sides: Results, name: Name) -> UserValues:
    columns = [metric_values(name, side.per_user.values, side.per_user.lists, side.protocol["items"]) for side in sides]
    return np.mean(columns, axis=0)


def _mean_drawn(sides: Results, metric: str, unit: str, samples: int, seed: int) -> Float[np.ndarray, "S"]:
    by_group = unit == "group"
    drawn = [side.per_impression.resample(by_group=by_group, samples=samples, seed=seed)[metric] for side in sides]
    return np.mean(drawn, axis=0)


def _check_protocols(a: EvaluationResult, b: EvaluationResult, free: Sequence[str]) -> None:
    """Raise `UserError` where two results are not of the same protocol and the same rows."""
    ours, theirs = (compared_protocol(side.protocol, free) for side in (a, b))
    require_same_protocol(ours, theirs, "these evaluations cannot be compared")
    if not np.array_equal(a.rows.ids, b.rows.ids):
        what = "users" if a.problem == "retrieval" else "impressions"
        raise UserError(f"these evaluations cannot be compared: they hold different {what}", code="rows-differ")


def compared_protocol(protocol: JsonObject, free: Sequence[str] = MAY_DIFFER) -> JsonObject:
    """The parts of a protocol that have to be equal in two that are compared."""
    defaults = {} if protocol.get("kind") == "clicks" else {"request_time": UNREAD}
    return {name: value for name, value in (defaults | protocol).items() if name not in free}


def bqs_like_quality(metric: str) -> Name | None:
    """The metric whose differences `bqs_like@k` reads, NDCG@k; None for every other metric."""
    if metric.strip().partition("@")[0] != PAIRED:
        return None
    return Name("ndcg", split_name(metric)[1])


def bqs_like_columns(gap: UserValues, band: Int[np.ndarray, "U"]) -> tuple[UserValues, UserValues]:
    """Two columns whose mean is the summed difference of the bands: each user's part of it, and each user's influence.

    A part changes sign with the user's difference, as a permutation test needs. An influence varies
    around the sum as the user does around the band's mean, as an interval needs (how many users a
    band has is chance too).
    """
    counts = np.bincount(band, minlength=len(LABELS["target"]))
    means = np.bincount(band, gap, len(counts)) / np.maximum(counts, 1)
    weight = len(gap) / counts[band]
    return gap * weight, means.sum() + (gap - means[band]) * weight


def _logistic(total: float) -> float:
    """The logistic of a summed difference."""
    return float(1 / (1 + np.exp(-total)))
