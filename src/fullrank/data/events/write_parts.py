"""Write what a store in parts has beside its parts: the table of all items, and the manifest with the fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank import __version__
from fullrank.core.files import write_json
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events import parts, splits
from fullrank.data.events.store import Store
from fullrank.data.events.table import join_table
from fullrank.data.events.write import whole_table

BINS = 1 << 20
"""Stretches of time in which events are counted where a share of them is asked for that is rounded to four digits."""


@dataclass(frozen=True)
class Told:
    """What the caller knows beside the events: a table of items, and what goes into the manifest."""

    items: Any
    column: str
    """The column of an item's id."""
    typed: bool
    notes: tuple[str, ...]
    inputs: dict[str, str]


def write_whole(
    folder: Path, count: int, ids: pl.Series, told: Told, spec: dict[str, Any], filters: list[dict[str, Any]]
) -> None:
    """Finish a folder that holds `count` parts: their items `ids`, with what is known of them, and the manifest."""
    opened = [Store.open(folder / parts.part_folder(number), verify=False) for number in range(count)]
    seen = np.zeros((3, len(ids)), np.int64)
    for store in opened:
        segment = splits.event_parts(store.offsets, store.bounds)
        for number in range(3):
            seen[number] += np.bincount(np.asarray(store.items)[segment == number], minlength=len(ids))
    catalogue = join_table(told.items, "items", told.column, "item_id", ids, told.typed)
    write_table(whole_table(catalogue, "item", {"train_count": seen[0]}), folder / "items.parquet")
    hashes = {int(bucket): value for store in opened for bucket, value in store.manifest["buckets"].items()}
    split, notes = _split(opened, seen), [*told.notes, *catalogue.notes]
    for part in ("validation", "test"):
        if split[part]["users"] == 0:
            notes.append(f"the split leaves no {part} events: nothing can be evaluated there")
    files = manifests.hash_files(folder, ["items.parquet"])
    tree = {
        "format": parts.FORMAT,
        "format_version": parts.FORMAT_VERSION,
        "library_version": __version__,
        "spec": spec,
        "counts": {
            "users": sum(one.num_users for one in opened), "items": len(ids),
            "events": sum(one.num_events for one in opened),
        },
        "filters": filters,
        "inputs": told.inputs,
        "item_table": catalogue.facts,
        "user_table": None,
        "split": split,
        "fingerprint": parts.whole_fingerprint(opened[0].user_ids.dtype, ids, hashes),
        "type_names": list(opened[0].type_names),
        "notes": notes,
        "parts": [
            {"folder": one.path.name, "content": one.manifest["content"], "counts": one.manifest["counts"]}
            for one in opened
        ],
        "content": manifests.content(files),
        "files": files,
    }  # fmt: skip
    write_json(folder / manifests.NAME, manifests.sealed(tree), indent=1, ensure_ascii=False)


def _split(opened: list[Store], seen: Int64[np.ndarray, "3 V"]) -> dict[str, Any]:
    """The split of all parts: their counts together, and what no part knows alone."""
    own = [store.manifest["split"] for store in opened]
    summed = ("train", "validation", "test", "users_train_only", "train_share_after_test")
    whole = {key: value for key, value in own[0].items() if key not in summed}
    whole["users_train_only"] = sum(one["users_train_only"] for one in own)
    for number, name in enumerate(("train", "validation", "test")):
        whole[name] = {key: sum(one[name][key] for one in own) for key in own[0][name]}
        if number:
            whole[name]["events_of_items_not_in_train"] = int(seen[number][seen[0] == 0].sum())
    if whole["kind"] == "leave_one_out" and opened[0].times is not None:
        whole["train_share_after_test"] = _later_share(opened)
    return whole


def _later_share(opened: list[Store]) -> float:
    """The share of all training events that are later than a test event, averaged over test events (by bins)."""
    low = min(int(store.times.min()) for store in opened if store.num_events)  # type: ignore[union-attr]
    high = max(int(store.times.max()) for store in opened if store.num_events)  # type: ignore[union-attr]
    width = max((high - low) // BINS, 1)
    counts = np.zeros((3, (high - low) // width + 1), np.int64)
    for store in opened:
        part = splits.event_parts(store.offsets, store.bounds)
        for number in (0, 2):
            mine = (np.asarray(store.times)[part == number] - low) // width
            counts[number] += np.bincount(mine, minlength=counts.shape[1])
    until = np.cumsum(counts[0])  # training events up to the bin of a test event
    tests = max(int(counts[2].sum()), 1)
    return round(float(1 - (until * (counts[2] / tests)).sum() / max(int(until[-1]), 1)), 4)
