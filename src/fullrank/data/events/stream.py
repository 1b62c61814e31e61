"""Prepare a store in parts, out of core: the table is read in pieces and its events go to files by user, part by part.

What has to be known of all events is counted on the way: the ids of items, the k-core (a count for each item; a user
lies in one part), the moments of a split in time. Everything else is of one user, so each part is made alone, by the
functions that make a whole store. Memory holds the items, one piece of the table and one part.

The work lies in ``OUT.preparing`` until it is done: a killed preparation goes on behind the reading, with the parts
that are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten, jsonable, reason_of, take_place, write_json
from fullrank.core.readers import read_json
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data import values
from fullrank.data.events import parts, splits, write
from fullrank.data.events.filters import Prepare, of_types, rated, without_duplicates
from fullrank.data.events.pieces import EventPieces
from fullrank.data.events.spill import Spill, load_events, save_events
from fullrank.data.events.table import Events, JoinedTable, unit_notes
from fullrank.data.events.write_parts import Told, write_whole
from fullrank.data.frames import InputTable
from fullrank.data.user_keys import user_keys

Say = Callable[[str, dict[str, Any]], None]
WORK = ".preparing"
"""Behind the name of the store: the folder of a preparation that is under way."""
_ITEMS, _SPILL, _STATE = "item_ids.parquet", "spill", "state.json"


def prepare_parts(source: InputTable, place: Path, spec: Prepare, count: int, told: Told, say: Say) -> None:
    """Write a store of so many parts at `place`. The caller holds its lock, and has found that it may be written."""
    work = place.with_name(place.name + WORK)
    asked = {"spec": spec.dump(), "parts": count, "input": _identity(source)}
    try:
        state = _state(work, asked)
        if state is None:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            state = _read(source, spec, count, work) | asked
            write_json(work / _STATE, state)
        else:
            say("go on with what was read before", {"events": state["events"]})
        _Making(work, spec, count, told, state, say).make()
        shutil.rmtree(work / _SPILL)
        (work / _STATE).unlink()
        (work / _ITEMS).unlink()
        take_place(work, place)
    except OSError as error:
        raise NotWritten(place, reason_of(error), folder=True) from error


def _identity(source: InputTable) -> Any:
    """What a table on disk is known by again: names, sizes and times of its files; None for a frame."""
    path = source.path
    if path is None:
        return None
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _state(work: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier preparation of the same table with the same settings has read; None where there is none."""
    if asked["input"] is None or not (work / _STATE).is_file():
        return None
    try:
        found = read_json(work / _STATE)
    except UserError:
        return None
    same = all(found.get(key) == jsonable(value) for key, value in asked.items())
    return found if same else None


def _read(source: InputTable, spec: Prepare, count: int, work: Path) -> dict[str, Any]:
    """Both passes over the table: the ids of items, then every event to the part of its user."""
    reading = EventPieces(source, spec, work)
    item_ids, type_names = reading.look()
    write_table(pl.DataFrame({"item_id": item_ids}), work / _ITEMS)
    spill = Spill(work / _SPILL, count)
    span, events = reading.spill(item_ids, type_names, spill)
    (work / "input.parquet").unlink(missing_ok=True)
    notes = []
    if reading.left_out:
        notes.append(
            f"{reading.left_out:,} of {reading.chunks.rows:,} rows without a user, an item or a time were left out"
        )
    if span is not None:
        notes += unit_notes(*span, spec.columns, reading.numbers)
    told = {"events": events, "span": span, "types": list(type_names), "notes": notes}
    return told | {"text_users": reading.text_users, "columns": spill.columns}


class _Making:
    """The parts from what was read: filters, k-core, split, and the folders."""

    def __init__(self, work: Path, spec: Prepare, count: int, told: Told, state: dict[str, Any], say: Say):
        self.work, self.spec, self.told, self.state, self.say = work, spec, told, state, say
        self.spill = Spill(work / _SPILL, count)
        self.numbers = range(count)
        self.item_ids = pl.read_parquet(work / _ITEMS)["item_id"]
        self.steps: list[dict[str, Any]] = []
        self.split: Any = spec.split
        self.until: int | None = None
        if isinstance(spec.split, splits.RollingTime):
            self.split, self.until = spec.split.at(None if state["span"] is None else np.array(state["span"]))

    def make(self) -> None:
        self._filter()
        self._core()
        there = np.zeros(len(self.item_ids), bool)
        for number in self.numbers:
            there[self._load(number).item] = True
        ids, codes = self.item_ids.filter(pl.Series(there)), (np.cumsum(there) - 1).astype(np.int32)
        split = self.split
        if isinstance(split, splits.GlobalTime):
            split = self._moments(split)
        self.say("split and write", {})
        for number in self.numbers:
            events = self._load(number)
            self._write(number, replace(events, item=codes[events.item], item_ids=ids), split)
        told = replace(self.told, notes=(*self.told.notes, *self.state["notes"]))
        write_whole(self.work, len(self.numbers), ids, told, self.spec.dump(), self.steps)

    def _filter(self) -> None:
        """The filters that look at a row, or at one user; what is left of each part goes to its folder."""
        spec = self.spec
        filters: list[tuple[str, dict[str, Any], Callable[[Events], Events]]] = [("read", {}, lambda e: e)]
        if isinstance(spec.split, splits.RollingTime) and self.until is not None:
            until, facts = self.until, {"days": spec.split.days, "fold": spec.split.fold, "until": self.until}
            filters.append(("rolling_time", facts, lambda e: e.take(np.asarray(e.time) < until)))
        if (types := spec.event_types) is not None:
            filters.append(("event_types", {"types": list(types)}, lambda e: of_types(e, types)))
        if (least := spec.min_rating) is not None:
            filters.append(("min_rating", {"least": least}, lambda e: rated(e, least)))
        if spec.duplicates != "keep":
            filters.append(("duplicates", {"keep": spec.duplicates}, lambda e: without_duplicates(e, spec.duplicates)))
        counted = [_Counted(len(self.item_ids)) for _ in filters]
        for number in self.numbers:
            events = self._events(number)
            for (_, _, keep), counts in zip(filters, counted, strict=True):
                events = keep(events)
                counts.add(events)
            save_events(self._folder(number), replace(events, rating=None))
        for (name, facts, _), counts in zip(filters, counted, strict=True):
            self._done(name, facts, counts.facts())

    def _core(self) -> None:
        """Leave the k-core of the filtered events (`filters.k_core`, a round over all parts at a time)."""
        per_user, per_item = self.spec.per_user_and_item
        if max(per_user, per_item) <= 1:
            return
        rounds, dropped = 0, True
        while dropped:
            counts, left = np.zeros(len(self.item_ids), np.int64), _Counted(len(self.item_ids))
            for number in self.numbers:
                counts += np.bincount(self._load(number).item, minlength=len(counts))
            dropped = False
            for number in self.numbers:
                events = self._load(number)
                users = np.bincount(events.user, minlength=len(events.user_ids))
                keep = (users >= per_user)[events.user] & (counts >= per_item)[events.item]
                left.add(events.take(keep))
                if not keep.all():
                    dropped = True
                    save_events(self._folder(number), events.take(keep))
            rounds += dropped
        self._done("k_core", {"per_user": per_user, "per_item": per_item, "rounds": rounds}, left.facts())

    def _moments(self, split: splits.GlobalTime) -> splits.GlobalMoments:
        """A split in time with its moments in seconds: a share is that of all events."""
        if self.spec.columns.time is None:
            split.at(None)  # which refuses it
        path = self.work / "times"
        with open(path, "wb") as file:
            for number in self.numbers:
                file.write(np.ascontiguousarray(self._load(number).time).data)
        times = np.memmap(path, np.int64, mode="r+")  # numpy partitions it in place, on disk
        found = split.at(times)
        path.unlink()
        return found

    def _events(self, number: int) -> Events:
        """The events of a part as they were read, in order of time; users in order of key and id."""
        users, columns = self.spill.read(number, self.state["columns"], text=self.state["text_users"])
        user, user_ids = values.dense(users) if len(users) else (np.zeros(0, np.int32), users)
        order = np.lexsort((np.arange(len(user_ids)), user_keys(user_ids)))
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        events = Events(
            rank[user], columns["item"], user_ids[order].alias("user_id"), self.item_ids, columns.get("time"),
            columns.get("rating"), columns.get("weight"), columns.get("type"), tuple(self.state["types"]),
        )  # fmt: skip
        return events.take(np.argsort(columns["key"], kind="stable")) if "key" in columns else events

    def _folder(self, number: int) -> Path:
        return self.spill.folder / f"{number:05}-filtered"

    def _load(self, number: int) -> Events:
        return load_events(self._folder(number), self.item_ids, tuple(self.state["types"]))

    def _write(self, number: int, events: Events, split: Any) -> None:
        out = self.work / parts.part_folder(number)
        if (out / manifests.NAME).is_file():
            return  # of an earlier preparation that was killed
        user, user_ids = events.user, events.user_ids
        used = np.bincount(user, minlength=len(user_ids)) > 0
        user = (np.cumsum(used) - 1).astype(np.int32)[user]
        events = replace(events, user=user, user_ids=user_ids.filter(pl.Series(used)))
        items, users = (JoinedTable(ids, pl.DataFrame(), None) for ids in (events.item_ids, events.user_ids))
        keys = user_keys(events.user_ids)
        write.write_store(out, events, items, users, self.spec.dump(), split, {"part": number}, keys=keys)

    def _done(self, name: str, facts: dict[str, Any], counts: dict[str, int]) -> None:
        self.steps.append({"filter": name, **facts, **counts})
        self.say(name, self.steps[-1])
        if not counts["events"]:
            setting = ", ".join(f"{key}={value}" for key, value in facts.items() if key != "rounds")
            raise UserError(
                f"{name} ({setting}) leaves none of {self.steps[-2]['events']:,} events; loosen it",
                code="no-events-left",
            )


class _Counted:
    """Distinct users, distinct items and events over parts: no user is in two of them."""

    def __init__(self, items: int):
        self.users = self.events = 0
        self.items = np.zeros(items, bool)

    def add(self, events: Events) -> None:
        self.users += int((np.bincount(events.user, minlength=len(events.user_ids)) > 0).sum())
        self.items[events.item] = True
        self.events += len(events)

    def facts(self) -> dict[str, int]:
        return {"users": self.users, "items": int(self.items.sum()), "events": self.events}
