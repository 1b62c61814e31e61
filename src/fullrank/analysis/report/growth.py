"""A page about a growing catalogue: SRT's Figures 1 (items by users and by interactions, parameters by items) and 3."""

from __future__ import annotations

import numpy as np

from fullrank.analysis.report import Figure
from fullrank.analysis.report.charts import Claim, bars, labelled, lines
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Report, SummaryRow, SummaryTable, check_extra
from fullrank.analysis.scaling.growth import RARE, TOP, Growth, growth_sentences, short_number

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
"""Glossary: a word, and what it means."""


def growth_report(growth: Growth) -> Report:
    """Make the page of a store's growth.

    Raises `UserError` where the extra `report` is not installed.
    """
    check_extra()
    return Report(
        title=f"How the catalogue of {growth.source} grows",
        subtitle="With users, with interactions; what that does to a model; and how events are spread over items.",
        sentences=tuple(growth_sentences(growth)),
        summary=_summary(growth),
        sections=(catalogue(growth), parameters(growth), popularity(growth)),
        words=WORDS,
        heading="The data",
        one_of="store",
    )


def _summary(growth: Growth) -> SummaryTable:
    """The table at the top: the counts at all users, and the law."""
    law = growth.law
    cells = {
        "users": int(growth.users[-1]),
        "interactions": int(growth.interactions[-1]),
        "items with interactions": int(growth.items[-1]),
        "items of the catalogue": growth.catalogue,
        "exponent": None if law is None else law.exponent,
        "R2 of the law": None if law is None else law.r_squared,
        "share of rare items": growth.rare[0],
        f"share of events on the top {TOP:.0%}": growth.top[1],
        "Gini": growth.gini,
    }
    row = SummaryRow("A", growth.source, look(0)["color"], tuple(cells.values()))
    note = f"Users in the order of seed {growth.seed}. All interactions count, those of validation and test too."
    return SummaryTable(tuple(cells), (row,), note)


def catalogue(growth: Growth) -> Figure:
    """Figure 1, top and middle: items by users and by interactions, with the power law."""
    columns = {
        "users": growth.users.tolist(),
        "interactions": growth.interactions.tolist(),
        "items": growth.items.tolist(),
        "items by the power law": [None] * len(growth.items),
    }
    caption = "Users join at random and bring all they did; an item counts from the first user who has it. "
    if growth.law is None:
        drawn: tuple[str, ...] = ("items",)
        caption += "There are too few points for a power law."
    else:
        drawn = ("items", "items by the power law")
        columns["items by the power law"] = growth.law.predict(growth.interactions).tolist()
        caption += (
            f"The law: items grow as interactions^{growth.law.exponent:.3f}, fitted to these points. It describes "
            "them; where they bend away from it, it predicts nothing."
        )
    claim = Claim("How the catalogue grows", caption, name="growth")
    by_users = lines("users", "items", by="", log="xy")
    by_interactions = lines("interactions", drawn, by="", axis="items", log="xy")
    return claim.figure(tuple(columns), zip(*columns.values(), strict=True), by_users, by_interactions)


def parameters(growth: Growth) -> Figure:
    """Figure 1, bottom: parameters by items, with a table of vectors and with text items."""
    sizes, drawn = [short_number(other) for other in growth.others], []
    for size, other, totals in zip(sizes, growth.others, growth.parameters.T.tolist(), strict=True):
        drawn += labelled(size, growth.items.tolist(), totals, [other] * len(totals))
    caption = (
        f"A table keeps {growth.dim} numbers for each item, so a model grows with the catalogue and a small one is "
        "soon little but its table. Dashed: a model that makes vectors from text has the rest alone, whatever the "
        "catalogue."
    )
    rows = [(n, *row) for n, row in zip(growth.items.tolist(), growth.parameters.tolist(), strict=True)]
    kinds = ("with a table", "text items")
    chart = lines("items", kinds, by="the rest", axis="parameters", log="xy", rows=drawn)
    claim = Claim("What that does to the parameters", caption, name="parameters")
    return claim.figure(("items", *(f"{size} and a table" for size in sizes)), rows, chart)


def popularity(growth: Growth) -> Figure:
    """Figure 3: numbers of items by their number of events."""
    rare, theirs = growth.rare
    count, most = growth.top
    caption = (
        f"Each bar is twice as wide as the one before; the median item has {np.median(growth.per_item):g} events. "
        f"{rare:.1%} of the items have fewer than {RARE} events and {theirs:.1%} of all events; the most popular "
        f"{count:,} have {most:.1%}. A {RARE}-core has no item with fewer than {RARE} events."
    )
    rows = [(f"{low:,} to {high:,}", n, n / len(growth.per_item)) for low, high, n in growth.histogram]
    claim = Claim("How events are spread over items", caption, name="popularity")
    chart = bars("events of an item", "items", by="")
    return claim.figure(("events of an item", "items", "share of the items"), rows, chart)
