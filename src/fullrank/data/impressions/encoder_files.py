"""A fitted encoder on disk: schema and fitted statistics as JSON, vocabularies as a table. No file is trusted.

A store of impressions keeps the JSON in its manifest, the run of a ranking model in `encoder.json`.
Both keep the values of their fields in `vocabulary.parquet`, in the order of their ids; a hashed
field has none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from fullrank.core.errors import UserError, brief
from fullrank.core.files import JsonObject, write_json
from fullrank.core.parquet import read_parquet
from fullrank.core.readers import missing_file
from fullrank.core.tables import write_table
from fullrank.data.impressions.encoding import FieldEncoder, Lookup, vocabulary_owner
from fullrank.data.impressions.numeric import Fitted
from fullrank.data.impressions.schema import FieldSet, Numeric, Schema
from fullrank.data.impressions.vocabulary import Hashed, Vocabulary
from fullrank.data.manifest import AGAIN, damaged_file

NAME = "encoder.json"
"""The JSON of a run."""
VOCABULARY = "vocabulary.parquet"
_VALUES: dict[str, Any] = {"field": pl.String, "value": pl.String}
_COUNTED: dict[str, Any] = {**_VALUES, "count": pl.Int64}
_MOST = 2**31 - 1  # ids are int32
_FITTED = {"standard": {"mean", "scale"}, "bucket": {"edges"}}
"""What is fitted for a transform of numbers; the others need nothing."""


def encoder_state(encoder: FieldEncoder[Any]) -> JsonObject:
    """Schema and fitted statistics as JSON holds them: what `restore_encoder` reads back."""
    return {"schema": encoder.schema.dump(), "fitted": encoder.fitted}


def write_encoder(folder: Path, encoder: FieldEncoder[Any], name: str = NAME) -> None:
    """Write an encoder for `restore_encoder`: JSON called `name`, and its vocabulary."""
    write_json(folder / name, encoder_state(encoder), indent=1)
    write_vocabulary(folder, vocabularies(encoder))


def write_vocabulary(folder: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """Write vocabulary.parquet: `value`, and `count` where known, of each field in id order."""
    frames = [table.select(pl.lit(name).alias("field"), *table.columns) for name, table in tables.items()]
    counted = all("count" in frame.columns for frame in frames)
    whole = pl.concat([pl.DataFrame(schema=_COUNTED if counted else _VALUES), *frames])
    write_table(whole, folder / VOCABULARY)


def vocabularies(encoder: FieldEncoder[Any]) -> dict[str, pl.DataFrame]:
    """The values of each field that has a vocabulary of its own, in the order of ids."""
    known = encoder.lookups.items()
    return {name: pl.DataFrame({"value": lookup.values}) for name, lookup in known if isinstance(lookup, Vocabulary)}


def restore_encoder(
    path: Path, tree: JsonObject, again: str = AGAIN, kind: type[FieldSet] = Schema
) -> FieldEncoder[Any]:
    """The fitted encoder of a folder.

    `tree` is its `encoder_state`, of a schema of this `kind`, as read from the JSON file `path`;
    the vocabulary lies beside that file. Raises `UserError` for anything that no fitted encoder
    says; `again` is what to do then (a clause).
    """
    for key in ("schema", "fitted"):
        if not isinstance(tree.get(key), dict):
            raise damaged_file(path, f"its {key!r} is {brief(tree.get(key), 80)}, no object", again)
    try:
        schema = kind.parse(tree["schema"])
        schema.declared  # noqa: B018  (raises where the kind of one is still to be found)
    except UserError as error:
        raise damaged_file(path, f"its schema cannot be read ({error})", again) from None
    fitted = _fitted(path, schema, tree["fitted"], again)
    encoder = FieldEncoder(schema, _lookups(path.parent / VOCABULARY, schema, again), fitted)
    for field in encoder.fields:
        if field.size > _MOST:
            raise damaged_file(path, f"the field {field.name!r} has {field.size:.3g} ids, more than {_MOST:,}", again)
    return encoder


def read_columns(path: Path, *allowed: dict[str, Any], rows: int | None = None, again: str = AGAIN) -> pl.DataFrame:
    """A Parquet file with one of the `allowed` sets of columns and types, and so many `rows` where that is known.

    Raises `UserError` for any other.
    """
    try:
        frame = read_parquet(path, "the table", rows=rows)
    except FileNotFoundError:
        raise missing_file(path, again) from None
    if dict(frame.schema) not in allowed:
        columns = brief(dict(frame.schema), 120)
        raise damaged_file(path, f"its columns are {columns}, expected {', '.join(allowed[0])}", again)
    return frame


def _lookups(path: Path, schema: FieldSet, again: str) -> dict[str, Lookup]:
    """The lookup of each field that shares no other's."""
    whole = read_columns(path, _COUNTED, _VALUES, again=again)
    values_of = {str(name[0]): part["value"] for name, part in whole.group_by("field", maintain_order=True)}
    lookups: dict[str, Lookup] = {}
    for field in schema.declared:
        if isinstance(field, Numeric) or vocabulary_owner(field) != field.name:
            continue
        if field.hash_buckets is not None:
            lookups[field.name] = Hashed(field.hash_buckets)
            continue
        values = values_of.pop(field.name, pl.Series("value", [], pl.String))
        if values.null_count():
            raise damaged_file(path, f"it holds a value of {field.name!r} that is null", again)
        if values.n_unique() < len(values):
            twice = values.filter(values.is_duplicated())[0]
            raise damaged_file(path, f"it holds the value {brief(twice, 80)} of {field.name!r} twice", again)
        lookups[field.name] = Vocabulary(values)
    if values_of:
        raise damaged_file(
            path, f"it holds values of {next(iter(values_of))!r}, which has no vocabulary in the schema", again
        )
    return lookups


def _fitted(path: Path, schema: FieldSet, tree: JsonObject, again: str) -> dict[str, Fitted]:
    """The statistics of the numeric fields that need any, each checked."""
    fitted: dict[str, Fitted] = {}
    for field in schema.declared:
        if not isinstance(field, Numeric) or field.transform not in _FITTED:
            continue
        entry = tree.get(field.name)
        numbers = None
        if isinstance(entry, dict) and set(entry) == _FITTED[field.transform]:
            numbers = entry["edges"] if field.transform == "bucket" else list(entry.values())
        if not isinstance(numbers, list) or not all(map(_finite, numbers)):
            needed = ", ".join(sorted(_FITTED[field.transform]))
            reason = f"what was fitted for {field.name!r} is {brief(entry, 80)}, not finite numbers for {needed}"
            raise damaged_file(path, reason, again)
        if field.transform == "bucket" and numbers != sorted(set(numbers)):
            raise damaged_file(path, f"the buckets of {field.name!r} are not in order: {brief(numbers, 80)}", again)
        fitted[field.name] = dict(tree[field.name])
    return fitted


def _finite(value: Any) -> bool:
    """Whether a value of JSON, which has whole numbers of any size, is a finite float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
