"""A page about a growing catalogue: SRT's Figures 1 (items by users and by interactions, parameters by items) and 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullrank.analysis.report import Figure
from fullrank.analysis.report.draw import GREY, legend, look, panel, powers
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable, check_extra
from fullrank.scaling.growth import RARE, TOP, Growth, growth_sentences, short_number

WORDS = (
    ("interaction", "One event: a user did something with an item."),
    ("item", "What can be recommended. Here those count that at least one user had an interaction with."),
    ("catalogue", "All items together."),
    (
        "table",
        "A vector for each item that training learns: as many numbers as the vector is wide, for every item of the "
        "catalogue.",
    ),
    ("text items", "Vectors that the model computes from an item's text: their parameters do not grow with the items."),
    (
        "power law",
        "Items grow as a power of interactions: at exponent 1 every interaction brings a new item, at 0 none does "
        "(Heaps' law). Fitted to the points and no statement about more users.",
    ),
    ("Gini", "Inequality: 0 where all items have as many events, near 1 where one has them all."),
    ("k-core", "A filter that drops users and items with fewer than k events, until none is left."),
)
"""What a reader may not know."""


def growth_report(grown: Growth) -> Report:
    """The page of a store's growth. Raises `UserError` where the extra `report` is not installed."""
    check_extra()
    return Report(
        title=f"How the catalogue of {grown.source} grows",
        subtitle="With users, with interactions; what that does to a model; and how events are spread over items.",
        sentences=tuple(growth_sentences(grown)),
        summary=_summary(grown),
        sections=(catalogue(grown), parameters(grown), popularity(grown)),
        words=WORDS,
        heading="The data",
        one_of="store",
    )


def _summary(grown: Growth) -> SummaryTable:
    law = grown.law
    cells = [
        *(int(counts[-1]) for counts in (grown.users, grown.interactions, grown.items)), grown.catalogue,
        None if law is None else law.exponent, None if law is None else law.r_squared, grown.rare[0], grown.top[1],
        grown.gini,
    ]  # fmt: skip
    headers = (
        "users", "interactions", "items with interactions", "items of the catalogue", "exponent", "R2 of the law",
        "share of rare items", f"share of events on the top {TOP:.0%}", "Gini",
    )  # fmt: skip
    row = SummaryRow("A", grown.source, look(0)["color"], tuple(cells))
    note = f"Users in the order of seed {grown.seed}. All interactions count, those of validation and test too."
    return SummaryTable(headers, (row,), note)


def catalogue(grown: Growth) -> Figure:
    """Figure 1, top and middle: different items by users and by interactions, the latter with its power law."""
    name = "growth"

    def painter(x: np.ndarray, line: np.ndarray | None) -> Any:
        def paint(axes: Any) -> None:
            axes.plot(x, grown.items, label="measured", **look(0))
            if line is not None:
                axes.plot(x, line, color=GREY, ls="--", label="power law")
                legend(axes)
            powers(axes, "xy")

        return paint

    law = grown.law
    line = None if law is None else law.predict(grown.interactions)
    last = f"{grown.items[-1]:,} items"
    by_users = f"Items by users, both logarithmic: {last} at all {grown.users[-1]:,} users."
    by_events = f"Items by interactions, both logarithmic: {last} at all {grown.interactions[-1]:,} interactions."
    panels = (
        panel(f"{name}-users", painter(grown.users, None), by_users, x="users", y="items", height=2.6),
        panel(f"{name}-interactions", painter(grown.interactions, line), by_events, x="interactions", y="items",
              height=2.6),
    )  # fmt: skip
    caption = "Users join at random and bring all they did; an item counts from the first user who has it. " + (
        "There are too few points for a power law."
        if law is None
        else f"Dashed: items grow as interactions^{law.exponent:.3f}, fitted to these points. It describes them; where "
        "they bend away from it, it predicts nothing."
    )
    rows = tuple(
        (*row, None if line is None else float(line[place]))
        for place, row in enumerate(
            zip(grown.users.tolist(), grown.interactions.tolist(), grown.items.tolist(), strict=True)
        )
    )
    headers = ("users", "interactions", "items", "items by the power law")
    return Figure(name, "How the catalogue grows", caption, panels, headers, rows)


def parameters(grown: Growth) -> Figure:
    """Figure 1, bottom: all parameters by items, with a table of vectors and with items made of text."""
    name, values = "parameters", grown.parameters

    def paint(axes: Any) -> None:
        for place, other in enumerate(grown.others):
            colour = look(place)["color"]
            axes.plot(
                grown.items, values[:, place], label=f"{short_number(other)} and a table", color=colour, marker="."
            )
            axes.axhline(other, color=colour, ls=":", label=f"{short_number(other)}, text items")
        powers(axes, "xy")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7)

    ends = "; ".join(
        f"{short_number(other)} becomes {total:,}"
        for other, total in zip(grown.others, values[-1].tolist(), strict=True)
    )  # fmt: skip
    alt = f"Parameters by items for {len(grown.others)} sizes of the rest of the model. At all items {ends}."
    drawn = panel(name, paint, alt, x="items", y="parameters")
    caption = (
        f"A table keeps {grown.dim} numbers for each item, so a model grows with the catalogue and a small one is soon "
        "little but its table. Dotted: a model that makes vectors from text has the rest alone, whatever the catalogue."
    )
    models = (f"{short_number(other)} and a table" for other in grown.others)
    rows = tuple((int(n), *row) for n, row in zip(grown.items, values.tolist(), strict=True))
    return Figure(name, "What that does to the parameters", caption, (drawn,), ("items", *models), rows)


def popularity(grown: Growth) -> Figure:
    """Figure 3: how many items have how many events."""
    name, bins = "popularity", grown.histogram
    lows = np.array([low for low, _, _ in bins])

    def paint(axes: Any) -> None:
        axes.bar(lows, [count for _, _, count in bins], width=lows, align="edge", color=look(0)["color"], ec="#ffffff")
        if grown.per_item.max() >= RARE:
            axes.axvline(RARE, color=GREY, lw=1, ls="--", label=f"{RARE} events")
            legend(axes)
        powers(axes)

    rare, theirs = grown.rare
    count, most = grown.top
    alt = (
        f"Histogram of events per item in bins that double: the median item has {np.median(grown.per_item):g}, "
        f"{rare:.1%} of the items have fewer than {RARE}."
    )
    drawn = panel(name, paint, alt, x="events of an item", y="items")
    caption = (
        f"Each bar is twice as wide as the one before. {rare:.1%} of the items have fewer than {RARE} events and "
        f"{theirs:.1%} of all events; the most popular {count:,} have {most:.1%}. A {RARE}-core has no item with "
        f"fewer than {RARE} events."
    )
    rows = tuple((f"{low:,} to {high:,}", n, n / len(grown.per_item)) for low, high, n in bins)
    headers = ("events of an item", "items", "share of the items")
    return Figure(name, "How events are spread over items", caption, (drawn,), headers, rows)
