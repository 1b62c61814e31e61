"""Documents of items: what `POST /v1/items` said of each, read against a run's catalogue.

A body has `id`, and any of `title`, `text`, `features` (columns), `like`, `retired` and `expires_at`. It is the whole
of what is said of the item: what a later request leaves out is kept by whoever stores the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from fullrank.core.errors import UserError, brief
from fullrank.data.events.catalog import RESERVED, Catalog
from fullrank.serving.columns import cell, type_of
from fullrank.serving.growth import item_numbers, typed
from fullrank.serving.origins import Newcomer

TITLE = "title"


@dataclass(frozen=True)
class Entry:
    """One document, read."""

    body: Mapping[str, Any]
    id: int | str
    number: int
    """Its number among the run's items; -1 where the run does not have it."""
    cells: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns, its title among them."""
    newcomer: Newcomer | None = None
    retired: bool = False
    expires_at: float | None = None

    def as_removed(self) -> Entry:
        """What is left of an item whose document is gone: its number, which nobody is shown any more."""
        return replace(self, retired=True, body={})


@dataclass(frozen=True)
class Reading:
    """The documents of some items, read."""

    entries: Mapping[str, Entry]
    refused: Mapping[str, UserError]
    """Those that could not be read, and why."""
    types: Mapping[str, Any]
    """The types of all columns that may be changed, those that came with documents among them."""


def read_documents(
    documents: Mapping[str, Mapping[str, Any] | None],
    catalog: Catalog,
    own_columns: frozenset[str],
    before: Reading,
) -> Reading:
    """The documents by their keys; those that were read `before` are taken over.

    `own_columns` are those that the library filled in for itself. An item that was added and has no document any more
    is retired, since its number stays.
    """
    entries: dict[str, Entry] = {}
    for key, entry in before.entries.items():  # added items keep their order, by which they are numbered
        if entry.newcomer is not None:
            entries[key] = entry if documents.get(key) is not None else entry.as_removed()
    fresh: dict[str, Mapping[str, Any]] = {}
    refused: dict[str, UserError] = {}
    for key, body in documents.items():
        known = before.entries.get(key)
        if body is None:
            continue
        if known is not None and (known.body is body or known.body == body):
            entries[key] = known
        else:
            fresh[key] = body
    types = dict(before.types)
    ids = {key: typed(catalog, body["id"]) for key, body in fresh.items()}
    for (key, body), number in zip(fresh.items(), item_numbers(catalog, list(ids.values())), strict=True):
        try:
            entries[key] = _entry(body, ids[key], number, catalog, own_columns, types)
        except UserError as error:
            refused[key] = error
            if key in entries:  # one that was added keeps its number and what was said of it before
                continue
            if key in before.entries:
                entries[key] = before.entries[key]
    return Reading(entries, refused, types)


def _entry(
    body: Mapping[str, Any],
    item: int | str,
    number: int,
    catalog: Catalog,
    own_columns: frozenset[str],
    types: dict[str, Any],
) -> Entry:
    if number < 0 and (isinstance(item, str) != (catalog.ids.dtype == pl.String)):
        raise UserError(
            f"item {brief(item, 80)}: this catalogue's ids are whole numbers (such as {catalog.ids[0]!r}); give one",
            code="wrong-id-type",
        )
    if item == "" or (isinstance(item, int) and not -(2**63) <= item < 2**63):
        raise UserError(f"item {brief(item, 80)}: an id is not empty, and fits 64 bits", code="wrong-id-type")
    cells, fresh = {}, {}
    title, features = body.get("title"), body.get("features") or {}
    for name, value in [*features.items(), *([(TITLE, title)] if title is not None else [])]:
        if name in RESERVED or name in own_columns or (name == TITLE and name in features):
            raise UserError(
                f"item {item!r}: features gives {name!r}, which is not a column of yours"
                f"{'; a title is given beside features' if name == TITLE else ''}",
                code="reserved-column",
            )
        dtype = types.get(name) or type_of(name, value)
        if dtype is not None:
            cells[name] = cell(name, value, dtype)
            fresh[name] = dtype
    types |= fresh
    newcomer = None
    if number < 0:
        like = tuple(typed(catalog, one) for one in body.get("like") or ())
        newcomer = Newcomer(item, title, body.get("text"), {n: v for n, v in cells.items() if n != TITLE}, like)
    return Entry(body, item, number, cells, newcomer, bool(body.get("retired")), body.get("expires_at"))
