"""Runs against each other: accuracy against fairness, who is recommended, and what depth does to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fullrank.analysis.ablation import FAIRNESS
from fullrank.analysis.attention_share import LABELS
from fullrank.analysis.attention_share import bands as banded
from fullrank.analysis.figures.alike import LAYERS, alike, line_label
from fullrank.analysis.report import Figure, Missing, listed
from fullrank.analysis.report.draw import GREY, legend, look, panel, whole_numbers
from fullrank.analysis.report.findings import Finding, comparable
from fullrank.metrics.exposure import exposures

PLACES = 10
"""Places of each list that are looked at."""


def pareto(findings: Sequence[Finding]) -> Figure | Missing:
    """Accuracy against fairness, with intervals, and the runs that no other beats in both."""
    name, title = "pareto", "Accuracy against fairness"
    if len(findings) < 2:
        return Missing(name, title, "it compares runs, and the report has one.")
    why = comparable(findings)
    if why is not None:
        return Missing(name, title, f"{why}.")
    accuracy = findings[0].accuracy
    points = [(one.evaluated.metrics[FAIRNESS], one.evaluated.metrics[accuracy]) for one in findings]
    best = front(points)

    def paint(axes: Any) -> None:
        axes.step(*zip(*[points[i] for i in best], strict=True), where="pre", color=GREY, lw=1, ls="--")
        for place, (one, (x, y)) in enumerate(zip(findings, points, strict=True)):
            style = look(place)
            axes.errorbar(x, y, xerr=_reach(one, FAIRNESS, x), yerr=_reach(one, accuracy, y),
                          fmt=style["marker"], color=style["color"], elinewidth=1)  # fmt: skip
            axes.annotate(one.key, (x, y), xytext=(6, 5), textcoords="offset points", color=style["color"])

    keys = listed([findings[i].key for i in best])
    line = "; the dashed line joins them" if len(best) > 1 else ""
    caption = (
        f"Each point is a run: further up finds more of what people chose next ({accuracy}), further right shows more "
        f"niche items in first place ({FAIRNESS}: share of first recommendations from the least popular 80 % of items)."
        f" Bars are intervals over users. No run beats {keys} in both{line}."
    )
    alt = f"Scatter of {accuracy} against {FAIRNESS} for {len(findings)} runs; the best trade-offs are {keys}."
    rows = [
        (f"{one.key} {one.name}", y, *(one.interval(accuracy) or (None, None)), x,
         *(one.interval(FAIRNESS) or (None, None)), "yes" if place in best else "no")
        for place, (one, (x, y)) in enumerate(zip(findings, points, strict=True))
    ]  # fmt: skip
    headers = ("run", accuracy, "from", "to", FAIRNESS, "from", "to", "best trade-off")
    drawn = panel(name, paint, alt, x=f"fairness ({FAIRNESS})", y=f"accuracy ({accuracy})")
    return Figure(name, title, caption, (drawn,), headers, tuple(rows))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other point exceeds in one coordinate and reaches in the other, by rising x."""
    kept = [
        i for i, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]  # fmt: skip
    return sorted(kept, key=lambda i: points[i])


def bands(findings: Sequence[Finding]) -> Figure | Missing:
    """Which share of the recommendations goes to each band of popularity."""
    name, title = "bands", "Who is recommended"
    columns: list[tuple[str, np.ndarray]] = []
    for one in findings:
        popularity = one.run.catalog.popularity
        band = banded(popularity)
        if not columns or not np.allclose(columns[0][1], _shares(popularity, band)):
            columns.append(("events" if not columns else f"events of {one.key}", _shares(popularity, band)))
        lists = one.evaluated.per_user.lists
        assert lists is not None  # `findings._fits` asks for them
        columns.append((one.key, _shares(exposures(lists[:, :PLACES], len(popularity)), band)))

    def paint(axes: Any) -> None:
        wide = 0.84 / len(columns)
        for place, (label, shares) in enumerate(columns):
            keys = [one.key for one in findings]
            colour = look(keys.index(label))["color"] if label in keys else "#b5b5b5"
            at = np.arange(len(LABELS)) + (place - (len(columns) - 1) / 2) * wide
            axes.bar(at, 100 * shares, wide * 0.92, color=colour, label=label)
        axes.set_xticks(range(len(LABELS)), LABELS)
        legend(axes)

    caption = (
        "The catalogue is cut into bands, from its most popular 1 % of items to its less popular half. Bars show which "
        f"share of all recommendations (first {PLACES} places) each run gives to a band, beside the share of events "
        "that the band really has (grey). A run whose bars lean further left than the grey ones amplifies popularity."
    )
    tops = listed([f"{label} {shares[:2].sum():.0%}" for label, shares in columns])
    alt = f"Bars of recommendations by popularity band. Share of the most popular 5 %: {tops}."
    rows = tuple((LABELS[b], *(float(shares[b]) for _, shares in columns)) for b in range(len(LABELS)))
    drawn = panel(name, paint, alt, x="items by popularity", y="share of recommendations (%)")
    return Figure(name, title, caption, (drawn,), ("items", *(label for label, _ in columns)), rows)


def depth(findings: Sequence[Finding]) -> Figure | Missing:
    """Accuracy, fairness and collapse share by the number of layers, of runs that differ in nothing else."""
    name, title = "depth", "What more layers do"
    layered = [one for one in findings if one.layers is not None]
    groups = [group for group in alike(layered, LAYERS) if len({one.layers for one in group}) > 1]
    if not groups:
        return Missing(name, title, "no two runs differ in their number of layers alone (and in their seed).")
    inside = [one for group in groups for one in group]
    why = comparable(inside)
    if why is not None:
        return Missing(name, title, f"{why}.")
    accuracy = inside[0].accuracy
    figures = ((accuracy, "accuracy"), (FAIRNESS, "fairness"), ("collapse share", "collapse share"))

    def value(one: Finding, figure: str) -> float | None:
        return one.diagnosis.value("spectrum", "collapse_share") if figure == "collapse share" else one.metric(figure)

    panels = []
    for figure, word in figures:

        def paint(axes: Any, figure: str = figure) -> None:
            for place, group in enumerate(groups):
                points: dict[int, list[float]] = {}
                for one in group:
                    found = value(one, figure)
                    if found is not None and one.layers is not None:
                        points.setdefault(one.layers, []).append(found)
                x = sorted(points)
                axes.plot(x, [float(np.mean(points[n])) for n in x], label=line_label(group), **look(place))
            whole_numbers(axes)
            legend(axes)

        label = word if figure == word else f"{word} ({figure})"
        alt = f"{label} by number of layers: " + "; ".join(
            f"{one.key} ({one.layers} layers) {found:.4f}"
            for one in inside if (found := value(one, figure)) is not None
        )  # fmt: skip
        panels.append(panel(f"{name}-{word.replace(' ', '-')}", paint, alt, x="layers", y=label))
    caption = (
        "Runs that differ only in how many layers they have. If fairness falls and the collapse share (how much of all "
        "scores is one direction) rises from left to right, depth amplifies popularity here."
    )
    rows = tuple(
        (f"{one.key} {one.name}", one.layers, *(value(one, figure) for figure, _ in figures)) for one in inside
    )
    return Figure(name, title, caption, tuple(panels), ("run", "layers", *(figure for figure, _ in figures)), rows)


def _shares(counts: np.ndarray, band: np.ndarray) -> np.ndarray:
    return np.bincount(band, weights=counts, minlength=len(LABELS)) / max(1, counts.sum())


def _reach(one: Finding, name: str, value: float) -> list[list[float]] | None:
    pair = one.interval(name)
    return None if pair is None else [[max(0.0, value - pair[0])], [max(0.0, pair[1] - value)]]
