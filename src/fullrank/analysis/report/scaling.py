"""A page about the laws of a ladder of runs, and what of it is not determined: SRT's Figures 4 (metric by FLOPs), 5
(frontiers), 6 (line and sigmoid) and 7 (size and data) for these runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fullrank.analysis.report import Figure, Missing, join_words, plural
from fullrank.analysis.report.draw import GREY, legend, look, panel, powers
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable, check_extra
from fullrank.core.errors import UserError
from fullrank.scaling.fit import RESAMPLES, Law, fit_law
from fullrank.scaling.frontier import compute_frontier
from fullrank.scaling.holdout import HeldOut
from fullrank.scaling.ladder import Ladder
from fullrank.scaling.points import envelope

BEYOND = 100.0
"""How many times the largest FLOPs are drawn beyond the runs."""
SHOWN = 150
"""Records drawn as points; the lines are fitted to all."""
WORDS = (
    ("FLOPs", "Multiplications and additions spent on training, counted as the file of the runs counts them."),
    ("envelope", "The best metric that any run had reached at a number of FLOPs: what was possible with that much."),
    ("sigmoid", "An S-shaped curve in the logarithm of FLOPs, which levels off at its asymptote."),
    (
        "law of size and data",
        "The best metric of a run from its parameters N and the interactions T of its data: E less what a finite model "
        "costs (A / N^alpha) and what finite data cost (B / T^beta).",
    ),
    (
        "interval",
        "Between which values 95 of 100 fits lie when the runs are drawn anew, with replacement. It knows nothing of "
        "what may change beyond the runs.",
    ),
    (
        "not determined",
        "Other values of the parameter fit these runs about as well. The curve may predict well all the same; the "
        "constant by itself says nothing.",
    ),
)
"""What a reader may not know."""


def scaling_report(
    ladder: Ladder,
    *,
    known: Mapping[str, Law] | None = None,
    held: Sequence[HeldOut] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
    tell: Any = None,
) -> Report:
    """The page of a ladder. Laws that are not `known` are fitted; `held` are runs that laws were asked for unseen.

    A law of losses makes the page one of losses: FLOPs then have an envelope of the smallest, and no sigmoid.
    """
    check_extra()
    lower = bool(known) and any(law.form.lower for law in (known or {}).values())
    laws, why = dict(known or {}), {}
    for form in ("loss",) if lower else ("sigmoid", "linear", "power"):
        if form not in laws:
            try:
                laws[form] = fit_law(ladder, form, resamples=resamples, seed=seed, tell=tell)
            except UserError as error:
                why[form] = str(error).rstrip(".")
    split = laws.get("loss" if lower else "power")
    groups = _groups(ladder)
    sections = (
        compute(ladder, groups, laws.get("sigmoid"), lower=lower),
        splits(ladder, lower=lower),
        extrapolation(ladder, laws.get("linear"), laws.get("sigmoid"), why.get("sigmoid", "the runs have a loss")),
        surface(ladder, groups, split, why.get("power", "")),
        held_out(held),
    )
    return Report(
        title=f"How {ladder.metric} grows over {plural(len(ladder), 'run')}",
        subtitle="By FLOPs, by size and by data; and how far that can be relied on.",
        sentences=tuple(_sentences(laws, held)),
        summary=_summary(ladder, groups, lower),
        sections=sections,
        words=WORDS,
    )


def _groups(ladder: Ladder) -> list[str]:
    """Names of the data sets by their size."""
    by: dict[str, float] = {}
    for trace in ladder.traces:
        by[trace.group] = max(by.get(trace.group, 0.0), trace.data or 0.0)
    return sorted(by, key=lambda name: (by[name], name))


def _sentences(laws: Mapping[str, Law], held: Sequence[HeldOut]) -> Iterator[str]:
    """What there is to see, in sentences."""
    for law in laws.values():
        values = ", ".join(f"{name} {value:.4g}" for name, value in {**law.parameters, **law.derived}.items())
        yield f"{law.form.name}: {values}; rmse {law.rmse:.5f} on {plural(len(law.residuals), 'point')}."
        for some in law.unidentified:
            yield f"{law.form.name}, not determined ({some.ground}): {some.text}."
    for one in held:
        told = one.dump()
        yield (
            f"{one.law.form.name} without the {plural(one.runs, 'run')} of the largest {one.by} predicts them with an "
            f"rmse of {told['rmse']:.5f} ({one.inside:.0%} inside the interval; the nearest known point: "
            f"{told['rmse_of_nearest']:.5f})."
        )


def _summary(ladder: Ladder, groups: Sequence[str], lower: bool) -> SummaryTable:
    rows = []
    for place, name in enumerate(groups):
        traces = [trace for trace in ladder.traces if trace.group == name]
        best = [float(trace.metric[trace.best(lower=lower)]) for trace in traces]
        flops = [float(trace.flops[-1]) for trace in traces if trace.flops is not None]
        sizes = [trace.parameters for trace in traces if trace.parameters is not None]
        cells = (
            len(traces), traces[0].data, min(sizes, default=None), max(sizes, default=None),
            f"{max(flops):.3g}" if flops else None, min(best) if lower else max(best),
        )  # fmt: skip
        rows.append(SummaryRow(chr(ord("A") + place % 26), name or "all runs", look(place)["color"], cells))
    headers = (
        "runs", "interactions", "smallest model", "largest model", "FLOPs of the longest run", f"best {ladder.metric}",
    )  # fmt: skip
    note = "One line for each data set. Sizes are in parameters, as the laws count them."
    return SummaryTable(headers, tuple(rows), note)


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
        powers(axes)
        legend(axes)

    drawn = panel(
        name, paint, f"{ladder.metric} of {len(ladder)} runs by FLOPs with their envelope.", x="FLOPs", y=ladder.metric
    )
    caption = (
        "Each thin line is a run, coloured by its data set; black is the best that any had reached at that cost. Small "
        "models and small data stop growing early, and the envelope goes on with larger ones."
    )
    some = np.unique(np.linspace(0, len(best) - 1, 25).astype(int))

    def expected(flops: float) -> tuple[float | None, ...]:
        return (None, None, None) if law is None else law.estimate(flops=flops)

    rows = tuple(
        (f"{best.flops[i]:.3g}", float(best.metric[i]), holder.group or holder.run, *expected(float(best.flops[i])))
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
            powers(axes, "xy")

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
        powers(axes)
        legend(axes, place="upper left")

    drawn = panel(
        name, paint, "The envelope with a line and a sigmoid, drawn beyond the runs.", x="FLOPs", y=ladder.metric
    )
    caption = (
        f"Both are fitted to the envelope (rmse of the line {line.rmse:.5f}, of the sigmoid {bent.rmse:.5f}) and drawn "
        f"{BEYOND:g} times beyond the most FLOPs spent (grey). There no run speaks for either; bands are intervals "
        "over resampled runs."
    )
    rows = tuple(
        (f"{at:.3g}", *line.estimate(flops=at), *bent.estimate(flops=at))
        for at in (last * f for f in (0.1, 1, 10, BEYOND))
    )
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
        powers(axes, "xy")

    def along(axes: Any) -> None:
        for place, group in enumerate(groups):
            here = [(x, y) for x, y in zip(ladder.traces, best, strict=True) if x.group == group]
            colour = look(place)["color"]
            axes.scatter([x.parameters for x, _ in here], [y for _, y in here], s=8, color=colour)
            for data in sorted({float(x.data or 0) for x, _ in here})[-1:]:
                axes.plot(n, law.predict(parameters=n, data=data), color=colour, lw=1)
        powers(axes)

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
    """Predictions of the largest runs by laws that had not seen them."""
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
        "held out", "form", "runs", "points", "rmse", "bias", "largest error", "inside", "rmse of the nearest point",
    )  # fmt: skip
    rows = tuple(
        (one.by, one.law.form.name, one.runs, d["points"], d["rmse"], d["bias"], d["largest_error"], one.inside,
         d["rmse_of_nearest"])
        for one, d in told
    )  # fmt: skip
    return Figure(name, title, caption, panels, headers, rows)
