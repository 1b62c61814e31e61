"""Figures from rows: a claim says what is shown and which columns of a table are x, y and by.

    Claim("Rank by layer", "After each layer ...", (lines("layer", "rank"),), key="layer", columns={"rank": "rank"})

`lines` and `bars` draw a series for each value of the column `by`; a run looks the same on the
whole page. A claim without a chart is a table. The text for those who cannot see a picture is
written from the rows that are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from fullrank.analysis.report import Cells, Figure, Missing, Panel
from fullrank.analysis.report.draw import GREY, SIZE, legend, look, panel, plain_powers, whole_ticks
from fullrank.analysis.report.results import Runs, run_number

DASHES = ("-", "--", ":", "-.")
"""Line styles of several columns y, or of the values of `dash`."""
BESIDE: Mapping[str, Any] = {"color": GREY, "marker": "", "linestyle": ":"}
"""Style of the series that the others are compared with."""
CROWD = 30
"""Most points of a line that has markers."""
NAMED = 6
"""Most runs of a chart whose legend has their names."""
WIDE = 40
"""Characters that fit side by side below a chart."""


def labelled(label: str, *columns: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of a series from its columns, each with the label in front."""
    return [(label, *values) for values in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Chart:
    """One pair of axes: which columns of a table are drawn, and how."""

    kind: Literal["lines", "bars"]
    x: str
    """Column along x; empty where the names of the columns y stand there."""
    y: str | tuple[str, ...]
    by: str = "run"
    """Column with a series for each of its values; empty where each column y is a series."""
    dash: str = ""
    """Column by which the lines of one colour differ in their dashes, as those of several columns y do."""
    axis: str = ""
    """Label of the axis of the values, where it is not the first y."""
    rows: Sequence[Sequence[Any]] | None = None
    """Rows to draw, where they are not the table of the figure: by, dash, x (from, to), the columns y (from, to)."""
    interval: str = ""
    """`x`, `y` or both: the two columns behind it are the ends of its interval."""
    log: str = ""
    """Logarithmic axes: `x`, `y` or both."""
    percent: bool = False
    """Whether the values are shares."""
    zero: bool = False
    """Whether the axis of lines begins at 0, so that small differences look small."""
    slope: float = 0
    """Slope of a dotted line through 0."""
    level: Mapping[str, float] = field(default_factory=dict)
    """Word -> value of y (of horizontal bars: of x) of a dashed line."""
    upright: Mapping[str, float] = field(default_factory=dict)
    """Word -> value of x of a dashed line."""
    note: str = ""
    """Column that is written beside each point."""
    beside: str = ""
    """The series that the others are compared with, in grey; among runs everything else is grey as well."""
    dots: str = ""
    """The series, or the value of `dash`, whose points are not joined."""
    plain: bool = False
    """Whether lines are thin and without markers."""
    filled: bool = False
    """Whether the lines are the outlines of histograms."""
    across: bool = False
    """Whether bars are horizontal, for long words."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.y,) if isinstance(self.y, str) else self.y

    @property
    def word(self) -> str:
        """Label of the axis of the values."""
        return self.axis or self.columns[0]


lines = partial(Chart, "lines")
"""A chart with a line for each series; a single point is a point, an interval a band."""
bars = partial(Chart, "bars")
"""A chart with a bar for each value of x and each series, side by side."""


@dataclass
class Series:
    """Points of one style; a missing number is nan, which breaks a line."""

    label: str
    kind: str
    """The word of its dashes: a value of `dash` or, of several columns y, the column."""
    x: list[Any]
    y: list[float]
    ends: Mapping[str, Sequence[list[float]]]
    """Axis -> lower and upper ends of the intervals."""
    notes: list[str]
    style: dict[str, Any] = field(default_factory=dict)
    """Keywords of matplotlib's lines."""


@dataclass(frozen=True)
class Claim:
    """A statement that a figure makes, and the columns that show it."""

    title: str
    caption: str
    """Explanation for a reader who does not know the papers."""
    charts: tuple[Chart, ...] = ()
    key: str = ""
    """Key of a diagnosis' rows (`layer`, `index`) with a row of the table for each value; empty: a row for each run."""
    at: str = ""
    """Header of the key's column, where it is not the key."""
    columns: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)
    """Header of a column of the table -> name of a diagnosis' rows, with their label where they have one."""
    name: str = ""
    """Id on the page; by default the section's name."""
    open: bool = False
    """Whether the table stands beside the figure, rather than folded below it."""
    table: bool = False
    """Whether it is a table without a chart; a run that lacks it is then left out silently."""

    def read(self, there: Runs, diagnostic: str) -> tuple[Sequence[str], Cells]:
        """Headers and rows of the table: the claim's columns of a diagnostic, for these runs."""
        rows: list[tuple[Any, ...]] = []
        named = [(name, None) if isinstance(name, str) else name for name in self.columns.values()]
        for run in there:
            if not self.key:
                rows.append((run.label, *(run.diagnosis.value(diagnostic, name) for name, _ in named)))
                continue
            values = [run.diagnosis.values(diagnostic, name, self.key, label=label) for name, label in named]
            rows += [(run.label, position, *(value.get(position) for value in values)) for position in values[0]]
        keys = (self.at or self.key,) if self.key else ()
        return ("run", *keys, *self.columns), tuple(rows)

    def figure(self, headers: Sequence[Any], rows: Iterable[Sequence[Any]], *charts: Chart, more: str = "") -> Figure:
        """Draw the charts of a table; a chart without any value is named as absent."""
        table = tuple(map(tuple, rows))
        panels: list[Panel] = []
        absent = []
        for chart in charts or self.charts:
            series = _series(chart, headers, table)
            if any(np.isfinite(line.y).any() for line in series):
                panels.append(draw_chart(f"{self.name}-{len(panels)}", chart, series))
            else:
                absent.append(f"No panel shows the {chart.word}: none of these runs has it.")
        caption = self.caption + more
        return Figure(self.name, self.title, caption, tuple(panels), tuple(headers), table, tuple(absent), self.open)

    def missing(self, why: str) -> Missing:
        """Say in place of the figure why there is none."""
        return Missing(self.name, self.title, why)


def _series(chart: Chart, headers: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[Series]:
    """The series of a chart, in the order of the rows."""
    columns = chart.columns
    if chart.rows is not None:
        ends = ["", ""] if "x" in chart.interval else []
        headers, rows = [*filter(None, (chart.by, chart.dash, chart.x)), *ends, *columns], chart.rows
    column = {header: number for number, header in reversed([*enumerate(headers)])}  # of equal headers the first
    if not chart.x:  # a row for each column: by, name of the column, value
        rows = [(row[column[chart.by]], name, row[column[name]]) for row in rows for name in columns]
        column, columns = {chart.by: 0, "": 1, chart.word: 2}, (chart.word,)
    groups: dict[tuple[str, str, str], list[Sequence[Any]]] = {}
    for row in rows:
        for name in columns:
            label = str(row[column[chart.by]]) if chart.by else name
            kind = str(row[column[chart.dash]]) if chart.dash else name if chart.by and len(columns) > 1 else ""
            groups.setdefault((label, kind, name), []).append(row)
    series = []
    for (label, kind, name), points in groups.items():
        intervals = {
            axis: [_numbers(points, column[word] + side) for side in (1, 2)]
            for axis, word in (("x", chart.x), ("y", name))
            if axis in chart.interval
        }
        y = [np.nan if "y" in chart.log and value <= 0 else value for value in _numbers(points, column[name])]
        notes = [_plain(row[column[chart.note]]) for row in points] if chart.note else []
        series.append(Series(label, kind, [row[column[chart.x]] for row in points], y, intervals, notes))
    return _styled(chart, series)


def _styled(chart: Chart, series: list[Series]) -> list[Series]:
    """Set the styles: a run's is fixed for the page, other series follow in order."""
    labels, kinds = (list(dict.fromkeys(words)) for words in ([s.label for s in series], [s.kind for s in series]))
    of_runs = any(run_number(label) is not None for label in labels)
    in_legend = chart.by not in (chart.x, chart.note) if chart.by else len(labels) > 1
    order = [label for label in labels if label != chart.beside]
    for line in series:
        number = run_number(line.label) if of_runs else order.index(line.label) if line.label in order else None
        line.style = dict(BESIDE if number is None else look(number))
        if line.kind != kinds[0]:
            dash = DASHES[kinds.index(line.kind) % len(DASHES)]
            line.style |= {"linestyle": dash, "marker": "" if len(line.x) > 1 else "*", "markersize": 11}
        if len(line.x) == 1 or (chart.dots and chart.dots in (line.label, line.kind)):
            line.style["linestyle"] = "none"
        elif line.label != chart.beside and (chart.plain or len(line.x) > CROWD):
            line.style |= {"marker": "", "linewidth": 1}
        if in_legend and line.label in labels:  # once in the legend
            labels.remove(line.label)
            line.style["label"] = _short(line.label, len(order))
    return series


def _numbers(rows: Sequence[Sequence[Any]], column: int) -> list[float]:
    return [float(row[column]) if column < len(row) and row[column] is not None else np.nan for row in rows]


def draw_chart(name: str, chart: Chart, series: Sequence[Series]) -> Panel:
    """Draw the picture of some series, with its description."""
    points = [x for line in series for x in line.x]
    named = chart.kind != "lines" or any(isinstance(x, str) for x in points)
    positions = {word: number for number, word in enumerate(dict.fromkeys(points))} if named else {}

    def paint(axes: Any) -> None:
        PAINT[chart.kind](axes, chart, series, positions)
        words = [_short(str(word), len(positions)) for word in positions]
        if chart.across:
            axes.set_yticks(range(len(words)), words)
            axes.invert_yaxis()
        elif words:  # slanted where they would run into each other
            slanted = {"rotation": 30, "ha": "right", "fontsize": 8} if sum(map(len, words)) > WIDE else {}
            axes.set_xticks(range(len(words)), words, **slanted)
        elif "x" not in chart.log:
            whole_ticks(axes, set(points))
        draw = axes.axvline if chart.across or chart.upright else axes.axhline
        for word, value in (chart.level or chart.upright).items():
            draw(value, color=GREY, linewidth=1, linestyle="--", label=word)
        if chart.slope:
            ends = axes.get_xlim(), axes.get_ylim()
            axes.axline((0, 0), slope=chart.slope, color=GREY, linewidth=1, linestyle=":")
            axes.set(xlim=ends[0], ylim=ends[1])
        if chart.percent:
            (axes.xaxis if chart.across else axes.yaxis).set_major_formatter(lambda value, _: f"{100 * value:g} %")
        if chart.zero and axes.dataLim.y0 >= 0:
            axes.set_ylim(bottom=0)
        for axis in chart.log:
            getattr(axes, f"set_{axis}scale")("log")
            plain_powers(getattr(axes, f"{axis}axis"))
        for number, kind in enumerate(dict.fromkeys(line.kind for line in series if line.kind)):
            axes.plot([], [], label=kind, color=GREY, linestyle=DASHES[number % len(DASHES)])
        legend(axes, above=chart.across)

    height = 1.3 + 0.14 * len(positions) * (1 + len(series)) if chart.across else SIZE[1]
    x, y = (chart.word, "") if chart.across else (chart.x, chart.word)
    return panel(name, paint, _describe(chart, series), x=x, y=y, height=height)


def _paint_lines(axes: Any, chart: Chart, series: Sequence[Series], positions: Mapping[Any, int]) -> None:
    """Draw each series as a line, with its interval as a band and its notes beside the points."""
    for line in series:
        x = [positions.get(word, word) for word in line.x]
        colour, joined = line.style["color"], line.style["linestyle"] != "none"
        if chart.filled:
            line.style |= {"drawstyle": "steps-mid", "marker": ""}
            axes.fill_between(x, line.y, step="mid", color=colour, alpha=0.3, linewidth=0)
        axes.plot(x, line.y, **line.style)
        if joined and line.ends:
            axes.fill_between(x, *line.ends["y"], color=colour, alpha=0.15, linewidth=0)
        else:
            _paint_ends(axes, line, x, colour)
        for note, *at in zip(line.notes if colour != GREY else (), x, line.y, strict=False):
            words = _short(note, len(series))
            axes.annotate(words, at, xytext=(6, 5), textcoords="offset points", fontsize=8, color=colour)


def _paint_ends(axes: Any, line: Series, x: Sequence[float], colour: str) -> None:
    """Draw the intervals of single points as bars."""
    for axis, ends in line.ends.items():
        draw, at = (axes.vlines, x) if axis == "y" else (axes.hlines, line.y)
        draw(at, *ends, color=colour, linewidth=1)


def _paint_bars(axes: Any, chart: Chart, series: Sequence[Series], positions: Mapping[Any, int]) -> None:
    """Draw the series as bars, side by side at each value of x."""
    slots = 1 if chart.by == chart.x else len(series)  # bars side by side at a position
    width = 0.84 / slots
    for number, line in enumerate(series):
        offset = 0 if slots == 1 else (number - (slots - 1) / 2) * width
        x, style = (
            [positions[word] + offset for word in line.x],
            {key: line.style.get(key) for key in ("color", "label")},
        )
        (axes.barh if chart.across else axes.bar)(x, line.y, width * 0.92, **style)
        _paint_ends(axes, line, x, "#444444")
    axes.grid(axis="y" if chart.across else "x", visible=False)
    if not chart.across and len(series) > 1:
        axes.set_ylim(top=1.25 * axes.get_ylim()[1])  # room for the legend


PAINT = {"lines": _paint_lines, "bars": _paint_bars}


def _short(label: str, count: int) -> str:
    """A run's letter and the beginning of its name (among many none); other words whole."""
    if run_number(label) is None:
        return label
    return label.split(maxsplit=1)[0] if count > NAMED else label if len(label) <= 18 else f"{label[:17]}…"


def _describe(chart: Chart, series: Sequence[Series]) -> str:
    """A chart in words: each value of a few points, else the first and the last of each line."""
    sentences = []
    for line in series:
        label = _short(line.label, NAMED + 1) if chart.by else line.label
        points = [
            (_short(_plain(x), NAMED + 1), f"{100 * y:.3g} %" if chart.percent else f"{y:.4g}")
            for x, y in zip(line.x, line.y, strict=True)
            if y == y
        ]
        if len(points) > 2 and not isinstance(line.x[0], str):
            values = f"from {points[0][1]} to {points[-1][1]}"
        else:
            values = ", ".join(value if x == label else f"{x} {value}" for x, value in points)
        sentences.append(" ".join(filter(None, (label, line.kind, values or "nothing"))))
    return f"{chart.word}{f' by {chart.x}' if chart.x else ''}: {'; '.join(sentences)}"


def _plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)
