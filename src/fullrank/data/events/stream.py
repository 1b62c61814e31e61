"""Prepare a store in parts, out of core: the table is read in pieces and its events go to files by user, part by part.

Facts about all events are counted on the way: the ids of items, the k-core (a count for each item;
a user lies in one part), the moments of a split in time. Everything else is about one user, so
each part is made alone, by the functions that make a whole store. Memory holds the items, one
piece of the table and one part.

A killed preparation goes on behind the reading, with the parts that are written
(`parallel/folder.py`).
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.files import JsonObject, write_json
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events import parts, splits
from fullrank.data.events.feature_columns import FeatureCoder
from fullrank.data.events.feature_files import KEY
from fullrank.data.events.filters import Prepare, Say, filters, note_filter
from fullrank.data.events.part_work import FITTED, ITEM_IDS, KNOWN_USERS, SPILL, Counted, PartTimes, PartWork, Segments
from fullrank.data.events.pieces import EventPieces, Spill, largest_part
from fullrank.data.events.store import FORMS
from fullrank.data.events.table import JoinedTable, join_table, unit_notes
from fullrank.data.events.write import whole_table
from fullrank.data.frames import InputTable
from fullrank.data.impressions.encoder_files import VOCABULARY, encoder_state, vocabularies, write_vocabulary
from fullrank.parallel import Runner, Threads
from fullrank.parallel.folder import Unfinished

PEAK, ITEM = 4, 32
"""Memory of a task: so many times the bytes of its spilled part (3.5 were measured on ten million
events), and bytes for each item that it counts."""


@dataclass(frozen=True)
class Beside:
    """Inputs of a preparation beside the events: tables of items and users, and facts for the manifest."""

    items: Any
    users: Any
    items_id: str | None
    """The column of the id in the table of items, where it is named."""
    typed: bool
    notes: tuple[str, ...]
    inputs: dict[str, str]

    def catalogue(self, spec: Prepare, ids: pl.Series) -> JoinedTable:
        """The rows of the table of items for these ids."""
        return join_table(self.items, "items", spec.columns.item, "item_id", ids, self.typed, self.items_id)

    def people(self, spec: Prepare, ids: pl.Series) -> JoinedTable:
        """The rows of the table of users for these ids."""
        return join_table(self.users, "users", spec.columns.user, "user_id", ids, self.typed)


def identity_of(table: Any) -> Any:
    """The name, size in bytes and time of each file of a table on disk, by which it is
    recognised; None for a frame."""
    if not isinstance(table, (str, os.PathLike)):
        return None
    path = Path(table)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def read_pieces(source: InputTable, spec: Prepare, count: int, scratch: Path) -> JsonObject:
    """Both passes over the table: the ids of items, then each event to the part of its
    user. Returns facts about it."""
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
        "events": events,
        "span": span,
        "types": list(type_names),
        "notes": notes,
        "text_users": reading.text_users,
        "columns": spill.columns,
    }


def make_parts(
    work: Unfinished, spec: Prepare, count: int, beside: Beside, state: JsonObject, say: Say, runner: Runner | None
) -> None:
    """Make the parts and the manifest of all from the spilled events: filter, find
    the k-core, split and write."""
    split: Any = spec.split
    until, numbers = None, range(count)
    if isinstance(split, splits.RollingTime):
        split, until = split.at(None if state["span"] is None else np.array(state["span"]))
    tasks = PartWork(work.path, work.scratch, spec, state, until)
    runner = runner or Threads(PEAK * largest_part(work.scratch / SPILL) + ITEM * len(tasks.item_ids))

    left, steps = _filter(tasks, runner, numbers, say)
    if isinstance(split, splits.GlobalTime):
        split = split.at(PartTimes(tasks, numbers, runner, left.events) if state["span"] else None)
    people = None
    if beside.users is not None:
        ids = pl.concat([part_ids for _, part_ids in runner.results(tasks.user_ids, numbers)]).sort()
        people = beside.people(spec, ids)
        write_table(people.frame.with_columns(ids.alias("user_id")), work.scratch / KNOWN_USERS)
    encoder = None
    if spec.features.all:
        say("fit the features", {})
        encoder = runner.total(partial(tasks.fit, split=split), numbers).encoder()
        write_json(work.scratch / FITTED, encoder_state(encoder))
        write_vocabulary(work.path, vocabularies(encoder))
    say("split and write", {})
    segments = runner.total(partial(tasks.write, there=left.items > 0, split=split), numbers)
    catalogue = beside.catalogue(spec, tasks.item_ids.filter(left.items > 0))
    folder = work.path  # of all parts: what is left to write are the table of items and the manifest
    written, hashes = parts.written_parts(folder, count, "buckets")
    user_type = pl.read_parquet_schema(glob.escape(str(folder / parts.part_folder(0) / "users.parquet")))["user_id"]
    write_table(whole_table(catalogue, "item", {"train_count": segments.items[0]}), folder / "items.parquet")
    split_entry = _split([part["split"] for part in written], segments)
    tree = {
        "spec": spec.dump(),
        "counts": {"users": left.users, "items": len(catalogue.ids), "events": left.events},
        "filters": steps,
        "inputs": beside.inputs,
        "item_table": catalogue.facts,
        "user_table": None if people is None else people.facts,
        "split": split_entry,
        "fingerprint": parts.whole_fingerprint(user_type, catalogue.ids, hashes),
        "type_names": written[0]["type_names"],
        "notes": [
            *splits.split_notes(split_entry),
            *beside.notes,
            *state["notes"],
            *catalogue.notes,
            *([] if people is None else people.notes),
        ],
        "parts": parts.described(written),
    }
    files = ["items.parquet"]
    if encoder is not None:
        tree[KEY] = encoder_state(encoder)
        files.append(VOCABULARY)
    manifests.write_manifest(folder, FORMS[1], tree, manifests.hash_files(folder, files))


def _filter(tasks: PartWork, runner: Runner, numbers: range, say: Say) -> tuple[Counted, list[JsonObject]]:
    """Filter all parts; returns the counts of what is left, and the steps for the manifest."""
    steps: list[JsonObject] = []
    done = partial(note_filter, steps, say)
    counts = runner.total(tasks.filter, numbers)
    for (name, facts, _), counted in zip(filters(tasks.spec, tasks.until), counts, strict=True):
        done(name, facts, counted.facts())
    left, rounds = counts[-1], 0
    per_user, per_item = tasks.spec.per_user_and_item
    if max(per_user, per_item) > 1:
        # `filters.k_core`, a round over all parts at a time
        while left.fewest < per_user or ((left.items > 0) & (left.items < per_item)).any():
            core = partial(tasks.core, enough=left.items >= per_item, per_user=per_user)
            left, rounds = runner.total(core, numbers), rounds + 1
        done("k_core", {"per_user": per_user, "per_item": per_item, "rounds": rounds}, left.facts())
    return left, steps


def _split(of_parts: list[JsonObject], segments: Segments) -> JsonObject:
    """The entry of the manifest for the split of all parts: sums of theirs, and
    counts that no part knows alone."""
    whole, items = splits.rule_of(of_parts[0]), segments.items
    whole["users_train_only"] = sum(part["users_train_only"] for part in of_parts)
    for number, name in enumerate(("train", "validation", "test")):
        whole[name] = {key: sum(part[name][key] for part in of_parts) for key in of_parts[0][name]}
        if number:
            whole[name]["events_of_items_not_in_train"] = int(items[number][items[0] == 0].sum())
    if whole["kind"] == "leave_one_out" and (share := segments.later_share()) is not None:
        whole["train_share_after_test"] = share
    return whole
