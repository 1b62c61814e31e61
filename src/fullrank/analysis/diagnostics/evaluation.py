"""Figures of evaluations: accuracy against long-tail share, recommended items by popularity, calibration, gain, and
paired differences from the best baseline.

Gain is what a ranker is worth where only some places can be filled: share of clicks among the first n of N impressions
by falling probability; lift is that share over n / N, precision the share of the n that was clicked. Equal
probabilities are in the order of the store.

Differences are of the same users or impressions, with an interval and a p value for each metric. They are what two
intervals of the table of runs cannot say: those overlap although one run is better for nearly every user. The numbers
are those of `evaluation.compare` at its defaults (`fullrank evaluate A B` prints the same ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.analysis.diagnostics import (
    FAIRNESS,
    Claim,
    Figure,
    Missing,
    Runs,
    Section,
    TableCell,
    bars,
    lines,
    not_comparable,
)
from fullrank.analysis.diagnostics.attention_share import LABELS, item_bands
from fullrank.analysis.report import join_words
from fullrank.analysis.report.results import is_baseline, metric_cell, metric_header, p_words
from fullrank.evaluation import Comparison
from fullrank.metrics import RowValues
from fullrank.metrics.lists import exposures
from fullrank.metrics.names import history_words

PLACES = 10
"""Places of each list that are looked at."""


class Pareto(Section):
    """Accuracy against long-tail share, with intervals, and the runs that no other beats in both."""

    name = "pareto"
    claim = Claim(
        "Accuracy against long-tail share",
        "Each point is a run: further up finds more of what people chose next, further right shows more of the long "
        f"tail ({FAIRNESS}: share of first recommendations from the least popular 80 % of items). Bars are intervals "
        "over users",
    )

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        why = "it compares runs, and the report has one" if len(there) < 2 else not_comparable(there)
        if why is not None:
            return claim.missing(f"{why}.")
        accuracy, unknown = there[0].accuracy, (None, None)
        points = [(one.evaluation.metrics[FAIRNESS], one.evaluation.metrics[accuracy]) for one in there]
        front = pareto_front(points)
        drawn = [
            (one.label, x, *(one.interval(FAIRNESS) or unknown), y, *(one.interval(accuracy) or unknown))
            for one, (x, y) in zip(there, points, strict=True)
        ]
        rows = [(row[0], *row[4:], *row[1:4], "yes" if place in front else "no") for place, row in enumerate(drawn)]
        line = "; the dotted line joins them" if len(front) > 1 else ""
        more = (
            f"; {history_words(there[0].evaluation.protocol)}. No run beats "
            f"{join_words([there[place].key for place in front])} in both{line}."
        )
        drawn = [*(("best trade-offs", points[place][0], *unknown, points[place][1]) for place in front), *drawn]
        headers = ("run", accuracy, "from", "to", FAIRNESS, "from", "to", "best trade-off")
        chart = lines(
            f"long-tail share ({FAIRNESS})", accuracy,
            axis=f"accuracy ({accuracy})", note="run", interval="xy", rows=drawn,
        )  # fmt: skip
        return claim.figure(headers, rows, chart, more=more)


class PopularityBands(Section):
    """Which share of the recommendations goes to each band of popularity."""

    name = "bands"
    claim = Claim(
        "Recommended items by popularity",
        "The catalogue is cut into bands, from its most popular 1 % of items to its less popular half. Bars show "
        f"which share of all recommendations (first {PLACES} places) each run gives to a band, beside the share of "
        "events that the band really has (grey). A run whose bars lean further left than the grey ones amplifies "
        "popularity.",
    )

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        columns: dict[str, np.ndarray] = {}
        for one in there:
            popularity = one.run.catalog.popularity
            band = item_bands(popularity)
            events = _shares(popularity, band)
            if not columns or not np.allclose(columns["events"], events):
                columns[f"events of {one.key}" if columns else "events"] = events
            lists = one.evaluation.per_user.lists
            assert lists is not None  # `collect` takes no other evaluations
            columns[one.label] = _shares(exposures(lists[:, :PLACES], len(popularity)), band)
        rows = tuple((label, *map(float, shares)) for label, *shares in zip(LABELS, *columns.values(), strict=True))
        chart = bars("items by popularity", tuple(columns), by="", axis="share of recommendations", percent=True)
        return claim.figure(("items by popularity", *columns), rows, chart)


class Reliability(Section):
    """Predicted probability against the share that was clicked, over parts of equally many impressions."""

    name = "reliability"
    problem = "ranking"
    claim = Claim(
        "Calibration",
        "Impressions in order of their predicted probability, cut into parts of about equal size: across is the "
        "mean prediction of a part, upwards the share of it that was clicked. On the dotted line probabilities are "
        "right; below it the model promises too much. The mean distance from the line is the calibration error (ece).",
        (lines("predicted probability", "share clicked", slope=1),),
    )

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        rows = tuple(
            (one.label, point.rows, point.probability, point.rate)
            for one in there for point in one.evaluation.curve
        )  # fmt: skip
        return claim.figure(("run", "impressions", "predicted probability", "share clicked"), rows)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other point exceeds in one coordinate and reaches in the other, by rising x."""
    kept = [
        i for i, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]  # fmt: skip
    return sorted(kept, key=lambda i: points[i])


def _shares(counts: np.ndarray, band: np.ndarray) -> np.ndarray:
    return np.bincount(band, weights=counts, minlength=len(LABELS)) / max(1, counts.sum())


PERCENTS = (1, 5, 10, 20, 30, 50, 70, 100)
"""Parts of the impressions that are looked at."""


class Gain(Section):
    """Share of the clicks among the highest predictions, with lift and precision."""

    name = "gain"
    problem = "ranking"
    claim = Claim(
        "Clicks among the highest predictions",
        "Impressions in order of their predicted probability, the highest first: across is how many percent of them "
        "are looked at, upwards the share of all clicks that is among these. The dotted line is chance. The data table "
        "has the lift over chance and the share that was clicked (precision).",
        (lines("percent of impressions", "share of clicks", percent=True, zero=True, slope=0.01),),
    )

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        gains = {
            one.label: gain(one.evaluation.per_impression.probabilities, one.evaluation.per_impression.labels)
            for one in there
        }
        rows = tuple(
            (label, percent, *values.tolist())
            for label, of_run in gains.items() for percent, values in zip(PERCENTS, of_run, strict=True)
        )  # fmt: skip
        return claim.figure(("run", "percent of impressions", "share of clicks", "lift", "precision"), rows)


def gain(probabilities: RowValues, labels: RowValues) -> Float[np.ndarray, "P 3"]:
    """Share of clicks, lift and precision among the first of each of `PERCENTS`, by falling probability."""
    found = np.cumsum(labels[np.argsort(-probabilities, kind="stable")])
    firsts = np.array([max(1, round(len(labels) * percent / 100)) for percent in PERCENTS])
    clicks = found[firsts - 1]
    share = clicks / max(1.0, float(found[-1]))
    return np.stack([share, share * len(labels) / firsts, clicks / firsts], 1)


class RetrievalDifferences(Section):
    """Accuracy, long-tail share and coverage of each run less those of the best baseline, user by user."""

    name = "differences"
    claim = Claim("Paired differences", "", open=True)

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        """The reference with its values, then each run's differences from it."""
        rows_are = "users" if cls.problem == "retrieval" else "impressions"
        if len(there) < 2:
            return claim.missing("it compares runs, and the report has one.")
        base = next((one for one in there if one.key == one.reference), None)
        others = [one for one in there if one.against]
        if base is None or not others:
            why = not_comparable(there) or f"the runs were evaluated on different {rows_are}"
            return claim.missing(f"{why}.")
        metrics = list(others[0].against)
        pairs = [(metric_header(metric), TableCell("p", metric)) for metric in metrics]
        first = [(metric_cell(base, metric), None) for metric in metrics]
        rows: list[tuple[Any, ...]] = [(TableCell(base.label, "the reference"), *chain(*first))]
        for one in others:
            ps = (p_words(one.against[metric].p).removeprefix("p ").removeprefix("= ") for metric in metrics)
            cells = zip((difference_cell(one.against[metric]) for metric in metrics), ps, strict=True)
            rows.append((one.label, *chain(*cells)))
        what = "the most accurate baseline" if is_baseline(base) else "the first run, since no baseline is among them"
        found = others[0].against[metrics[0]]
        level = base.evaluation.protocol["bootstrap"]["level"]
        more = (
            f"Each run less {base.key} ({base.name}), {what}, on the same {found.users:,} {rows_are}; below it the "
            f"{level:.0%} interval of the difference. p is two-sided, the chance of a "
            f"difference at least as large if the two were alike ({found.test}); with several runs, some small p comes "
            "by chance."
        )
        claim = replace(claim, title=f"{claim.title} from {base.key} ({base.name})")
        return claim.figure(("run", *chain(*pairs)), rows, more=more)


class RankingDifferences(RetrievalDifferences):
    """AUC and logloss of each run less those of the baseline, on the same impressions."""

    problem = "ranking"


def difference_cell(found: Comparison) -> TableCell:
    """`+0.0242`, below it its interval and, of metrics of lists, its share of the reference's value."""
    low, high = found.interval
    relative = found.difference / abs(found.a) if found.a and "@" in found.metric else None  # an AUC has no true zero
    share = "" if relative is None or abs(relative) >= 10 else f", {relative:+.0%}"
    return TableCell(f"{found.difference:+.4f}", f"{low:+.4f} to {high:+.4f}{share}")
