"""Figures of evaluations: accuracy against long-tail share, recommended items by popularity, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fullrank.analysis.activations import FAIRNESS
from fullrank.analysis.diagnostics import Section
from fullrank.analysis.diagnostics.attention_share import LABELS, item_bands
from fullrank.analysis.report import Figure, Missing, Shown, join_words
from fullrank.analysis.report.draw import GREY, diagonal, legend, look, panel
from fullrank.analysis.report.lines import line_panel
from fullrank.analysis.report.results import RunResult, Runs, legend_label, not_comparable
from fullrank.metrics.exposure import exposures
from fullrank.metrics.names import history_words

PLACES = 10
"""Places of each list that are looked at."""


class Pareto(Section):
    """Accuracy against long-tail share, with intervals, and the runs that no other beats in both."""

    name = "pareto"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """Accuracy against long-tail share, with intervals, and the runs that no other beats in both."""
        name, title = "pareto", "Accuracy against long-tail share"
        if len(results) < 2:
            return Missing(name, title, "it compares runs, and the report has one.")
        why = not_comparable(results)
        if why is not None:
            return Missing(name, title, f"{why}.")
        accuracy = results[0].accuracy
        points = [(one.evaluation.metrics[FAIRNESS], one.evaluation.metrics[accuracy]) for one in results]
        best = pareto_front(points)

        def paint(axes: Any) -> None:
            axes.step(*zip(*[points[i] for i in best], strict=True), where="pre", color=GREY, lw=1, ls="--")
            for place, (one, (x, y)) in enumerate(zip(results, points, strict=True)):
                style = look(place)
                axes.errorbar(x, y, xerr=_reach(one, FAIRNESS, x), yerr=_reach(one, accuracy, y),
                              fmt=style["marker"], color=style["color"], elinewidth=1)  # fmt: skip
                axes.annotate(
                    legend_label(one, results), (x, y), xytext=(6, 5), textcoords="offset points", color=style["color"]
                )

        keys = join_words([results[i].key for i in best])
        line = "; the dashed line joins them" if len(best) > 1 else ""
        caption = (
            f"Each point is a run: further up finds more of what people chose next ({accuracy}), further right shows "
            f"more of the long tail ({FAIRNESS}: share of first recommendations from the least popular 80 % "
            f"of items). Bars are intervals over users; {history_words(results[0].evaluation.protocol)}. No run beats "
            f"{keys} in both{line}."
        )
        alt = f"Scatter of {accuracy} against {FAIRNESS} for {len(results)} runs; the best trade-offs are {keys}."
        rows = [
            (one.label, y, *(one.interval(accuracy) or (None, None)), x,
             *(one.interval(FAIRNESS) or (None, None)), "yes" if place in best else "no")
            for place, (one, (x, y)) in enumerate(zip(results, points, strict=True))
        ]  # fmt: skip
        headers = ("run", accuracy, "from", "to", FAIRNESS, "from", "to", "best trade-off")
        drawn = panel(name, paint, alt, x=f"long-tail share ({FAIRNESS})", y=f"accuracy ({accuracy})")
        return Figure(name, title, caption, (drawn,), headers, tuple(rows))


class PopularityBands(Section):
    """Which share of the recommendations goes to each band of popularity."""

    name = "bands"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """Which share of the recommendations goes to each band of popularity."""
        name, title = "bands", "Recommended items by popularity"
        columns: list[tuple[str, np.ndarray]] = []
        for one in results:
            popularity = one.run.catalog.popularity
            band = item_bands(popularity)
            if not columns or not np.allclose(columns[0][1], _shares(popularity, band)):
                columns.append(("events" if not columns else f"events of {one.key}", _shares(popularity, band)))
            lists = one.evaluation.per_user.lists
            assert lists is not None  # `collect` takes no other evaluations
            columns.append((one.key, _shares(exposures(lists[:, :PLACES], len(popularity)), band)))

        def paint(axes: Any) -> None:
            wide, keys = 0.84 / len(columns), [one.key for one in results]
            names = {one.key: legend_label(one, results) for one in results}
            for place, (label, shares) in enumerate(columns):
                colour = look(keys.index(label))["color"] if label in keys else "#b5b5b5"
                at = np.arange(len(LABELS)) + (place - (len(columns) - 1) / 2) * wide
                axes.bar(at, 100 * shares, wide * 0.92, color=colour, label=names.get(label, label))
            axes.set_xticks(range(len(LABELS)), LABELS)
            legend(axes)

        caption = (
            "The catalogue is cut into bands, from its most popular 1 % of items to its less popular half. Bars show "
            f"which share of all recommendations (first {PLACES} places) each run gives to a band, beside the share of "
            "events that the band really has (grey). A run whose bars lean further left than the grey ones amplifies "
            "popularity."
        )
        tops = join_words([f"{label} {shares[:2].sum():.0%}" for label, shares in columns])
        alt = f"Bars of recommendations by popularity band. Share of the most popular 5 %: {tops}."
        rows = tuple((LABELS[b], *(float(shares[b]) for _, shares in columns)) for b in range(len(LABELS)))
        drawn = panel(name, paint, alt, x="items by popularity", y="share of recommendations (%)")
        return Figure(name, title, caption, (drawn,), ("items", *(label for label, _ in columns)), rows)


class Reliability(Section):
    """Predicted probability against the share that was clicked, over parts of equally many impressions."""

    name = "reliability"
    problem = "ranking"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """Predicted probability against the share that was clicked, over parts of equally many impressions."""
        lines = {one.key: {point.probability: point.rate for point in one.evaluation.curve} for one in results}
        top = max(max(*line, *line.values()) for line in lines.values())
        caption = (
            "Impressions in order of their predicted probability, cut into parts of about equal size: across is the "
            "mean prediction of a part, upwards the share of it that was clicked. On the dotted line probabilities are "
            "right; below it the model promises too much. The mean distance from the line is the calibration error "
            "(ece)."
        )
        alt = "Clicked over predicted. Mean gap: " + "; ".join(
            f"{one.key} {one.evaluation.metrics['ece']:.4f}" for one in results
        )
        rows = tuple(
            (one.label, point.rows, point.probability, point.rate)
            for one in results for point in one.evaluation.curve
        )  # fmt: skip
        drawn = line_panel(
            cls.name, results, lines, alt, x="predicted probability", y="share clicked", first=diagonal(top),
            finish=(partial(legend, place="upper left"),),
        )  # fmt: skip
        headers = ("run", "impressions", "predicted", "clicked")
        return Figure(cls.name, "Calibration", caption, (drawn,), headers, rows)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other point exceeds in one coordinate and reaches in the other, by rising x."""
    kept = [
        i for i, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]  # fmt: skip
    return sorted(kept, key=lambda i: points[i])


def _shares(counts: np.ndarray, band: np.ndarray) -> np.ndarray:
    return np.bincount(band, weights=counts, minlength=len(LABELS)) / max(1, counts.sum())


def _reach(one: RunResult, name: str, value: float) -> list[list[float]] | None:
    pair = one.interval(name)
    return None if pair is None else [[max(0.0, value - pair[0])], [max(0.0, pair[1] - value)]]
