"""Several stores as one, to train on all of them at once: users and items of each, the columns of items laid together.

Nobody is the same user, and nothing the same item, in two stores: external ids get the name of their store in front
(``toys/17``). In an epoch the rows of a store count as often as its weight says; a part of a time is drawn anew each
epoch. Models whose items are made of text or of vectors start on any other store from what they learn here.
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
"""Between the name of a store and an id of it."""


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

    `weights` say how often the rows of each count in an epoch of training (1 each, above 0 and at most 1,000), `names`
    what stands in front of its ids (the names of the folders). Splits stay as they are. Times are kept where all
    stores have them; event weights, types and features are not. Raises `UserError` for fewer than two stores, names
    that are not distinct, columns of items that hold different types, and stores that are split in different ways.
    """
    check_type("stores", stores, (list, tuple), "stores, in a list")
    parts = [opened_store(one) for one in stores]
    if weights is not None:
        check_type("weights", weights, (list, tuple), "a number for each store, in a list")
    given = [check_number("weights", one) for one in ([1.0] * len(parts) if weights is None else weights)]
    called = [one.path.name for one in parts] if names is None else list(names)
    _check(parts, given, called)
    place = without_dots(out)
    require_elsewhere(place, *(one.path for one in parts))
    with folder_lock(place, "join"):
        require_replaceable_store(place, overwrite=overwrite)
        _write(place, parts, given, called)
    return Store.open(place, verify=False)  # the hashes were taken just now


def _write(out: Path, parts: list[Store], weights: list[float], names: list[str]) -> None:
    first = np.cumsum([0, *(one.num_items for one in parts[:-1])])
    items = np.concatenate([np.asarray(one.items, np.int64) + at for one, at in zip(parts, first, strict=True)])
    sizes = [one.num_events for one in parts]
    offsets, bounds = moved_up(sizes, [one.offsets for one in parts], [one.bounds for one in parts])
    arrays = {"items": items, "offsets": offsets, "bounds": bounds}
    times = [one.times for one in parts if one.times is not None]
    if len(times) == len(parts):
        arrays["times"] = np.concatenate(times)
    catalogue = _table([one.catalog.frame for one in parts], "item", names)
    people = _table([one.users for one in parts], "user", names)
    untimed = [name for name, one in zip(names, parts, strict=True) if one.times is None]
    notes = [f"{', '.join(untimed)}: without times, so the joined store has none"] * (0 < len(untimed) < len(parts))
    if featured := [name for name, one in zip(names, parts, strict=True) if one.features is not None]:
        notes.append(f"{', '.join(featured)}: with features, which are left out: those of each store are its own")
    manifest: dict[str, Any] = {
        "spec": {},
        "joined": [
            {"name": name, "weight": weight, "fingerprint": one.fingerprint, "counts": one.sizes}
            for name, weight, one in zip(names, weights, parts, strict=True)
        ],
        "item_table": None,
        "user_table": None,
        "split": {"kind": parts[0].manifest["split"]["kind"]},
        "type_names": [],
        "notes": notes,
    }
    save_store(out, arrays, catalogue, people, manifest)


def _table(frames: list[pl.DataFrame], kind: str, names: list[str]) -> pl.DataFrame:
    """The rows of all tables, ids with the name of their store in front; a column that one lacks is null there."""
    told = [
        frame.drop("map_version", strict=False).with_columns(
            pl.format("{}{}{}", pl.lit(name), pl.lit(SEPARATOR), pl.col(f"{kind}_id").cast(pl.String)).alias(
                f"{kind}_id"
            )
        )
        for frame, name in zip(frames, names, strict=True)
    ]
    try:
        whole = pl.concat(told, how="diagonal_relaxed")
    except pl.exceptions.PolarsError:
        columns = sorted({name for frame in told for name in frame.columns})
        clash = next(
            name for name in columns if len({str(frame.schema[name]) for frame in told if name in frame.columns}) > 1
        )
        kinds = ", ".join(
            f"{frame.schema[clash]} in {name}"
            for frame, name in zip(told, names, strict=True)
            if clash in frame.columns
        )
        raise UserError(
            f"the column {clash!r} of the {kind}s is {kinds}: prepare the stores with columns of one type, or "
            "rename one",
            code="columns-differ",
        ) from None
    return whole.with_columns(pl.Series(kind, np.arange(len(whole), dtype=np.int64)))


def _check(parts: list[Store], weights: list[float], names: list[str]) -> None:
    if len(parts) < 2:
        raise UserError(f"{len(parts)} store given: name two or more, or train on it as it is", code="too-few-stores")
    for what, given in (("weights", weights), ("names", names)):
        if len(given) != len(parts):
            raise UserError(f"{len(given)} {what} for {len(parts)} stores: give one for each", code="counts-differ")
    for weight in weights:
        check_bounds("weights", weight, Field(gt=0, le=MOST_WEIGHT).metadata)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"the stores need names of their own for their ids, given {', '.join(map(repr, names))}: say "
            "names=[...], or rename a folder",
            code="names-repeated",
        )
    if len({one.manifest["split"]["kind"] for one in parts}) > 1:
        told = ", ".join(f"{name} by {one.manifest['split']['kind']}" for name, one in zip(names, parts, strict=True))
        raise UserError(f"the stores are split in different ways ({told}): prepare them alike", code="splits-differ")
