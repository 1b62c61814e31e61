"""A page about a store's catalogue: SRT's Figures 1 and 3 for these data."""

from __future__ import annotations

from dataclasses import dataclass

from fullrank import __version__
from fullrank.analysis.figures.growth import catalogue, parameters, popularity
from fullrank.analysis.report import Figure
from fullrank.analysis.report.draw import look
from fullrank.analysis.report.page import Page, check_extra, render
from fullrank.scaling.growth import TOP, Growth, growth_sentences

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


@dataclass(frozen=True)
class GrowthReport(Page):
    """A page and what is on it."""

    figures: tuple[Figure, ...]


def growth_report(grown: Growth) -> GrowthReport:
    """The page of a store's growth. Raises `UserError` where the extra `report` is not installed."""
    check_extra()
    joint = (catalogue(grown), parameters(grown), popularity(grown))
    html = render({
        "title": f"How the catalogue of {grown.source} grows",
        "subtitle": "With users, with interactions; what that does to a model; and how events are spread over items.",
        "heading": "The data", "one_of": "store", "joint": joint, "blocks": [], "short": list(growth_sentences(grown)),
        "summary": _summary(grown),
        "foot": f"Written by fullrank {__version__}. The numbers behind each figure can be unfolded below it.",
    }, WORDS)  # fmt: skip
    return GrowthReport(html, joint)


def _summary(grown: Growth) -> dict[str, object]:
    law = grown.law
    cells = [
        *(int(counts[-1]) for counts in (grown.users, grown.interactions, grown.items)), grown.catalogue,
        None if law is None else law.exponent, None if law is None else law.r_squared, grown.rare[0], grown.top[1],
        grown.gini,
    ]  # fmt: skip
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
    row = {"key": "A", "name": grown.source, "colour": look(0)["color"], "cells": cells}
    note = f"Users in the order of seed {grown.seed}. All interactions count, those of validation and test too."
    return {"headers": headers, "rows": [row], "note": note}
