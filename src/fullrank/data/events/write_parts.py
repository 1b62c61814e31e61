"""Write what a store in parts has beside its parts: the table of all items, and the manifest with the fingerprint."""

from __future__ import annotations

import glob
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
from fullrank.data.events.part_work import Segments
from fullrank.data.events.table import join_table
from fullrank.data.events.write import whole_table


@dataclass(frozen=True)
class Told:
    """What the caller knows beside the events: a table of items, and what goes into the manifest."""

    items: Any
    column: str
    """The column of an item's id in the events."""
    items_id: str | None
    """The column of the id in the table of items, where it is named."""
    typed: bool
    notes: tuple[str, ...]
    inputs: dict[str, str]


def write_whole(
    folder: Path,
    count: int,
    ids: pl.Series,
    told: Told,
    spec: dict[str, Any],
    filters: list[dict[str, Any]],
    segments: Segments,
) -> None:
    """Finish a folder that holds `count` parts: their items `ids`, with what is known of them, and the manifest.

    `segments` are those of all parts.
    """
    seen = segments.items
    manifests_of = [manifests.load_manifest(folder / parts.part_folder(number)) for number in range(count)]
    hashes = {int(bucket): value for one in manifests_of for bucket, value in one["buckets"].items()}
    user_type = pl.read_parquet_schema(glob.escape(str(folder / parts.part_folder(0) / "users.parquet")))["user_id"]
    catalogue = join_table(told.items, "items", told.column, "item_id", ids, told.typed, told.items_id)
    write_table(whole_table(catalogue, "item", {"train_count": seen[0]}), folder / "items.parquet")
    split = _split([one["split"] for one in manifests_of], seen)
    if split["kind"] == "leave_one_out" and (share := segments.later_share()) is not None:
        split["train_share_after_test"] = share
    files = manifests.hash_files(folder, ["items.parquet"])
    tree = {
        "format": parts.FORMAT,
        "format_version": parts.FORMAT_VERSION,
        "library_version": __version__,
        "spec": spec,
        "counts": {
            "users": sum(one["counts"]["users"] for one in manifests_of), "items": len(ids),
            "events": sum(one["counts"]["events"] for one in manifests_of),
        },
        "filters": filters,
        "inputs": told.inputs,
        "item_table": catalogue.facts,
        "user_table": None,
        "split": split,
        "fingerprint": parts.whole_fingerprint(user_type, ids, hashes),
        "type_names": manifests_of[0]["type_names"],
        "notes": [*splits.split_notes(split), *told.notes, *catalogue.notes],
        "parts": [
            {"folder": parts.part_folder(number), "content": one["content"], "counts": one["counts"]}
            for number, one in enumerate(manifests_of)
        ],
        "content": manifests.content(files),
        "files": files,
    }  # fmt: skip
    write_json(folder / manifests.NAME, manifests.sealed(tree), indent=1, ensure_ascii=False)


def _split(own: list[dict[str, Any]], seen: Int64[np.ndarray, "3 V"]) -> dict[str, Any]:
    """The split of all parts: their counts together, and those of items that no part knows alone."""
    summed = ("train", "validation", "test", "users_train_only", "train_share_after_test")
    whole = {key: value for key, value in own[0].items() if key not in summed}
    whole["users_train_only"] = sum(one["users_train_only"] for one in own)
    for number, name in enumerate(("train", "validation", "test")):
        whole[name] = {key: sum(one[name][key] for one in own) for key in own[0][name]}
        if number:
            whole[name]["events_of_items_not_in_train"] = int(seen[number][seen[0] == 0].sum())
    return whole
