"""Figures in which each run is a line: over layers, steps or epochs, or over the levels of a semantic id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fullrank.analysis.report import Figure, Panel
from fullrank.analysis.report.draw import GREY, Painter, from_zero, integer_ticks, legend, look, panel
from fullrank.analysis.report.results import RunResult, Runs, legend_label

Line = Mapping[Any, float]
"""x -> y."""
Lines = Mapping[str, Line]
"""Key of a run -> its line."""


def plot_run(axes: Any, one: RunResult, results: Runs, line: Line, **style: Any) -> None:
    """The line of a run in its look, named in the legend."""
    axes.plot(list(line), list(line.values()), label=legend_label(one, results), **(look(results.index(one)) | style))


def line_panel(
    name: str,
    results: Runs,
    lines: Lines,
    alt: str,
    *,
    x: str,
    y: str,
    first: Painter = lambda axes: None,
    finish: Sequence[Painter] = (),
    marker: Callable[[int], str] | None = None,
) -> Panel:
    """The lines of the runs that `lines` has. `first` draws below them, `finish` sets the axes, or another legend.

    `marker` is that of a line of so many points, where it is not the run's own.
    """

    def paint(axes: Any) -> None:
        first(axes)
        for one in results:
            if (line := lines.get(one.key)) is not None:
                plot_run(axes, one, results, line, **({} if marker is None else {"marker": marker(len(line))}))
        for touch in finish:
            touch(axes)
        if axes.get_legend() is None:
            legend(axes)

    return panel(name, paint, alt, x=x, y=y)


def ends(lines: Lines, digits: str = ".3g") -> str:
    """Where each line begins and ends, for the description of a figure."""
    return "; ".join(
        f"{key} from {line[min(line)]:{digits}} to {line[max(line)]:{digits}}" for key, line in lines.items() if line
    )


def level_values(one: RunResult, diagnostic: str, name: str, label: str | None = None) -> dict[int, float]:
    """Level of the codes, from 1 -> value, where it exists."""
    return one.diagnosis.values(diagnostic, name, "index", label=label)


def level_panel(name: str, results: Runs, lines: Lines, dotted: Lines, *, means: str, alt: str, y: str) -> Panel:
    """Shares in percent of the runs that `lines` has (by key), and dotted beside them what `means` names."""

    def paint(axes: Any) -> None:
        for one in results:
            if one.key in lines:
                line, beside = ({at: 100 * v for at, v in of[one.key].items()} for of in (lines, dotted))
                plot_run(axes, one, results, line)
                colour = look(results.index(one))["color"]
                axes.plot(list(beside), list(beside.values()), color=colour, ls=":", lw=1)
        axes.plot([], [], color=GREY, ls=":", lw=1, label=means)
        from_zero(axes)
        integer_ticks(axes)
        legend(axes)

    said = "; ".join(
        f"{key} " + ", ".join(_told(value, dotted[key].get(level)) for level, value in line.items())
        for key, line in lines.items()
    )
    return panel(name, paint, f"{alt}, by level (beside it: {means}): {said}", x="level of the semantic id", y=y)


def level_figure(
    name: str,
    title: str,
    caption: str,
    results: Runs,
    *,
    line: str,
    dotted: str,
    columns: Mapping[str, tuple[str, str | None]],
    **words: str,
) -> Figure:
    """The rows `line` of a diagnostic by level, `dotted` beside them, of the runs that have it.

    `columns`: word -> (name, label) of the rows in the table; `words` are those of `level_panel`.
    """
    there = [one for one in results if one.diagnosis.of(name)]
    lines, beside = ({one.key: level_values(one, name, of) for one in there} for of in (line, dotted))
    rows: list[tuple[Any, ...]] = []
    for one in there:
        values = [level_values(one, name, *column) for column in columns.values()]
        rows += [(one.label, level, *(value.get(level) for value in values)) for level in values[0]]
    drawn = level_panel(name, results, lines, beside, **words)
    return Figure(name, title, caption, (drawn,), ("run", "level", *columns), tuple(rows))


def _told(value: float, beside: float | None) -> str:
    return f"{value:.3f}" if beside is None else f"{value:.3f} ({beside:.3f})"
