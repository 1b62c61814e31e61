"""The names of metrics: `ndcg@10`, `fair0.8@1`. Reading them, and computing the per-user ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fullrank.core.constraints import MOST_LIST
from fullrank.core.errors import UserError, unknown
from fullrank.core.registry import points
from fullrank.metrics import Metric, MetricInputs, UserValues, lists


class Metrics(Mapping[str, Metric]):
    """Metrics by name: ours, and the functions of installed packages, from a group of entry points."""

    def __init__(self, group: str, ours: dict[str, Metric]):
        self.group, self.ours = group, ours

    def __getitem__(self, name: str) -> Metric:
        others = {} if name in self.ours else {point.name: point for point in points(self.group)}
        metric: Metric = others[name].load() if name in others else self.ours[name]
        return metric

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.ours, *(point.name for point in points(self.group))]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


_ACCURACY: dict[str, Metric] = {
    "ndcg": lists.ndcg,
    "recall": lists.recall,
    "hit": lists.hit,
    "mrr": lists.mrr,
    "map": lists.average_precision,
    "precision": lists.precision,
    "f1": lists.f1,
}
_EXPOSURE: dict[str, Metric] = {
    "arp": lists.arp,
    "lift": lists.lift,
    "novelty": lists.novelty,
    "repeat": lists.repeat,
    "ild": lists.ild,
}
ACCURACY = Metrics("metrics.accuracy", _ACCURACY)
"""Larger is better; computed from places alone."""
EXPOSURE = Metrics("metrics.exposure", _EXPOSURE)
"""Per user, from full lists and popularity (`fair` belongs here too, but takes its alpha)."""
PER_LIST = {"gini": lists.gini, "coverage": lists.coverage}
"""One number for all lists together, from the exposure of every item."""
WITHOUT = {"gini": lists.gini_without, "coverage": lists.coverage_without}
"""The metrics `PER_LIST` without each user in turn."""
DEFAULT = ("ndcg", "recall", "hit", "mrr", "map", "fair0.8", "gini", "arp", "lift", "coverage", "novelty")
DEFAULT_SAMPLED = ("ndcg", "recall", "hit", "mrr", "map")
"""Default metrics of the sampled protocol, which has places alone."""
PAIRED = "bqs_like"
"""The one metric of two evaluations (`evaluation.compare`): a single evaluation has no value of it."""


@dataclass(frozen=True)
class Name:
    """A metric and the length of list it reads."""

    base: str
    k: int
    alpha: float | None = None

    def __str__(self) -> str:
        return f"{self.base}{'' if self.alpha is None else format(self.alpha, 'g')}@{self.k}"

    @property
    def per_user(self) -> bool:
        return self.base not in PER_LIST

    @property
    def needs_lists(self) -> bool:
        """Whether it reads the items of the lists: such metrics mean nothing under the sampled protocol."""
        return self.base not in ACCURACY

    def __call__(self, table: MetricInputs) -> UserValues:
        """One value per user."""
        if self.alpha is not None:
            return lists.fair(table, self.k, self.alpha)
        return (ACCURACY if self.base in ACCURACY else EXPOSURE)[self.base](table, self.k)


def parse_metric(text: str) -> Name:
    """A full name, such as `recall@20`. Raises `UserError` with the nearest allowed name."""
    base, k = split_name(text)
    plain, alpha = _base(base)
    return Name(plain, k, alpha)


def split_name(text: str) -> tuple[str, int]:
    """Base name and list length of a metric: `ndcg@10` is ("ndcg", 10)."""
    base, at, length = text.strip().partition("@")
    if not at:
        raise UserError(
            f"the metric {text!r} has no list length: write it as {base or 'ndcg'}@10", code="metric-without-length"
        )
    if not length.isdecimal() or len(length) > 20 or not 1 <= int(length) <= MOST_LIST:
        raise UserError(
            f"the list length of the metric {text!r} must be a whole number from 1 to {MOST_LIST:,}, not {length!r}",
            code="invalid-list-length",
        )
    return base, int(length)


def expand_metrics(metrics: Iterable[str], ks: Iterable[int]) -> list[Name]:
    """Every base name at every k, and full names as they are, each once and in the order given."""
    ks = tuple(ks)
    names: dict[Name, None] = {}
    for text in metrics:
        for name in [parse_metric(text)] if "@" in text else [parse_metric(f"{text}@{k}") for k in ks]:
            names[name] = None
    return list(names)


def accuracy_among(names: Iterable[Name], what: str, remedy: str = "") -> tuple[str, ...]:
    """The accuracy metrics among these. Raises `UserError` where there are none, which `what` needs."""
    chosen = tuple(str(name) for name in names if not name.needs_lists)
    if not chosen:
        raise UserError(
            f"{what} needs an accuracy metric among the metrics: name one of {', '.join(ACCURACY)}{remedy}",
            code="no-accuracy-metric",
        )
    return chosen


def _base(text: str) -> tuple[str, float | None]:
    """The base name of a metric, and the share that `fair` has in its name. Raises
    `UserError` for other names."""
    share = re.fullmatch(r"fair(\d*\.?\d+)?", text)
    if share is not None:
        if share[1] is None:
            raise UserError(
                "the metric 'fair' needs the share of items that are unpopular: write it as fair0.8@1",
                code="metric-without-share",
            )
        if not 0 < float(share[1]) < 1:
            raise UserError(
                f"the share in {text!r} must lie between 0 and 1, such as fair0.8@1", code="share-out-of-range"
            )
        return "fair", float(share[1])
    if text == PAIRED:
        raise UserError(
            f"{PAIRED} compares two runs: `fullrank evaluate A B --metric {PAIRED}@10`", code="metric-of-two-runs"
        )
    plain = [*ACCURACY, *EXPOSURE, *PER_LIST]
    if text not in plain:
        allowed = [*plain, "fair0.8"]
        raise unknown("metric", text, allowed)
    return text, None
