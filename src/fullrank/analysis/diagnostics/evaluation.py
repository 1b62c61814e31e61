"""Figures of evaluations: trade-offs, recommended items by popularity, calibration, gain, and paired differences.

Gain is the worth of a ranker where only some impressions can be shown: the share of clicks among
the first n of N impressions by falling probability; lift is that share over n / N, precision the
share of the n that was clicked. Equal probabilities are in the order of the store.

Differences from the best baseline are of the same users or impressions, with an interval and a p
value for each metric. The intervals of two runs cannot replace them: those may overlap although one
run is better for nearly every user. The numbers are those of `evaluation.compare` at its defaults
(`fullrank evaluate A B` prints the same ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from fullrank.evaluation.spec import history_words
from fullrank.metrics import RowValues
from fullrank.metrics.lists import exposures

PLACES = 10
"""Items at the head of each list that are counted."""


class Pareto(Section):
    """Accuracy against long-tail share, and the runs that no other beats in both."""

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
        points = [(run.evaluation.metrics[FAIRNESS], run.evaluation.metrics[accuracy]) for run in there]
        front = pareto_front(points)
        rows = []
        drawn = [("best trade-offs", points[number][0], *unknown, points[number][1]) for number in front]
        for number, run in enumerate(there):
            x, y = ((run.evaluation.metrics[name], *(run.interval(name) or unknown)) for name in (FAIRNESS, accuracy))
            rows.append((run.label, *y, *x, "yes" if number in front else "no"))
            drawn.append((run.label, *x, *y))
        line = "; the dotted line joins them" if len(front) > 1 else ""
        more = (
            f"; {history_words(there[0].evaluation.protocol)}. No run beats "
            f"{join_words([there[number].key for number in front])} in both{line}."
        )
        headers = ("run", accuracy, "from", "to", FAIRNESS, "from", "to", "best trade-off")
        chart = lines(
            f"long-tail share ({FAIRNESS})",
            accuracy,
            axis=f"accuracy ({accuracy})",
            note="run",
            interval="xy",
            rows=drawn,
        )
        return claim.figure(headers, rows, chart, more=more)


class PopularityBands(Section):
    """Share of the recommendations that goes to each band of popularity."""

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
        for run in there:
            popularity = run.catalog.popularity
            band = item_bands(popularity)
            events = _shares(popularity, band)
            if not columns or not np.allclose(columns["events"], events):
                columns[f"events of {run.key}" if columns else "events"] = events
            lists = run.evaluation.per_user.lists
            assert lists is not None  # `collect` takes no other evaluations
            columns[run.label] = _shares(exposures(lists[:, :PLACES], len(popularity)), band)
        rows = [(label, *map(float, shares)) for label, *shares in zip(LABELS, *columns.values(), strict=True)]
        chart = bars("items by popularity", tuple(columns), by="", axis="share of recommendations", percent=True)
        return claim.figure(("items by popularity", *columns), rows, chart)


class Reliability(Section):
    """Predicted probability against the share clicked, over equal parts of impressions."""

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
        rows = [
            (run.label, point.rows, point.probability, point.rate) for run in there for point in run.evaluation.curve
        ]
        return claim.figure(("run", "impressions", "predicted probability", "share clicked"), rows)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices, by rising x, of the points that no other point beats in both coordinates."""
    front = (i for i, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points))
    return sorted(front, key=points.__getitem__)


def _shares(counts: np.ndarray, band: np.ndarray) -> np.ndarray:
    """Share of each band in the counts of items."""
    return np.bincount(band, weights=counts, minlength=len(LABELS)) / max(1, counts.sum())


PERCENTS = (1, 5, 10, 20, 30, 50, 70, 100)
"""Percentages of the impressions at which the gain is computed."""


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
        rows = []
        for run in there:
            gains = gain(run.evaluation.per_impression.probabilities, run.evaluation.per_impression.labels)
            rows += [(run.label, percent, *values) for percent, values in zip(PERCENTS, gains.tolist(), strict=True)]
        return claim.figure(("run", "percent of impressions", "share of clicks", "lift", "precision"), rows)


def gain(probabilities: RowValues, labels: RowValues) -> Float[np.ndarray, "P 3"]:
    """Share of clicks, lift and precision at each of `PERCENTS`, by falling probability."""
    total = np.cumsum(labels[np.argsort(-probabilities, kind="stable")])
    firsts = np.array([max(1, round(len(labels) * percent / 100)) for percent in PERCENTS])
    clicks = total[firsts - 1]
    share = clicks / max(1.0, float(total[-1]))
    return np.stack([share, share * len(labels) / firsts, clicks / firsts], 1)


class RetrievalDifferences(Section):
    """Accuracy, long-tail share and coverage less those of the best baseline, user by user."""

    name = "differences"
    claim = Claim("Paired differences", "", open=True)

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        """A table of the reference's values, and below it each run's differences from it."""
        units = "users" if cls.problem == "retrieval" else "impressions"
        if len(there) < 2:
            return claim.missing("it compares runs, and the report has one.")
        base = next((run for run in there if run.key == run.reference), None)
        others = [run for run in there if run.against]
        if base is None or not others:
            return claim.missing(f"{not_comparable(there) or f'the runs were evaluated on different {units}'}.")
        headers: list[Any] = ["run"]
        rows: list[list[Any]] = [[TableCell(base.label, "the reference")], *([run.label] for run in others)]
        for metric in others[0].against:
            headers += [metric_header(metric), TableCell("p", metric)]
            rows[0] += [metric_cell(base, metric), None]
            for row, run in zip(rows[1:], others, strict=True):
                p = p_words(run.against[metric].p).removeprefix("p ").removeprefix("= ")
                row += [difference_cell(run.against[metric]), p]
        kind = "the most accurate baseline" if is_baseline(base) else "the first run, since no baseline is among them"
        comparison = next(iter(others[0].against.values()))
        level = base.evaluation.protocol["bootstrap"]["level"]
        more = (
            f"Each run less {base.key} ({base.name}), {kind}, on the same {comparison.users:,} {units}; below it "
            f"the {level:.0%} interval of the difference. p is two-sided, the chance of a difference at least as "
            f"large if the two were alike ({comparison.test}); with several runs, some small p comes by chance."
        )
        claim = replace(claim, title=f"{claim.title} from {base.key} ({base.name})")
        return claim.figure(headers, rows, more=more)


class RankingDifferences(RetrievalDifferences):
    """AUC and logloss of each run less those of the baseline, on the same impressions."""

    problem = "ranking"


def difference_cell(comparison: Comparison) -> TableCell:
    """`+0.0242`, below it the interval and the relative difference (of metrics of lists)."""
    low, high = comparison.interval
    share = ""
    if comparison.a and "@" in comparison.metric:  # an AUC has no true zero
        relative = comparison.difference / abs(comparison.a)
        share = "" if abs(relative) >= 10 else f", {relative:+.0%}"
    return TableCell(f"{comparison.difference:+.4f}", f"{low:+.4f} to {high:+.4f}{share}")
