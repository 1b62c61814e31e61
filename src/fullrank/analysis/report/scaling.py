"""A page about the laws of a ladder of runs: SRT's Figures 4 to 7 for these runs, and what of it is not determined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fullrank.analysis.report import plural
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable, check_extra
from fullrank.analysis.report.scaling_figures import compute, extrapolation, held_out, splits, surface
from fullrank.core.errors import UserError
from fullrank.scaling.fit import RESAMPLES, Law, fit_law
from fullrank.scaling.holdout import HeldOut
from fullrank.scaling.ladder import Ladder

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
        "runs",
        "interactions",
        "smallest model",
        "largest model",
        "FLOPs of the longest run",
        f"best {ladder.metric}",
    )
    note = "One line for each data set. Sizes are in parameters, as the laws count them."
    return SummaryTable(headers, tuple(rows), note)
