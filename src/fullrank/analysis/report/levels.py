"""Figures by level of a semantic id: values of a run's rows, two lines for each run, and the table below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fullrank.analysis.report import Panel
from fullrank.analysis.report.draw import GREY, from_zero, integer_ticks, legend, look, panel
from fullrank.analysis.report.results import RunResult, legend_label

Levels = Mapping[int, float]
"""Level, from 1, -> value."""


def level_values(one: RunResult, diagnostic: str, name: str, label: str | None = None) -> dict[int, float]:
    """Level of the codes -> value, where it exists."""
    return {
        found["index"]: found["value"] for found in one.diagnosis.of(diagnostic, name)
        if found["index"] is not None and found["value"] is not None and found["label"] == label
    }  # fmt: skip


def level_panel(
    name: str,
    results: Sequence[RunResult],
    lines: Mapping[str, Levels],
    dotted: Mapping[str, Levels],
    *,
    means: str,
    alt: str,
    y: str,
) -> Panel:
    """Shares in percent of the runs that `lines` has (by key), and dotted beside them what `means` names."""

    def paint(axes: Any) -> None:
        for one in results:
            if one.key in lines:
                line, beside, style = lines[one.key], dotted[one.key], look(results.index(one))
                axes.plot(list(line), [100 * v for v in line.values()], label=legend_label(one, results), **style)
                axes.plot(list(beside), [100 * v for v in beside.values()], color=style["color"], ls=":", lw=1)
        axes.plot([], [], color=GREY, ls=":", lw=1, label=means)
        from_zero(axes)
        integer_ticks(axes)
        legend(axes)

    said = "; ".join(
        f"{key} " + ", ".join(_told(value, dotted[key].get(level)) for level, value in line.items())
        for key, line in lines.items()
    )
    return panel(name, paint, f"{alt}, by level (beside it: {means}): {said}", x="level of the semantic id", y=y)


def level_table(
    there: Sequence[RunResult], diagnostic: str, names: Sequence[tuple[str, str | None]]
) -> tuple[tuple[Any, ...], ...]:
    """A row per run and level: its label, the level, and the value of each (name, label)."""
    found: list[tuple[Any, ...]] = []
    for one in there:
        columns = [level_values(one, diagnostic, *name) for name in names]
        found += [(one.label, level, *(column.get(level) for column in columns)) for level in columns[0]]
    return tuple(found)


def _told(value: float, beside: float | None) -> str:
    return f"{value:.3f}" if beside is None else f"{value:.3f} ({beside:.3f})"
