"""Matplotlib figures as inline SVG: one look, colours that colour-blind people can tell apart, text that stays text."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Collection
from typing import Any

from fullrank.analysis.report import Panel

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's palette without its yellow, which is too pale for lines."""
MARKERS = "os^DvPX*"
GREY = "#767676"
SIZE = (4.6, 3.1)
"""Inches: 330 points wide, so that text keeps its size on a phone."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fullrank",
    "text.parse_math": False,  # a run may be called $x$
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}

FEW = 8
"""Most whole numbers that have a tick each."""

Painter = Callable[[Any], None]
"""A function that draws on a matplotlib Axes."""


def look(number: int) -> dict[str, Any]:
    """Colour, marker and line style of a run by its number; the first 28 differ."""
    styles = ("-", "--", ":", "-.")
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": styles[number // len(COLOURS) % len(styles)],
    }


def panel(name: str, paint: Painter, alt: str, *, x: str, y: str, height: float = SIZE[1]) -> Panel:
    """One pair of axes with their labels, as SVG. `name` makes ids unique on the page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0], height))
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        paint(axes)
        out = io.StringIO()
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    return Panel(inline(out.getvalue(), name, alt), alt)


def inline(text: str, name: str, alt: str) -> str:
    """Turn an SVG document into an element of a page, with unique ids and a description."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    rest = re.sub(r'(\sid=")', rf"\g<1>{name}-", rest)
    rest = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", rest)
    return f'<svg {box[0]} role="img" aria-label="{html.escape(alt, quote=True)}">{rest.strip()}'


def legend(axes: Any, *, above: bool = False) -> None:
    """Add a legend where anything is labelled, inside the axes or above them."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        position = {"loc": "lower right", "bbox_to_anchor": (1, 1)} if above else {"loc": "best"}
        axes.legend(handles, labels, fontsize=8, ncols=3 if above else -(-len(labels) // 8), **position)


def whole_ticks(axes: Any, values: Collection[float]) -> None:
    """Put ticks at whole numbers along x, where most values are whole (layers, epochs)."""
    from matplotlib.ticker import MaxNLocator

    whole = [value for value in values if float(value).is_integer()]
    if len(whole) <= len(values) / 2:
        return
    if len(whole) <= FEW:
        axes.set_xticks(sorted(whole), [f"{value:g}" for value in sorted(whole)])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plain_powers(axis: Any) -> None:
    """Write the ticks of a logarithmic axis as plain text; add some where there are few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    if high < 5 * low:
        axis.set_major_locator(MaxNLocator(nbins=4))
    elif high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
