"""Laws of a ladder: SRT's Figures 4 (metric by FLOPs), 5 (frontiers), 6 (line and sigmoid) and 7 (size and data)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fullrank.analysis.report import Figure, Missing, join_words
from fullrank.analysis.report.draw import GREY, legend, look, panel, plain_powers
from fullrank.core.errors import UserError
from fullrank.scaling.fit import Law
from fullrank.scaling.frontier import compute_frontier
from fullrank.scaling.holdout import HeldOut
from fullrank.scaling.ladder import Ladder
from fullrank.scaling.points import envelope

BEYOND = 100.0
"""How many times the largest FLOPs are drawn beyond the runs."""
SHOWN = 150
"""Records drawn as points; the lines are fitted to all."""


def compute(ladder: Ladder, groups: Sequence[str], law: Law | None, *, lower: bool) -> Figure | Missing:
    """Figure 4: every run, the envelope, and the sigmoid with its interval."""
    name, title = "compute", "What FLOPs bring"
    try:
        best = envelope(ladder, lower=lower)
    except UserError as error:
        return Missing(name, title, str(error))
    grid = np.geomspace(best.flops[0], best.flops[-1], 120)

    def paint(axes: Any) -> None:
        for trace in ladder.traces:
            axes.plot(trace.flops, trace.metric, color=look(groups.index(trace.group))["color"], lw=0.6, alpha=0.5)
        axes.plot(best.flops, best.metric, color="#000000", lw=1.2, label="envelope")
        if law is not None:
            low, high = law.interval(flops=grid)
            axes.fill_between(grid, low, high, color=look(1)["color"], alpha=0.2, lw=0)
            axes.plot(grid, law.predict(flops=grid), color=look(1)["color"], ls="--", label="sigmoid")
        axes.set_xscale("log")
        plain_powers(axes.xaxis)
        legend(axes)

    drawn = panel(
        name, paint, f"{ladder.metric} of {len(ladder)} runs by FLOPs with their envelope.", x="FLOPs", y=ladder.metric
    )
    caption = (
        "Each thin line is a run, coloured by its data set; black is the best that any had reached at that cost. Small "
        "models and small data stop growing early, and the envelope goes on with larger ones."
    )
    some = np.unique(np.linspace(0, len(best) - 1, 25).astype(int))
    rows = tuple(
        (f"{best.flops[i]:.3g}", float(best.metric[i]), holder.group or holder.run, *_at(law, float(best.flops[i])))
        for i in some
        for holder in (ladder.traces[best.run[i]],)
    )  # fmt: skip
    return Figure(name, title, caption, (drawn,), ("FLOPs", ladder.metric, "held by", "sigmoid", "from", "to"), rows)


def splits(ladder: Ladder, *, lower: bool) -> Figure | Missing:
    """Figure 5: interactions seen and parameters of the records, with their lines."""
    name, title = "frontier", "How the best runs spent their FLOPs"
    try:
        lines, points = compute_frontier(ladder, lower=lower)
    except UserError as error:
        return Missing(name, title, str(error))
    flops = points["flops"]

    def painter(key: str) -> Any:
        def paint(axes: Any) -> None:
            some = np.unique(np.linspace(0, len(flops) - 1, SHOWN).astype(int))
            axes.scatter(flops[some], points[key][some], c=points["metric"][some], cmap="viridis", s=6)
            axes.plot(flops, lines[key](flops), color="#D55E00", ls=":", lw=2)
            axes.set_xscale("log")
            axes.set_yscale("log")
            plain_powers(axes.xaxis)
            plain_powers(axes.yaxis)

        return paint

    words = {"seen": "interactions seen", "parameters": "parameters", "data": "interactions of the data set"}
    panels = tuple(
        panel(f"{name}-{key}", painter(key), f"{word} of the envelope's runs by FLOPs, slope {lines[key].slope:.3g}.",
              x="FLOPs", y=word, height=2.6)
        for key, word in words.items()
    )  # fmt: skip
    caption = (
        "Each point is a record of the envelope, brighter where the metric is better; the dotted line is straight in "
        "logarithms. "
        + join_words([f"{word} grow as FLOPs^{lines[key].slope:.3g}" for key, word in words.items()])
        + "."
    )
    rows = tuple((word, lines[key].slope, float(lines[key](flops[-1])[0])) for key, word in words.items())
    return Figure(name, title, caption, panels, ("what", "slope", "at the most FLOPs"), rows)


def extrapolation(ladder: Ladder, line: Law | None, bent: Law | None, why: str) -> Figure | Missing:
    """Figure 6: the line and the sigmoid through the envelope, and beyond the runs."""
    name, title = "extrapolation", "A line or a sigmoid"
    if line is None or bent is None:
        return Missing(name, title, f"{why}.")
    best = envelope(ladder)
    last = float(best.flops[-1])
    grid = np.geomspace(best.flops[0], last * BEYOND, 160)

    def paint(axes: Any) -> None:
        axes.plot(best.flops, best.metric, color="#000000", lw=1, label="envelope")
        for place, law in enumerate((line, bent)):
            low, high = law.interval(flops=grid)
            colour = look(place)["color"]
            axes.fill_between(grid, low, high, color=colour, alpha=0.15, lw=0)
            axes.plot(grid, law.predict(flops=grid), color=colour, ls=look(place)["linestyle"], label=law.form.name)
        axes.axvline(last, color=GREY, lw=0.8)
        axes.set_xscale("log")
        plain_powers(axes.xaxis)
        legend(axes, place="upper left")

    drawn = panel(
        name, paint, "The envelope with a line and a sigmoid, drawn beyond the runs.", x="FLOPs", y=ladder.metric
    )
    caption = (
        f"Both are fitted to the envelope (rmse of the line {line.rmse:.5f}, of the sigmoid {bent.rmse:.5f}) and drawn "
        f"{BEYOND:g} times beyond the most FLOPs spent (grey). There no run speaks for either; bands are intervals "
        "over resampled runs."
    )
    rows = tuple((f"{at:.3g}", *_at(line, at), *_at(bent, at)) for at in (last * f for f in (0.1, 1, 10, BEYOND)))
    headers = ("FLOPs", "line", "from", "to", "sigmoid", "from", "to")
    return Figure(name, title, caption, (drawn,), headers, rows)


def surface(ladder: Ladder, groups: Sequence[str], law: Law | None, why: str) -> Figure | Missing:
    """Figure 7: the law over size and data with the runs on it, and along size for each data set."""
    name, title = "surface", "Size and data"
    if law is None:
        return Missing(name, title, f"{why}.")
    n = np.geomspace(*law.observed["parameters"], 60)
    t = np.geomspace(*law.observed["data"], 60)
    wide, high = np.meshgrid(n, t)
    values = law.predict(parameters=wide.ravel(), data=high.ravel()).reshape(wide.shape)
    best = [float(trace.metric[trace.best(lower=law.form.lower)]) for trace in ladder.traces]

    def contours(axes: Any) -> None:
        drawn = axes.contour(wide, high, values, levels=10, cmap="viridis", linewidths=1.2)
        axes.clabel(drawn, fontsize=7, fmt="%.3g")
        own = [(x.parameters, x.data) for x in ladder.traces]
        axes.scatter(*zip(*own, strict=True), c=best, cmap="viridis", s=10)
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_powers(axes.xaxis)
        plain_powers(axes.yaxis)

    def along(axes: Any) -> None:
        for place, group in enumerate(groups):
            here = [(x, y) for x, y in zip(ladder.traces, best, strict=True) if x.group == group]
            colour = look(place)["color"]
            axes.scatter([x.parameters for x, _ in here], [y for _, y in here], s=8, color=colour)
            for data in sorted({float(x.data or 0) for x, _ in here})[-1:]:
                axes.plot(n, law.predict(parameters=n, data=data), color=colour, lw=1)
        axes.set_xscale("log")
        plain_powers(axes.xaxis)

    panels = (
        panel(f"{name}-map", contours, "Contours of the law over parameters and interactions.", x="parameters N",
              y="interactions T"),
        panel(f"{name}-size", along, "The law along parameters for each data set, with the runs.", x="parameters N",
              y=ladder.metric),
    )  # fmt: skip
    open_ = sorted({p for one in law.unidentified for p in one.parameters})
    caption = (
        "First, the metric that the law expects of a size and a data set (lines of equal height) with the runs; then "
        "along size for each data set. " + (f"Not determined by these runs: {', '.join(open_)}." if open_ else "")
    )
    rows = tuple((key, value, *law.intervals[key]) for key, value in law.parameters.items())
    return Figure(name, title, caption, panels, ("parameter", "value", "from", "to"), rows)


def held_out(held: Sequence[HeldOut]) -> Figure | Missing:
    """What laws that had not seen the largest runs said of them."""
    name, title = "held-out", "Predicted before they were seen"
    if not held:
        return Missing(name, title, "no runs were held out.")

    def painter(one: HeldOut) -> Any:
        def paint(axes: Any) -> None:
            off = np.stack([one.predicted - one.low, one.high - one.predicted]).clip(0)
            axes.errorbar(one.measured, one.predicted, yerr=off, fmt="o", ms=3, lw=0.8, color=look(0)["color"])
            ends = [float(min(one.measured.min(), one.low.min())), float(max(one.measured.max(), one.high.max()))]
            axes.plot(ends, ends, color=GREY, lw=0.8)

        return paint

    panels = tuple(
        panel(f"{name}-{one.by}", painter(one), f"Predicted against measured, without the largest {one.by}.",
              x="measured", y=f"predicted without the largest {one.by}")
        for one in held
    )  # fmt: skip
    told = [(one, one.dump()) for one in held]
    caption = "On the grey line the prediction is right; bars are the interval of one run. " + " ".join(
        f"Largest {one.by} ({one.runs} runs): rmse {d['rmse']:.5f}, bias {d['bias']:+.5f}, {one.inside:.0%} inside."
        for one, d in told
    )
    headers = (
        "held out",
        "form",
        "runs",
        "points",
        "rmse",
        "bias",
        "largest error",
        "inside",
        "rmse of the nearest point",
    )
    rows = tuple(
        (one.by, one.law.form.name, one.runs, d["points"], d["rmse"], d["bias"], d["largest_error"], one.inside,
         d["rmse_of_nearest"])
        for one, d in told
    )  # fmt: skip
    return Figure(name, title, caption, panels, headers, rows)


def _at(law: Law | None, flops: float) -> tuple[float | None, ...]:
    if law is None:
        return (None, None, None)
    low, high = law.interval(flops=flops)
    return float(law.predict(flops=flops)[0]), float(low[0]), float(high[0])
