"""Join several stores into one, to train on all of them at once: the users and items of each, and their columns.

Nobody is the same user, and nothing the same item, in two stores: external ids get the name of
their store in front (``toys/17``). In an epoch the rows of a store count as often as its weight
says; the fraction of a weight is left to chance, anew in each epoch. Models whose items are made of
text or of vectors start on any other store from what they learn here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from fullrank.core.checks import check_bounds, check_number, check_type, public
from fullrank.core.errors import UserError
from fullrank.core.files import without_dots
from fullrank.core.locks import folder_lock
from fullrank.data.events.store import MOST_WEIGHT, Store, moved_up, opened_store, require_replaceable_store
from fullrank.data.events.write import save_store
from fullrank.data.manifest import require_elsewhere

SEPARATOR = "/"
"""Stands between the name of a store and an id of it."""


@public
def join_stores(
    stores: Sequence[Store | str | Path],
    out: str | Path,
    *,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Store:
    """Write a store at `out` that holds the users, items and events of `stores`, and return it.

    `weights` say how often the rows of each count in an epoch of training (1 each, above 0 and at
    most 1,000), `names` what stands in front of its ids (the names of the folders). Splits stay as
    they are. Times are kept where all stores have them; event weights, types and features are not.
    Raises `UserError` for fewer than two stores, names that are not distinct, columns of items that
    hold different types, and stores that are split in different ways.
    """
    check_type("stores", stores, (list, tuple), "stores, in a list")
    sources = [opened_store(store) for store in stores]
    if weights is not None:
        check_type("weights", weights, (list, tuple), "a number for each store, in a list")
    factors = [check_number("weights", weight) for weight in ([1.0] * len(sources) if weights is None else weights)]
    prefixes = [store.path.name for store in sources] if names is None else list(names)
    _check(sources, factors, prefixes)
    folder = without_dots(out)
    require_elsewhere(folder, *(store.path for store in sources))
    with folder_lock(folder, "join"):
        require_replaceable_store(folder, overwrite=overwrite)
        _write(folder, sources, factors, prefixes)
    return Store.open(folder, verify=False)  # the hashes were taken just now


def _write(out: Path, stores: list[Store], weights: list[float], names: list[str]) -> None:
    first = np.cumsum([0, *(store.num_items for store in stores[:-1])])  # ids of items move up by those before
    items = np.concatenate([np.asarray(store.items, np.int64) + at for store, at in zip(stores, first, strict=True)])
    sizes = [store.num_events for store in stores]
    offsets, bounds = moved_up(sizes, [store.offsets for store in stores], [store.bounds for store in stores])
    arrays = {"items": items, "offsets": offsets, "bounds": bounds}
    times = [store.times for store in stores if store.times is not None]
    if len(times) == len(stores):
        arrays["times"] = np.concatenate(times)
    catalogue = _table([store.catalog.frame for store in stores], "item", names)
    people = _table([store.users for store in stores], "user", names)
    notes, named = [], list(zip(names, stores, strict=True))
    if 0 < len(times) < len(stores):
        untimed = ", ".join(name for name, store in named if store.times is None)
        notes.append(f"{untimed}: without times, so the joined store has none")
    if featured := ", ".join(name for name, store in named if store.features is not None):
        notes.append(f"{featured}: with features, which are left out: those of each store are its own")
    manifest: dict[str, Any] = {
        "spec": {},
        "joined": [
            {"name": name, "weight": weight, "fingerprint": store.fingerprint, "counts": store.sizes}
            for (name, store), weight in zip(named, weights, strict=True)
        ],
        "item_table": None,
        "user_table": None,
        "split": {"kind": stores[0].manifest["split"]["kind"]},
        "type_names": [],
        "notes": notes,
    }
    save_store(out, arrays, catalogue, people, manifest)


def _table(frames: list[pl.DataFrame], kind: str, names: list[str]) -> pl.DataFrame:
    """The rows of all tables, ids with the name of their store in front; a column that
    a table lacks is null there."""
    key = f"{kind}_id"
    tables = [
        frame.drop("map_version", strict=False).with_columns(
            pl.format("{}{}{}", pl.lit(name), pl.lit(SEPARATOR), pl.col(key).cast(pl.String)).alias(key)
        )
        for frame, name in zip(frames, names, strict=True)
    ]
    try:
        whole = pl.concat(tables, how="diagonal_relaxed")
    except pl.exceptions.PolarsError:
        for column in sorted({column for table in tables for column in table.columns}):
            types = {
                name: str(table.schema[column])
                for name, table in zip(names, tables, strict=True)
                if column in table.columns
            }
            if len(set(types.values())) > 1:
                break
        shown = ", ".join(f"{dtype} in {name}" for name, dtype in types.items())
        raise UserError(
            f"the column {column!r} of the {kind}s is {shown}: prepare the stores with columns of one type, or "
            "rename one",
            code="columns-differ",
        ) from None
    return whole.with_columns(pl.Series(kind, np.arange(len(whole), dtype=np.int64)))


def _check(stores: list[Store], weights: list[float], names: list[str]) -> None:
    if len(stores) < 2:
        raise UserError(f"{len(stores)} store given: name two or more, or train on it as it is", code="too-few-stores")
    for what, count in (("weights", len(weights)), ("names", len(names))):
        if count != len(stores):
            raise UserError(f"{count} {what} for {len(stores)} stores: give one for each", code="counts-differ")
    for weight in weights:
        check_bounds("weights", weight, Field(gt=0, le=MOST_WEIGHT).metadata)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"the stores need names of their own for their ids, given {', '.join(map(repr, names))}: say "
            "names=[...], or rename a folder",
            code="names-repeated",
        )
    kinds = [store.manifest["split"]["kind"] for store in stores]
    if len(set(kinds)) > 1:
        ways = ", ".join(f"{name} by {kind}" for name, kind in zip(names, kinds, strict=True))
        raise UserError(f"the stores are split in different ways ({ways}): prepare them alike", code="splits-differ")
