"""Lists in parts: recommendations for as many users as there are, one Parquet file for each part, on any engine.

    OUT/manifest.json              which run and histories, the settings, how many parts; at the end that they are whole
    OUT/lists/part-00000.parquet   user, item, score, rank, source, as `recommend` gives them

A file appears whole or not at all. A call with the same run, histories and settings computes the
parts that are still missing; a call for anything else is refused. A part's batches are made of its
own users, in an order that they decide, so its bits depend on the histories, the settings and the
number of parts alone, not on the engine.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool

from fullrank.core.errors import UserError, brief
from fullrank.core.files import (
    JsonObject,
    jsonable,
    not_written,
    open_whole,
    require_replaceable,
    scratch_folder,
    write_json,
)
from fullrank.core.locks import folder_lock, sweep_folder
from fullrank.core.log import Progress, untold
from fullrank.core.readers import read_json
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events.catalog import Catalog
from fullrank.inference.filters import Filters
from fullrank.inference.history_parts import HistoryTable, StoreParts, TableParts, UserTable
from fullrank.inference.list_options import ListOptions
from fullrank.inference.predictor import Predictor
from fullrank.inference.requests import is_list, read_filters, read_histories
from fullrank.inference.search import Decoding
from fullrank.models import AS_TRAINED, check_budget
from fullrank.parallel import Runner

FORMAT, FORMAT_VERSION = "fullrank.lists", 1
LISTS, HISTORIES, FEATURES = "lists", "histories", "features.parquet"
STATE = "state.json"
PART = re.compile(r"part-\d{5}\.parquet")


@dataclass(frozen=True)
class ModelSource:
    """The model of a call in parts, on its way to workers, each of which opens it once."""

    name: str
    """The run's folder, as the caller named it."""
    identity: str
    """A hash of all that decides its answers."""
    device: str
    load: Callable[[Path, str], Predictor] = field(compare=False)
    """Opens a run folder on a device."""
    shared: Any | None = field(default=None, compare=False)
    """Shared object whose `value` is the files of the run; None where workers see its folder."""
    files: Callable[[], dict[str, bytes]] | None = field(default=None, compare=False)
    """Reads the files of the run, for workers that do not see its folder."""

    def sent(self, runner: Runner) -> ModelSource:
        """The source that the workers of a runner get."""
        return replace(self, shared=None if self.files is None else runner.share(self.files), files=None)

    def open(self) -> Predictor:
        """The model, opened by the first call in a process."""
        return _opened(self)

    def _load(self) -> Predictor:
        """Open the run from its folder, or from the files that were sent."""
        if self.shared is None:
            return self.load(Path(self.name), self.device)
        with scratch_folder() as folder:
            for name, content in self.shared.value.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with open_whole(folder / name) as file:
                    file.write(content)
            return self.load(folder, self.device)


@lru_cache(maxsize=1)
def _opened(source: ModelSource) -> Predictor:
    return source._load()


def forget_models() -> None:
    """Let go of the model that this process has opened."""
    _opened.cache_clear()


@dataclass(frozen=True)
class ListCounts:
    """Users and rows of lists that are written."""

    users: int = 0
    rows: int = 0
    popular: int = 0
    """Users whose list is of the most popular items."""

    def __add__(self, other: ListCounts) -> ListCounts:
        return ListCounts(self.users + other.users, self.rows + other.rows, self.popular + other.popular)


@dataclass(frozen=True)
class ListParts:
    """Lists in parts, all of them written."""

    path: Path
    parts: int
    resumed: int
    """Parts that an earlier call had written."""
    users: int
    """Users with a list."""
    rows: int
    popular: int
    """Users whose list is of the most popular items, since the model knows none of theirs."""

    @property
    def folder(self) -> Path:
        """The folder of the Parquet files, and of nothing else."""
        return self.path / LISTS

    @property
    def files(self) -> list[Path]:
        """The files in order."""
        return [part_file(self.path, number) for number in range(self.parts)]


@dataclass(frozen=True)
class ListTask:
    """The lists of a part, to its file."""

    model: ModelSource
    histories: StoreParts | TableParts
    out: str
    options: ListOptions
    barred: Bool[np.ndarray, "V"] | None
    """Items that no user is shown; None: there are none."""
    now: int | None = None
    """The time of all requests, where the model reads it."""
    user_table: str | None = None
    """The file of a table of features."""

    def __call__(self, number: int) -> ListCounts:
        predictor, filters = self.model.open(), Filters(barred=self.barred)
        reads = replace(predictor.reads, now=self.now, user_table=self.user_table)
        requests = self.histories.read(number, predictor.catalog, self.options, reads)
        frame = pl.concat([predictor.list_frame(request, self.options, filters) for request in requests])
        write_table(frame, part_file(Path(self.out), number))
        return counts_of(frame.lazy())


def write_list_parts(
    out: Path,
    histories: StoreParts | HistoryTable,
    model: ModelSource,
    options: ListOptions,
    barred: np.ndarray | None,
    *,
    catalog: Catalog,
    runner: Runner,
    overwrite: bool = False,
    asked_at: int | None = None,
    user_table: UserTable | None = None,
    progress: Progress = untold,
) -> ListParts:
    """Write the lists of all users at `out`, or those that are missing.

    `asked_at` is the time of all requests, for models that read it, where `user_table` (a
    table of features) has none.

    Raises `UserError` where `out` holds something else, and as `Predictor.recommend` does;
    what was written then stays.
    """
    barred_hash = None if barred is None else hashlib.sha256(np.packbits(barred).tobytes()).hexdigest()
    settings = options.model_dump(mode="json", exclude_none=True, exclude={"budget", "decoding"})
    budget, decoding = options.budget_of(AS_TRAINED), options.decoding_of(Decoding())
    settings |= {"reasoning": budget.dump(), "decoding": decoding.dump()}
    known = {"model": model.identity, "settings": settings, "filters": barred_hash}
    request = jsonable({**known, **histories.identity, **({} if user_table is None else user_table.identity)})
    with folder_lock(out, "recommend"):
        with not_written(out, folder=True):
            manifest = _open_or_begin(out, request, overwrite, asked_at)
            (out / LISTS).mkdir(exist_ok=True)
            ready = _cut(histories, out, manifest, catalog, runner.session)
            numbers = range(ready.parts)
            written_parts = [number for number in numbers if part_file(out, number).is_file()]
            missing = sorted(set(numbers) - set(written_parts))
            counts = ListCounts()
            if missing:
                now, path = manifest.get("asked_at"), None
                if user_table is not None:
                    path = str(out.absolute() / HISTORIES / FEATURES)
                    user_table.write(Path(path), ready.names[0])
                task = ListTask(model.sent(runner), ready, str(out.absolute()), options, barred, now, path)
                for written, (_, part_counts) in enumerate(runner.results(task, missing), len(written_parts) + 1):
                    counts += part_counts
                    progress(written, ready.parts)
            for number in written_parts:
                counts += counts_of(pl.scan_parquet(part_file(out, number), glob=False))
            _finish(out, manifest, ready.parts, counts)
            return ListParts(out, ready.parts, len(written_parts), **asdict(counts))


def options_for_parts(options: ListOptions, predictor: Predictor) -> ListOptions:
    """The options of every part, checked before any begins, without those that `barred_items` reads.

    Raises `UserError` for a budget that the model does not have.
    """
    options = options.with_settings(predictor.budget, predictor.decoding)
    check_budget(predictor.model, options.budget_of(predictor.budget))
    cleared = dict.fromkeys(("exclude", "allow", "filters", "item_table"))
    untimed = "error" if options.untimed == "auto" else options.untimed  # as manifests of older lists have it
    return options.model_copy(update={**cleared, "untimed": untimed})


def barred_items(options: ListOptions, id_column: str, catalog: Catalog) -> Bool[np.ndarray, "V"] | None:
    """Mask of the items that no user is shown; None: there are none.

    Raises `UserError` as `requests.read_filters` does, and for lists of single users.
    """
    for name in ("exclude", "allow", "filters"):
        option = getattr(options, name)
        several = isinstance(option, list | tuple)
        by_user = isinstance(option, Mapping) or (several and any(map(is_list, option)))
        if several if name == "filters" else by_user:
            raise UserError(
                f"{name} of single users has no effect on lists in parts, whose users are not in order: give one for "
                "all of them",
                code="not-item-lists",
            )
    anybody = read_histories([[catalog.ids[0]]], catalog)
    return read_filters(options, anybody, catalog, id_column).barred


def part_file(out: Path, number: int) -> Path:
    """The file of a part."""
    return out / LISTS / f"part-{number:05}.parquet"


def counts_of(frame: pl.LazyFrame) -> ListCounts:
    """Counts of a long frame of lists."""
    first = pl.col("rank") == 1
    counts = frame.select(
        users=first.sum(), rows=pl.len(), popular=(first & (pl.col("source") == "popular")).sum()
    ).collect()
    return ListCounts(**{name: int(count) for name, count in counts.row(0, named=True).items()})


def open_list_parts(path: Path) -> JsonObject:
    """The manifest of lists in parts. Raises `UserError` for another folder, and for
    a manifest that was edited."""
    manifest = read_json(path / manifests.NAME)
    manifests.check_seal(manifest, path / manifests.NAME, "write the lists anew, with overwrite")
    if manifest.get("format") != FORMAT or manifest.get("format_version") != FORMAT_VERSION:
        raise UserError(f"{str(path)!r} holds no lists in parts", code="folder-not-empty")
    return manifest


def _open_or_begin(out: Path, request: JsonObject, overwrite: bool, asked_at: int | None) -> JsonObject:
    """The manifest of the lists at `out`, written where there are none yet, with the time of asking.

    Raises `UserError` for other lists.
    """
    manifests.require_outside_stores(out)
    present = (out / manifests.NAME).is_file()
    if present:
        manifest = open_list_parts(out)
        if manifest["asked"] == request:
            return manifest
        if not overwrite:
            flat = [{**call, **call["settings"]} for call in (manifest["asked"], request)]
            differ = [name for name in flat[1] if name != "settings" and flat[0].get(name) != flat[1][name]]
            shown = (f"{name} ({brief(flat[0].get(name), 60)} and {brief(flat[1][name], 60)})" for name in differ)
            raise UserError(
                f"{str(out)!r} holds lists of another call, with another {', '.join(shown)}: name another folder, or "
                "replace them with overwrite=True",
                code="other-lists-there",
            )
    ours = {manifests.NAME, LISTS, HISTORIES}
    for folder, names in ((out, ours.__contains__), (out / LISTS, lambda name: PART.fullmatch(name) is not None)):
        require_replaceable(folder, "folder of lists in parts", lambda _: present, names)
    for name in (LISTS, HISTORIES) if present else ():  # a kill leaves lists of the other call with parts missing
        shutil.rmtree(out / name, ignore_errors=True)
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "asked": request, "whole": False}
    manifest |= {} if asked_at is None else {"asked_at": asked_at}
    write_json(out / manifests.NAME, manifests.sealed(manifest))
    return manifest


def _cut(
    histories: StoreParts | HistoryTable, out: Path, manifest: Mapping[str, Any], catalog: Catalog, session: Any | None
) -> StoreParts | TableParts:
    """The histories in parts: of a store as they are, of a table once its events are in files."""
    if isinstance(histories, StoreParts):
        return histories
    folder = out / HISTORIES
    if (folder / STATE).is_file():
        state = read_json(folder / STATE)
    elif manifest["whole"] and all(part_file(out, number).is_file() for number in range(manifest["parts"])):
        state = {"parts": manifest["parts"], "columns": {}, "text_users": False}  # nothing is read again
    else:
        shutil.rmtree(folder, ignore_errors=True)
        state = histories.spill(folder, catalog, session)
        write_json(folder / STATE, state)
    unit = histories.columns.time_unit
    return TableParts(str(folder.absolute()), names=histories.names, fields=histories.fields, unit=unit, **state)


def _finish(out: Path, manifest: JsonObject, parts: int, counts: ListCounts) -> None:
    """Write into the manifest that the lists are whole, with their counts; remove
    the files of the histories."""
    sweep_folder(out / LISTS)
    shutil.rmtree(out / HISTORIES, ignore_errors=True)
    if not manifest["whole"]:
        write_json(out / manifests.NAME, manifests.sealed(manifest | {"whole": True, "parts": parts, **asdict(counts)}))
    if counts.popular:
        warnings.warn(
            f"{counts.popular:,} of {counts.users:,} histories hold no item that the model knows: they get the most "
            "popular items (empty='error' refuses them)",
            stacklevel=4,
        )
