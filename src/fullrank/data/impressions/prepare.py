"""From a table of impressions to a store that rankers train on: schema, split, vocabularies, arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.files import replaceable, whole_folder
from fullrank.core.log import logger, shown_at
from fullrank.data.chunks import Chunks
from fullrank.data.events.manifest import is_store
from fullrank.data.frames import Source
from fullrank.data.impressions import manifest as manifests
from fullrank.data.impressions.fields import Schema
from fullrank.data.impressions.infer import infer, summary
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.impressions.write import write

log = logger(__name__)


def prepare_impressions(
    impressions: Any,
    out: str | Path,
    *,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    progress: bool = False,
    notes: Sequence[str] = (),
) -> ImpressionStore:
    """Write a store of impressions at `out`; one that is there is replaced at the end.

    `impressions` is a path (.parquet, .csv[.gz], .tsv[.gz], .jsonl; a folder of Parquet files) or a DataFrame of any
    engine that narwhals reads. `schema` is one, a mapping, or a YAML or JSON file; without it, it is inferred from
    names and types, and the decisions are printed to stderr. The table is read in chunks, twice: memory depends on the
    number of distinct values, not of rows. `notes` are kept in the manifest.
    Raises `UserError` with one sentence for whatever cannot be read as the schema says; `out` is then as it was.
    """
    place = Path(out)
    replaceable(place, "store of impressions", lambda folder: is_store(folder, "ranking"), manifests.is_own)
    level = shown_at(progress)

    def say(line: str) -> None:
        log.log(level, line)

    source = Source(impressions, "impressions")
    if schema is None:
        spec = infer(source)
        log.info(summary(spec))
    else:
        spec = Schema.read(schema) if isinstance(schema, str | Path) else Schema.parse(schema)
    for column in spec.columns:
        source.require(column, "correct the schema")
    facts = {"input": _name(impressions), "notes": list(notes)}
    with whole_folder(place) as folder:
        scratch = folder / "scratch"  # inside, so that a killed process leaves one folder, which the next one removes
        scratch.mkdir()
        chunks = Chunks(source, spec.columns, scratch)
        if chunks.rows == 0:
            raise UserError(f"{source.name} has no rows")
        write(folder, scratch, chunks, spec, source.typed, facts, say)
    store = ImpressionStore.open(place)
    say(f"wrote {str(place)!r}: {len(store):,} rows")
    return store


def _name(table: Any) -> str:
    if isinstance(table, (str, Path)):
        return Path(table).name
    return f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
