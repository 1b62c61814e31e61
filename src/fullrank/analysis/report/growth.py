"""A page about a growing catalogue: SRT's Figures 1 (items by users and by interactions, parameters by items) and 3."""

from __future__ import annotations

import numpy as np

from fullrank.analysis.report import Figure
from fullrank.analysis.report.charts import Claim, bars, lines
from fullrank.analysis.report.draw import look
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
        *(int(counts[-1]) for counts in (grown.users, grown.interactions, grown.items)),
        grown.catalogue,
        None if law is None else law.exponent,
        None if law is None else law.r_squared,
        grown.rare[0],
        grown.top[1],
        grown.gini,
    ]
    headers = (
        "users",
        "interactions",
        "items with interactions",
        "items of the catalogue",
        "exponent",
        "R2 of the law",
        "share of rare items",
        f"share of events on the top {TOP:.0%}",
        "Gini",
    )
    row = SummaryRow("A", grown.source, look(0)["color"], tuple(cells))
    note = f"Users in the order of seed {grown.seed}. All interactions count, those of validation and test too."
    return SummaryTable(headers, (row,), note)


def catalogue(grown: Growth) -> Figure:
    """Figure 1, top and middle: different items by users and by interactions, the latter with its power law."""
    law, columns = grown.law, [grown.users.tolist(), grown.interactions.tolist(), grown.items.tolist()]
    predicted = [None] * len(grown.items) if law is None else law.predict(grown.interactions).tolist()
    words = ("users", "interactions", "items", "items by the power law")
    caption = "Users join at random and bring all they did; an item counts from the first user who has it. " + (
        "There are too few points for a power law."
        if law is None
        else f"The law: items grow as interactions^{law.exponent:.3f}, fitted to these points. It describes them; "
        "where they bend away from it, it predicts nothing."
    )
    claim = Claim("How the catalogue grows", caption, name="growth")
    laws = words[2:] if law else words[2:3]
    return claim.figure(
        words,
        zip(*columns, predicted, strict=True),
        lines("users", "items", by="", log="xy"),
        lines("interactions", laws, by="", axis="items", log="xy"),
    )


def parameters(grown: Growth) -> Figure:
    """Figure 1, bottom: all parameters by items, with a table of vectors and with items made of text."""
    sizes = [short_number(other) for other in grown.others]
    kinds = ("with a table", "text items")
    drawn = tuple(
        (size, int(items), int(total), other)
        for size, other, totals in zip(sizes, grown.others, grown.parameters.T, strict=True)
        for items, total in zip(grown.items, totals, strict=True)
    )
    caption = (
        f"A table keeps {grown.dim} numbers for each item, so a model grows with the catalogue and a small one is soon "
        "little but its table. Dashed: a model that makes vectors from text has the rest alone, whatever the catalogue."
    )
    rows = tuple((int(n), *row) for n, row in zip(grown.items, grown.parameters.tolist(), strict=True))
    chart = lines("items", kinds, by="the rest", axis="parameters", log="xy", rows=drawn)
    claim = Claim("What that does to the parameters", caption, name="parameters")
    return claim.figure(("items", *(f"{size} and a table" for size in sizes)), rows, chart)


def popularity(grown: Growth) -> Figure:
    """Figure 3: how many items have how many events."""
    rare, theirs = grown.rare
    count, most = grown.top
    caption = (
        f"Each bar is twice as wide as the one before; the median item has {np.median(grown.per_item):g} events. "
        f"{rare:.1%} of the items have fewer than {RARE} events and {theirs:.1%} of all events; the most popular "
        f"{count:,} have {most:.1%}. A {RARE}-core has no item with fewer than {RARE} events."
    )
    rows = tuple((f"{low:,} to {high:,}", n, n / len(grown.per_item)) for low, high, n in grown.histogram)
    claim = Claim(
        "How events are spread over items", caption, (bars("events of an item", "items", by=""),), name="popularity"
    )
    return claim.figure(("events of an item", "items", "share of the items"), rows)
