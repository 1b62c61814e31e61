"""What more parameters do: runs that differ in the size of their model alone, smallest to largest.

Recommenders: accuracy, fairness, collapse share and effective rank by the parameters without the tables of the items
(SPRINT, KDD 2026, Figure 1, upper half). Click models: AUC and effective rank by dense parameters (RankElastor, KDD
2026, Figures 7 and 8). Differs: neither paper draws the rank here; RankElastor has a multiple of the smallest model
across.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fullrank.analysis.ablation import FAIRNESS
from fullrank.analysis.figures.alike import RANKER_SIZES, SIZES, K, alike, line_label
from fullrank.analysis.figures.inside import top
from fullrank.analysis.report import Figure, Missing, Panel
from fullrank.analysis.report.draw import legend, look, panel, plain_powers
from fullrank.analysis.report.findings import Finding, comparable
from fullrank.analysis.report.known import readable
from fullrank.analysis.report.ranking_findings import RankingFinding, comparable_clicks
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.scaling.sequence_size import non_embedding

NAME, TITLE = "size", "What more parameters do"
Value = Callable[[Any], float | None]
"""A figure of one run; None where it has none."""
_MEAN = "a point is the mean of its seeds"
_DIFFER = "the size of their model alone (width, layers, heads, inner widths; and in their seed)"
_DIFFER_CLICKS = "the size of their ranker alone (tokens, layers, heads, widths; and in their seed)"


def size(findings: Sequence[Finding]) -> Figure | Missing:
    """Accuracy, fairness, collapse share and effective rank of recommenders by parameters without the items' tables.

    The effective rank is the entropy rank of the last layer's outputs, one row a user of the sample: every model with
    layers has it.
    """
    trained = [one for one in findings if isinstance(one.run.spec.model, Recommender)]
    lines, sizes = _lines(trained, SIZES, lambda one: non_embedding(cast(RecommenderModel, one.run.model())))
    if not lines:
        return Missing(NAME, TITLE, f"no two runs differ in {_DIFFER}.")
    inside = [one for line in lines for one in line]
    why = comparable(inside)
    if why is not None:
        return Missing(NAME, TITLE, f"{why}.")
    accuracy = inside[0].accuracy
    values: dict[str, Value] = {
        f"accuracy ({accuracy})": lambda one: one.metric(accuracy),
        f"fairness ({FAIRNESS})": lambda one: one.metric(FAIRNESS),
        "collapse share": lambda one: one.diagnosis.value("spectrum", "collapse_share"),
        "effective rank": lambda one: top(one, "layers", "entropy_rank"),
    }
    caption = (
        f"Runs that differ in {_DIFFER}. Across are the parameters without those of the items' tables; {_MEAN}. If "
        "fairness falls and the collapse share (how much of all scores is one direction) rises from left to right, "
        "size amplifies popularity here. The effective rank is how many directions the people's states use behind the "
        "last layer (its entropy rank). It cannot exceed the width, so compare it with the width in the numbers below."
    )
    rows = tuple(
        (f"{one.key} {one.name}", sizes[one.key], one.layers, one.run.spec.model.dim,  # type: ignore[attr-defined]
         *(value(one) for value in values.values()))
        for one in inside
    )  # fmt: skip
    panels, absent = _panels(lines, sizes, values, "parameters without the items' tables")
    return Figure(NAME, TITLE, caption, panels, ("run", "parameters", "layers", "width", *values), rows, absent)


def click_size(findings: Sequence[RankingFinding]) -> Figure | Missing:
    """AUC and effective rank of click models by dense parameters.

    The effective rank is the mean stable rank (RankElastor, Eq. 1) behind the last mixing; of a ranker without mixings,
    behind its last layer that gives one vector a token.
    """
    lines, sizes = _lines(findings, RANKER_SIZES, _dense)
    if not lines:
        return Missing(NAME, TITLE, f"no two runs differ in {_DIFFER_CLICKS}.")
    inside = [one for line in lines for one in line]
    why = comparable_clicks(inside)
    if why is not None:
        return Missing(NAME, TITLE, f"{why}.")
    values: dict[str, Value] = {"auc": lambda one: one.metric("auc"), "effective rank": _mixed}
    caption = (
        f"Runs that differ in {_DIFFER_CLICKS}. Across are the dense parameters, which every impression passes; "
        f"{_MEAN}. The effective rank is how many directions the tokens of an impression use behind the last mixing, "
        "before the feed-forward (its stable rank, mean over a sample); a ranker without mixings is measured behind "
        "its last layer that still has tokens, named in the numbers below. If the rank stays where it is while the "
        "model grows, the new parameters add no directions. It cannot exceed the number in the last column."
    )
    rows = tuple(
        (f"{one.key} {one.name}", sizes[one.key], *(value(one) for value in values.values()), *_measured(one))
        for one in inside
    )
    panels, absent = _panels(lines, sizes, values, "dense parameters")
    headers = ("run", "dense parameters", "auc", "effective rank", "entropy rank", "behind", "of")
    return Figure(NAME, TITLE, caption, panels, headers, rows, absent)


def _lines(
    findings: Sequence[K], free: Sequence[str], count: Callable[[K], int]
) -> tuple[list[list[K]], dict[str, int]]:
    """Lines of at least two sizes, each by rising size, and the sizes by the runs' keys.

    A size is counted only where specs leave it open: that may open the run's weights.
    """
    groups = [group for group in alike(findings, free) if len(alike(group)) > 1]
    sizes = {one.key: count(one) for group in groups for one in group}
    lines = [sorted(group, key=lambda one: sizes[one.key]) for group in groups]
    return [line for line in lines if sizes[line[0].key] < sizes[line[-1].key]], sizes


def _panels(
    lines: Sequence[Sequence[K]], sizes: Mapping[str, int], values: Mapping[str, Value], x: str
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """A panel a figure, and a sentence for each figure that no run has."""
    panels, absent = [], []
    for place, (word, value) in enumerate(values.items()):
        if not any(value(one) is not None for line in lines for one in line):
            absent.append(f"No panel shows the {word}: none of these runs has it.")
            continue

        def paint(axes: Any, value: Value = value) -> None:
            for number, line in enumerate(lines):
                drawn = points(line, sizes, value)
                axes.plot([n for n, _ in drawn], [y for _, y in drawn], label=line_label(line), **look(number))
            axes.set_xscale("log")
            plain_powers(axes.xaxis)
            legend(axes)

        alt = f"{word} by {x}: " + "; ".join(
            f"{one.key} ({sizes[one.key]:,}) {found:.4g}"
            for line in lines for one in line if (found := value(one)) is not None
        )  # fmt: skip
        panels.append(panel(f"{NAME}-{place}", paint, alt, x=x, y=word))
    return tuple(panels), tuple(absent)


def points(line: Sequence[K], sizes: Mapping[str, int], value: Value) -> list[tuple[int, float]]:
    """Size and mean over the seeds of each setting that has the figure, in the line's order."""
    found = [(sizes[seeds[0].key], [y for one in seeds if (y := value(one)) is not None]) for seeds in alike(line)]
    return [(n, float(np.mean(some))) for n, some in found if some]


def _dense(one: RankingFinding) -> int:
    """As the manifest has it; of a run from before it was kept there, counted."""
    kept = one.run.manifest.get("size")
    found = kept.get("dense_parameters") if isinstance(kept, dict) else None
    return found if type(found) is int else cast(RankingModule, one.run.model()).size().dense


def _behind(one: RankingFinding) -> str | None:
    """The tap that is measured: the last mixing, else the last one; None without vectors."""
    taps = list(one.taps("stable_rank"))
    return next(reversed([tap for tap in taps if tap.startswith("mixing_")] or taps), None)


def _mixed(one: RankingFinding) -> float | None:
    tap = _behind(one)
    return None if tap is None else one.taps("stable_rank")[tap]


def _measured(one: RankingFinding) -> tuple[float | None, str | None, int | None]:
    """Entropy rank at the tap, the tap, and what no rank there exceeds."""
    tap = _behind(one)
    if tap is None:
        return None, None, None
    return one.taps("entropy_rank").get(tap), readable(tap), int(min(one.taps("tokens")[tap], one.taps("width")[tap]))
