"""A page about the laws of a ladder of runs, and the parameters that the runs do not determine.

It draws SRT's Figures 4 (metric by FLOPs), 5 (frontiers), 6 (line and sigmoid) and 7 (size
and data) for these runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fullrank.analysis.report import Figure, Missing, join_words, plural
from fullrank.analysis.report.charts import Claim, labelled, lines
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable, check_extra
from fullrank.analysis.scaling.fit import RESAMPLES, Law, fit_law
from fullrank.analysis.scaling.frontier import compute_frontier
from fullrank.analysis.scaling.holdout import HeldOut
from fullrank.analysis.scaling.ladder import Ladder, envelope
from fullrank.core.errors import UserError

BEYOND = 100.0
"""Multiple of the largest FLOPs up to which laws are drawn."""
SHOWN = 150
"""Most records drawn as points; the lines are fitted to all."""
GRID = 5
"""Number of sizes for which the law of size and data is drawn."""
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
"""Glossary: a word, and what it means."""


def scaling_report(
    ladder: Ladder,
    *,
    known: Mapping[str, Law] | None = None,
    held: Sequence[HeldOut] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
    tell: Any = None,
) -> Report:
    """Make the page of a ladder. Laws that are not `known` are fitted; `held` are predictions of unseen runs.

    A law of losses makes the page one of losses: FLOPs then have an envelope of the
    smallest, and no sigmoid.
    """
    check_extra()
    laws, why = dict(known or {}), {}
    lower = any(law.form.lower for law in laws.values())
    for form in ("loss",) if lower else ("sigmoid", "linear", "power"):
        if form not in laws:
            try:
                laws[form] = fit_law(ladder, form, resamples=resamples, seed=seed, tell=tell)
            except UserError as error:
                why[form] = str(error).rstrip(".")
    size_law, sigmoid = laws.get("loss" if lower else "power"), laws.get("sigmoid")
    groups = _groups(ladder)
    sections = (
        compute(ladder, groups, sigmoid, lower=lower),
        splits(ladder, lower=lower),
        extrapolation(ladder, laws.get("linear"), sigmoid, why.get("sigmoid", "the runs have a loss")),
        surface(ladder, groups, size_law, why.get("power", "")),
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
    """Names of the data sets, smallest first."""
    sizes: dict[str, float] = {}
    for trace in ladder.traces:
        sizes[trace.group] = max(sizes.get(trace.group, 0.0), trace.data or 0.0)
    return sorted(sizes, key=lambda name: (sizes[name], name))


def _sentences(laws: Mapping[str, Law], held: Sequence[HeldOut]) -> Iterator[str]:
    """Each law, its undetermined parameters, and the predictions of unseen runs."""
    for law in laws.values():
        values = ", ".join(f"{name} {value:.4g}" for name, value in {**law.parameters, **law.derived}.items())
        yield f"{law.form.name}: {values}; rmse {law.rmse:.5f} on {plural(len(law.residuals), 'point')}."
        for doubt in law.unidentified:
            yield f"{law.form.name}, not determined ({doubt.ground}): {doubt.text}."
    for test in held:
        errors = test.dump()
        yield (
            f"{test.law.form.name} without the {plural(test.runs, 'run')} of the largest {test.by} predicts them with "
            f"an rmse of {errors['rmse']:.5f} ({test.inside:.0%} inside the interval; the nearest known point: "
            f"{errors['rmse_of_nearest']:.5f})."
        )


def _summary(ladder: Ladder, groups: Sequence[str], lower: bool) -> SummaryTable:
    """The table at the top: a row for each data set."""
    rows = []
    for number, name in enumerate(groups):
        traces = [trace for trace in ladder.traces if trace.group == name]
        best = [float(trace.metric[trace.best(lower=lower)]) for trace in traces]
        flops = [float(trace.flops[-1]) for trace in traces if trace.flops is not None]
        sizes = [trace.parameters for trace in traces if trace.parameters is not None]
        cells = {
            "runs": len(traces),
            "interactions": traces[0].data,
            "smallest model": min(sizes, default=None),
            "largest model": max(sizes, default=None),
            "FLOPs of the longest run": f"{max(flops):.3g}" if flops else None,
            f"best {ladder.metric}": min(best) if lower else max(best),
        }
        key, colour = chr(ord("A") + number % 26), look(number)["color"]
        rows.append(SummaryRow(key, name or "all runs", colour, tuple(cells.values())))
    note = "One line for each data set. Sizes are in parameters, as the laws count them."
    return SummaryTable(tuple(cells), tuple(rows), note)


def compute(ladder: Ladder, groups: Sequence[str], law: Law | None, *, lower: bool) -> Figure | Missing:
    """Figure 4: every run, the envelope, and the sigmoid with its interval."""
    claim = Claim(
        "What FLOPs bring",
        "Each thin line is a run, coloured by its data set; the envelope (grey) is the best that any had reached at "
        "that cost. Small models and small data stop growing early, and the envelope goes on with larger ones.",
        name="compute",
    )
    try:
        best = envelope(ladder, lower=lower)
    except UserError as error:
        return claim.missing(str(error))
    drawn: list[tuple[Any, ...]] = []
    for trace in ladder.traces:
        if trace.flops is not None:
            label = trace.group or "runs"
            drawn += labelled(label, trace.flops, trace.metric)
            drawn.append((label, trace.flops[-1], None))  # a gap, so that the next run's line does not begin here
    drawn += labelled("envelope", best.flops, best.metric)
    drawn += _curve(law, np.geomspace(best.flops[0], best.flops[-1], 120))
    chart = lines(
        "FLOPs", ladder.metric, by="data set", beside="envelope", interval="y", log="x", plain=True, rows=drawn
    )
    rows = []
    for record in np.unique(np.linspace(0, len(best) - 1, 25).astype(int)):
        flops, holder = float(best.flops[record]), ladder.traces[best.run[record]]
        expected = (None, None, None) if law is None else law.estimate(flops=flops)
        rows.append((f"{flops:.3g}", float(best.metric[record]), holder.group or holder.run, *expected))
    return claim.figure(("FLOPs", ladder.metric, "held by", "sigmoid", "from", "to"), rows, chart)


def _curve(law: Law | None, grid: np.ndarray) -> list[tuple[Any, ...]]:
    """Rows of a law over a grid of FLOPs, with its interval."""
    if law is None:
        return []
    return labelled(law.form.name, grid, law.predict(flops=grid), *law.interval(flops=grid))


def splits(ladder: Ladder, *, lower: bool) -> Figure | Missing:
    """Figure 5: interactions seen and parameters of the records, with their lines."""
    words = {"seen": "interactions seen", "parameters": "parameters", "data": "interactions of the data set"}
    claim = Claim("How the best runs spent their FLOPs", "", name="frontier")
    try:
        laws, points = compute_frontier(ladder, lower=lower)
    except UserError as error:
        return claim.missing(str(error))
    flops, charts = points["flops"], []
    shown = np.unique(np.linspace(0, len(flops) - 1, SHOWN).astype(int))
    for key, word in words.items():
        drawn = labelled("records", flops[shown], points[key][shown])
        drawn += labelled(f"slope {laws[key].slope:.3g}", flops, laws[key](flops))
        charts.append(lines("FLOPs", word, by="what", dots="records", log="xy", plain=True, rows=drawn))
    growth = join_words([f"{word} grow as FLOPs^{laws[key].slope:.3g}" for key, word in words.items()])
    more = f"Each point is a record of the envelope; the line is straight in logarithms. {growth}."
    rows = [(word, laws[key].slope, float(laws[key](flops[-1])[0])) for key, word in words.items()]
    return claim.figure(("what", "slope", "at the most FLOPs"), rows, *charts, more=more)


def extrapolation(ladder: Ladder, line: Law | None, bent: Law | None, why: str) -> Figure | Missing:
    """Figure 6: the line and the sigmoid through the envelope, and beyond the runs."""
    claim = Claim("A line or a sigmoid", "Both are fitted to the envelope ", name="extrapolation")
    if line is None or bent is None:
        return claim.missing(f"{why}.")
    best = envelope(ladder)
    last = float(best.flops[-1])
    drawn = labelled("envelope", best.flops, best.metric)
    for law in (line, bent):
        drawn += _curve(law, np.geomspace(best.flops[0], last * BEYOND, 160))
    upright = {"most FLOPs spent": last}
    chart = lines("FLOPs", ladder.metric, by="what", interval="y", log="x", plain=True, upright=upright, rows=drawn)
    more = (
        f"(rmse of the line {line.rmse:.5f}, of the sigmoid {bent.rmse:.5f}) and drawn {BEYOND:g} times beyond the "
        "most FLOPs spent (grey). There no run speaks for either; bands are intervals over resampled runs."
    )
    budgets = [last * factor for factor in (0.1, 1, 10, BEYOND)]
    rows = [(f"{flops:.3g}", *line.estimate(flops=flops), *bent.estimate(flops=flops)) for flops in budgets]
    headers = ("FLOPs", "line", "from", "to", "sigmoid", "from", "to")
    return claim.figure(headers, rows, chart, more=more)


def surface(ladder: Ladder, groups: Sequence[str], law: Law | None, why: str) -> Figure | Missing:
    """Figure 7: the law over size and data, and along size for each data set with its runs."""
    size, data = "parameters N", "interactions T"
    claim = Claim(
        "Size and data",
        "First, what the law expects along data for some sizes; then along size for each data set, with the best of "
        "each run as points. ",
        name="surface",
    )
    if law is None:
        return claim.missing(f"{why}.")
    grid, amounts = [], np.geomspace(*law.observed["data"], 60)
    for number in np.geomspace(*law.observed["parameters"], GRID):
        grid += labelled(f"size {number:.2g}", amounts, law.predict(parameters=float(number), data=amounts))
    drawn, along = [], np.geomspace(*law.observed["parameters"], 60)
    for name in groups:
        traces = [trace for trace in ladder.traces if trace.group == name]
        metrics = [trace.metric[trace.best(lower=law.form.lower)] for trace in traces]
        expectation = law.predict(parameters=along, data=max(float(trace.data or 0) for trace in traces))
        for what, *columns in (("run", [trace.parameters for trace in traces], metrics), ("law", along, expectation)):
            drawn += labelled(name or "runs", [what] * len(columns[0]), *columns)
    unknown = sorted({p for doubt in law.unidentified for p in doubt.parameters})
    more = f"Not determined by these runs: {', '.join(unknown)}." if unknown else ""
    rows = [(key, value, *law.intervals[key]) for key, value in law.parameters.items()]
    charts = (
        lines(data, ladder.metric, by="size", log="x", plain=True, rows=grid),
        lines(size, ladder.metric, by="data set", dash="what", dots="run", log="x", rows=drawn),
    )
    return claim.figure(("parameter", "value", "from", "to"), rows, *charts, more=more)


def held_out(held: Sequence[HeldOut]) -> Figure | Missing:
    """Predictions of the largest runs by laws that had not seen them."""
    claim = Claim(
        "Predicted before they were seen",
        "On the dotted line the prediction is right; bars are the interval of one run.",
        name="held-out",
    )
    if not held:
        return claim.missing("no runs were held out.")
    charts, rows, more = [], [], ""
    for test in held:
        errors, word = test.dump(), f"predicted without the largest {test.by}"
        drawn = labelled("runs", test.measured, test.predicted, test.low, test.high)
        charts.append(lines("measured", word, by="what", dots="runs", interval="y", slope=1, rows=drawn))
        more += (
            f" Largest {test.by} ({test.runs} runs): rmse {errors['rmse']:.5f}, bias {errors['bias']:+.5f}, "
            f"{test.inside:.0%} inside."
        )
        row = {
            "held out": test.by,
            "form": test.law.form.name,
            "runs": test.runs,
            "points": errors["points"],
            "rmse": errors["rmse"],
            "bias": errors["bias"],
            "largest error": errors["largest_error"],
            "inside": test.inside,
            "rmse of the nearest point": errors["rmse_of_nearest"],
        }
        rows.append(tuple(row.values()))
    return claim.figure(tuple(row), rows, *charts, more=more)
