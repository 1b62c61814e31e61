"""Prepare a store in parts, out of core: the table is read in pieces and its events go to files by user, part by part.

What has to be known of all events is counted on the way: the ids of items, the k-core (a count for each item; a user
lies in one part), the moments of a split in time. Everything else is of one user, so each part is made alone, by the
functions that make a whole store. Memory holds the items, one piece of the table and one part.

A killed preparation goes on behind the reading, with the parts that are written (`parallel/folder.py`).
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank.core.files import JsonObject, write_json
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events import parts, splits
from fullrank.data.events.feature_columns import FeatureCoder
from fullrank.data.events.feature_files import KEY
from fullrank.data.events.features import FeatureEncoder
from fullrank.data.events.filters import Prepare, Say, filters, note_filter
from fullrank.data.events.part_work import FITTED, ITEM_IDS, KNOWN_USERS, SPILL, PartTimes, PartWork, Segments
from fullrank.data.events.pieces import EventPieces, Spill, largest_part
from fullrank.data.events.store import FORMS
from fullrank.data.events.table import JoinedTable, join_table, unit_notes
from fullrank.data.events.write import whole_table
from fullrank.data.frames import InputTable
from fullrank.data.impressions.encoder_files import VOCABULARY, encoder_state, vocabularies, write_vocabulary
from fullrank.parallel import Runner, Threads
from fullrank.parallel.folder import Unfinished

PEAK, ITEM = 4, 32
"""Times its bytes on the way that a part takes while it is filtered or written (3.5 were measured on ten million
events), and bytes of an item in what is counted of a part."""


@dataclass(frozen=True)
class Beside:
    """What the caller knows beside the events: tables of items and users, and what goes into the manifest."""

    items: Any
    users: Any
    items_id: str | None
    """The column of the id in the table of items, where it is named."""
    typed: bool
    notes: tuple[str, ...]
    inputs: dict[str, str]

    def catalogue(self, spec: Prepare, ids: pl.Series) -> JoinedTable:
        """The items with these ids, and what is known of them."""
        return join_table(self.items, "items", spec.columns.item, "item_id", ids, self.typed, self.items_id)

    def people(self, spec: Prepare, ids: pl.Series) -> JoinedTable:
        """The users with these ids, and what is known of them."""
        return join_table(self.users, "users", spec.columns.user, "user_id", ids, self.typed)


def identity_of(table: Any) -> Any:
    """What a table on disk is known by again: names, sizes and times of its files; None for a frame."""
    if not isinstance(table, (str, os.PathLike)):
        return None
    path = Path(table)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def read_pieces(source: InputTable, spec: Prepare, count: int, scratch: Path) -> JsonObject:
    """Both passes over the table: the ids of items, then every event to the part of its user."""
    reading = EventPieces(source, spec, scratch)
    item_ids, type_names = reading.look()
    write_table(pl.DataFrame({"item_id": item_ids}), scratch / ITEM_IDS)
    spill = Spill(scratch / SPILL, count)
    features = FeatureCoder.write(reading.features, reading.feature_values, scratch)
    span, events = reading.spill(item_ids, type_names, spill, features)
    (scratch / "input.parquet").unlink(missing_ok=True)
    notes = reading.notes
    if span is not None:
        notes += sorted(reading.doubts | unit_notes(*span, spec.columns, reading.numbers))
    return {
        "events": events, "span": span, "types": list(type_names), "notes": notes, "text_users": reading.text_users,
        "columns": spill.columns,
    }  # fmt: skip


def make_parts(
    work: Unfinished, spec: Prepare, count: int, beside: Beside, state: JsonObject, say: Say, runner: Runner | None
) -> None:
    """The parts and the manifest of all from what was read: filters, k-core, split."""
    split: Any = spec.split
    until, numbers = None, range(count)
    steps: list[JsonObject] = []
    if isinstance(split, splits.RollingTime):
        split, until = split.at(None if state["span"] is None else np.array(state["span"]))
    tasks = PartWork(work.path, work.scratch, spec, state, until)
    runner = runner or Threads(PEAK * largest_part(work.scratch / SPILL) + ITEM * len(tasks.item_ids))

    done = partial(note_filter, steps, say)
    left = runner.total(tasks.filter, numbers)
    for (name, facts, _), counted in zip(filters(spec, until), left, strict=True):
        done(name, facts, counted.facts())
    found, rounds = left[-1], 0
    per_user, per_item = spec.per_user_and_item
    if max(per_user, per_item) > 1:
        # `filters.k_core`, a round over all parts at a time
        while found.fewest < per_user or ((found.items > 0) & (found.items < per_item)).any():
            core = partial(tasks.core, enough=found.items >= per_item, per_user=per_user)
            found, rounds = runner.total(core, numbers), rounds + 1
        done("k_core", {"per_user": per_user, "per_item": per_item, "rounds": rounds}, found.facts())
    if isinstance(split, splits.GlobalTime):
        split = split.at(PartTimes(tasks, numbers, runner, found.events) if state["span"] else None)
    people = None
    if beside.users is not None:
        ids = pl.concat([one for _, one in runner.results(tasks.user_ids, numbers)]).sort()
        people = beside.people(spec, ids)
        write_table(people.frame.with_columns(ids.alias("user_id")), work.scratch / KNOWN_USERS)
    encoder = None
    if spec.features.all:
        say("fit the features", {})
        encoder = runner.total(partial(tasks.fit, split=split), numbers).encoder()
        write_json(work.scratch / FITTED, encoder_state(encoder))
        write_vocabulary(work.path, vocabularies(encoder))
    say("split and write", {})
    segments = runner.total(partial(tasks.write, there=found.items > 0, split=split), numbers)
    catalogue = beside.catalogue(spec, tasks.item_ids.filter(found.items > 0))
    beside = replace(beside, notes=(*beside.notes, *state["notes"]))
    _write_whole(work.path, count, (catalogue, people), beside, spec, steps, segments, encoder)


def _write_whole(
    folder: Path, count: int, tables: tuple[JoinedTable, JoinedTable | None], beside: Beside, spec: Prepare,
    steps: list[JsonObject], segments: Segments, encoder: FeatureEncoder | None,
) -> None:  # fmt: skip
    """Finish a folder that holds `count` parts: the table of their items, and the manifest.

    `segments` are those of all parts, `tables` what is known of all items and users.
    """
    seen, (catalogue, people) = segments.items, tables
    own, hashes = parts.written_parts(folder, count, "buckets")
    user_type = pl.read_parquet_schema(glob.escape(str(folder / parts.part_folder(0) / "users.parquet")))["user_id"]
    write_table(whole_table(catalogue, "item", {"train_count": seen[0]}), folder / "items.parquet")
    split = _split([part["split"] for part in own], seen)
    if split["kind"] == "leave_one_out" and (share := segments.later_share()) is not None:
        split["train_share_after_test"] = share
    files = manifests.hash_files(folder, ["items.parquet", *([] if encoder is None else [VOCABULARY])])
    tree = {
        "spec": spec.dump(),
        "counts": {
            "users": sum(part["counts"]["users"] for part in own), "items": len(catalogue.ids),
            "events": sum(part["counts"]["events"] for part in own),
        },
        "filters": steps,
        "inputs": beside.inputs,
        "item_table": catalogue.facts,
        "user_table": None if people is None else people.facts,
        "split": split,
        "fingerprint": parts.whole_fingerprint(user_type, catalogue.ids, hashes),
        "type_names": own[0]["type_names"],
        "notes": [
            *splits.split_notes(split), *beside.notes, *catalogue.notes, *([] if people is None else people.notes)
        ],
        "parts": parts.described(own),
    }  # fmt: skip
    if encoder is not None:
        tree[KEY] = encoder_state(encoder)
    manifests.write_manifest(folder, FORMS[1], tree, files)


def _split(own: list[JsonObject], seen: Int64[np.ndarray, "3 V"]) -> JsonObject:
    """The split of all parts: their counts together, and those of items that no part knows alone."""
    whole = splits.rule_of(own[0])
    whole["users_train_only"] = sum(one["users_train_only"] for one in own)
    for number, name in enumerate(("train", "validation", "test")):
        whole[name] = {key: sum(one[name][key] for one in own) for key in own[0][name]}
        if number:
            whole[name]["events_of_items_not_in_train"] = int(seen[number][seen[0] == 0].sum())
    return whole
