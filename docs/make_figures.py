"""Draws the figures of the documentation from the files in results/: ``python docs/make_figures.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fullrank.reports.draw import STYLE, look

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 3.1, 2.7
"""Inches of a panel."""


def sprint_depth() -> Figure:
    """Collapse share, fairness and accuracy by depth, with and without SPRINT."""
    rows = json.loads((ROOT / "results/sprint/2026-11-21_2cpu_depth_report.json").read_text())["rows"]
    shown: dict[str, Callable[[dict[str, Any]], float]] = {
        "collapse share": lambda row: row["collapse_share"],
        "fair0.8@1": lambda row: row["test"]["fair0.8@1"],
        "NDCG@5": lambda row: row["test"]["ndcg@5"],
    }
    figure, panels = _panels(len(shown))
    for axes, (label, value) in zip(panels, shown.items(), strict=True):
        for place, method in enumerate(("plain", "sprint")):
            points = sorted((row["layers"], value(row)) for row in rows if row["method"] == method)
            axes.plot(*zip(*points, strict=True), label={"sprint": "SPRINT"}.get(method, method), **look(place))
        axes.set(xlabel="layers", ylabel=label, xticks=[1, 2, 4, 8], ylim=(0, None))
    panels[0].legend()
    return figure


def plr_dial() -> Figure:
    """Accuracy, seconds and distance of the streams by steps, one line for each number of streams that think."""
    found = json.loads((ROOT / "results/plr/2026-11-21_2cpu_dial.json").read_text())
    points = [point for point in found["curve"] if not point["adaptive"]]
    figure, (accuracy, cost, apart) = _panels(3)
    for streams in sorted({point["streams"] for point in points}):
        own = sorted((p for p in points if p["streams"] == streams), key=lambda point: point["asked"])
        steps, style = [point["asked"] for point in own], look(streams - 1)
        accuracy.plot(steps, [p["metrics"]["ndcg@10"] for p in own], label=f"{streams} of {found['streams']}", **style)
        cost.plot(steps, [p["seconds"] for p in own], **style)
    distance = {int(step): value for step, value in found["distance"].items()}
    apart.plot(list(distance), list(distance.values()), **look(found["streams"] - 1))
    accuracy.set(xlabel="steps", ylabel="NDCG@10")
    cost.set(xlabel="steps", ylabel="seconds per 1,000 users", ylim=(0, None))
    apart.set(xlabel="steps", ylabel=f"squared distance of {found['streams']} streams", ylim=(0, None))
    accuracy.legend(title="streams")
    return figure


FIGURES = {"sprint_depth": sprint_depth, "plr_dial": plr_dial}


def _panels(count: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(WIDTH * count, HEIGHT))
    return figure, list(figure.subplots(1, count))


def main() -> None:
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            FigureCanvasSVG(draw()).print_svg(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
