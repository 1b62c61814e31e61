"""Prepare a store of impressions in parts: each is a stretch of input rows, read twice, once to fit and once to encode.

What has to be known of all rows is added up: the counts of values and groups, exact moments of numbers, a sample for
quantiles that the row numbers pick, and rows before a moment (`PartTasks`). So whoever runs tasks on parts may run them
anywhere, and the store does not depend on how many parts there are. Memory holds the different values, and one chunk.

The work lies in ``OUT.preparing`` until it is done: a killed preparation goes on behind what was read and fitted, with
the parts that are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from fullrank import __version__
from fullrank.core.errors import UserError
from fullrank.core.files import NotWritten, reason_of, take_place, write_json
from fullrank.core.readers import read_json
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events import parts
from fullrank.data.events.part_work import PartRunner
from fullrank.data.events.stream import STATE, WORK, known_state
from fullrank.data.frames import Chunks, InputTable
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.fields import Schema
from fullrank.data.impressions.fingerprints import TABLES, fingerprint_of_parts
from fullrank.data.impressions.part_times import Borders, find_borders
from fullrank.data.impressions.part_work import FITTED, HASHES, SCRATCH, CutRows, PartRows, PartTasks
from fullrank.data.impressions.splits import TemporalSplit

Say = Callable[[str], None]


@dataclass(frozen=True)
class Preparation:
    """A preparation, as a later process knows it again."""

    schema: Schema
    typed: bool
    count: int
    engine: str
    identity: Any
    """What the table is known by (`stream.identity_of`)."""
    facts: dict[str, Any]
    """For the manifest: `input` and `notes`."""

    def dump(self) -> dict[str, Any]:
        found = {"schema": self.schema.dump(), "parts": self.count, "engine": self.engine, "input": self.identity}
        return found | {"typed": self.typed}


def cut_rows(source: InputTable, schema: Schema, count: int, scratch: Path, *, read: bool) -> CutRows:
    """The rows of a table for one process; what cannot be read from the middle lies in `scratch` once it was `read`."""
    return CutRows(Chunks(source, schema.columns, scratch, spooled=read), count)


def prepare_impression_parts(
    rows_in: Callable[..., PartRows], runner: PartRunner, place: Path, asked: Preparation, say: Say
) -> None:
    """Write a store of so many parts at `place`. The caller holds its lock, and has found that it may be written.

    `rows_in(scratch, read=)` gives the rows of the table; `read`: they lie in the folder, an earlier process put them.
    """
    work = place.with_name(place.name + WORK)
    try:
        read = known_state(work, asked.dump()) is not None
        if not read:
            shutil.rmtree(work, ignore_errors=True)
            (work / SCRATCH).mkdir(parents=True)
        rows = rows_in(work / SCRATCH, read=read)
        if rows.rows == 0:
            raise UserError(f"{rows.name} has no rows", code="empty-table")
        if read:
            say("go on with what was read before")
        write_json(work / STATE, asked.dump())
        tasks = PartTasks(work, rows, asked.schema, asked.typed)
        if not (work / SCRATCH / FITTED).is_file():
            _fit(tasks, asked, runner, say)
        fitted = read_json(work / SCRATCH / FITTED)
        say(f"encode and write {asked.count:,} parts")
        borders = None if fitted["borders"] is None else Borders(**_tuples(fitted["borders"]))
        runner.total(partial(tasks.write, borders=borders), range(asked.count))
        _write_whole(work, asked, fitted)
        shutil.rmtree(work / SCRATCH)
        (work / STATE).unlink()
        take_place(work, place)
    except OSError as error:
        raise NotWritten(place, reason_of(error), folder=True) from error


def _fit(tasks: PartTasks, asked: Preparation, runner: PartRunner, say: Say) -> None:
    """Leave in the folder of work what the parts are written by: vocabularies, groups, statistics, borders."""
    borders = _borders(tasks, asked, runner)
    say(f"fit {tasks.rows.rows:,} rows")
    fit = runner.total(partial(tasks.fit, borders=borders), range(asked.count))
    fit.check(tasks.rows.name)
    encoder, groups, work = fit.encoder(), fit.groups(), tasks.work
    encoder_files.write_vocabulary(work, fit.vocabularies())
    if groups is not None:
        write_table(pl.DataFrame({"value": groups}), work / TABLES[1])
    found = encoder_files.encoder_state(encoder) | {"counts": fit.counts()}
    write_json(work / SCRATCH / FITTED, found | {"borders": None if borders is None else asdict(borders)})


def _borders(tasks: PartTasks, asked: Preparation, runner: PartRunner) -> Borders | None:
    split, numbers = asked.schema.split, range(asked.count)
    if not isinstance(split, TemporalSplit):
        return None
    if split.moments is not None:
        return Borders.at(split.moments, asked.count)
    return find_borders(
        tasks.rows.rows,
        asked.count,
        split.shares,
        runner.total(tasks.span, numbers),
        lambda moments: runner.total(partial(tasks.before, moments=moments), numbers),
        lambda moments: runner.total(partial(tasks.equal, moments=moments, count=asked.count), numbers),
    )


def _write_whole(folder: Path, asked: Preparation, fitted: dict[str, Any]) -> None:
    """The manifest of a folder that holds all parts."""
    schema, names = asked.schema, [parts.part_folder(number) for number in range(asked.count)]
    own = [manifests.load_manifest(folder / name) for name in names]
    hashes = {int(block): value for one in own for block, value in one[HASHES].items()}
    encoder: FieldEncoder = encoder_files.restore_encoder(folder / manifests.NAME, fitted)
    files = manifests.hash_files(folder, [name for name in TABLES if (folder / name).is_file()])
    tree = {
        "format": manifests.IMPRESSION_PARTS,
        "format_version": parts.FORMAT_VERSION,
        "library_version": __version__,
        "schema": fitted["schema"],
        "fields": [asdict(field) for field in encoder.fields],
        "fitted": fitted["fitted"],
        "counts": fitted["counts"],
        **asked.facts,
        "fingerprint": fingerprint_of_parts(folder, files, schema, hashes),
        "parts": [
            {"folder": name, "content": one["content"], "counts": one["counts"]}
            for name, one in zip(names, own, strict=True)
        ],
        "content": manifests.content(files),
        "files": files,
    }
    write_json(folder / manifests.NAME, manifests.sealed(tree), indent=1, ensure_ascii=False)


def _tuples(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(tuple(one) if isinstance(one, list) else one for one in some) for name, some in tree.items()}
