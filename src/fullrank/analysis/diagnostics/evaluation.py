"""Figures of evaluations: accuracy against long-tail share, recommended items by popularity, and calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fullrank.analysis.diagnostics import FAIRNESS, Claim, Figure, Missing, Runs, Section, bars, lines, not_comparable
from fullrank.analysis.diagnostics.attention_share import LABELS, item_bands
from fullrank.analysis.report import join_words
from fullrank.metrics.exposure import exposures
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
        return claim.figure(headers, rows, lines(FAIRNESS, accuracy, note="run", interval="xy", rows=drawn), more=more)


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
