"""The manifest of a store of impressions, and the files that it may name: no file is trusted, none can run code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fullrank.core.errors import UserError
from fullrank.data.events import manifest as common
from fullrank.data.events.manifest import NAME, content, describe, is_count
from fullrank.data.impressions.fields import Schema

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "NAME",
    "content",
    "describe",
    "fingerprint",
    "is_own",
    "read",
    "shapes",
]

FORMAT = common.FORMATS["ranking"]
FORMAT_VERSION = 1
TABLES = ("vocabulary.parquet", "groups.parquet")
MAKE = "make one with fullrank prepare-impressions"


def shapes(
    rows: int, categorical: int, numeric: int, schema: Schema, bag_values: Sequence[int]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of every array of a store; the file is ``NAME.npy``. A schema without it has no file."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {"labels": ("|u1", (rows,)), "inputs": ("<i8", (rows,))}
    if categorical:
        found["categorical"] = ("<i4", (rows, categorical))
    if numeric:
        found["numeric"] = ("<f4", (rows, numeric))
    if schema.group is not None:
        found["groups"] = ("<i4", (rows,))
    if schema.time is not None:
        found["times"] = ("<i8", (rows,))
    for at, values in enumerate(bag_values):
        found[f"bag{at}_ids"] = ("<i4", (values,))
        found[f"bag{at}_offsets"] = ("<i8", (rows + 1,))
    return found


def fingerprint(folder: Path, files: Mapping[str, Mapping[str, Any]], schema: Schema) -> str:
    """SHA-256 of what a ranker can see: schema, vocabularies and arrays; neither engine nor file format enter."""
    state = hashlib.sha256(schema.to_json().encode())
    for name in sorted(files):
        if name.endswith(".npy"):
            state.update(f"{name} {files[name]['sha256']}\n".encode())
    for name in TABLES:
        if name in files:
            table = pl.read_parquet(folder / name)
            for column in table.columns:
                text = table[column].cast(pl.String)
                state.update(text.str.len_bytes().cast(pl.Int64).to_numpy().astype("<i8").tobytes())
                state.update(text.str.join("").item().encode())
    return state.hexdigest()


def read(folder: Path) -> tuple[dict[str, Any], Schema]:
    """The manifest, its structure checked, and its schema. Raises `UserError` for anything that is no such store."""
    if common.is_store(folder, "retrieval"):
        raise UserError(f"{str(folder)!r} is a store of events; rankers need one of impressions: {MAKE}")
    tree = common.header(folder, common.Form("store of impressions", "impressions", MAKE, FORMAT, FORMAT_VERSION))
    where = f"{NAME} of {str(folder)!r}"
    for key, kind in (("fingerprint", str), ("content", str), ("schema", dict), ("files", dict), ("fitted", dict),
                      ("fields", list), ("counts", dict)):  # fmt: skip
        if not isinstance(tree.get(key), kind):
            raise UserError(f"{where} lacks {key!r}")
    schema = Schema.parse(tree["schema"])
    _check_counts(tree["counts"], len(list(schema.several())), where)
    allowed = {*TABLES, *(f"{name}.npy" for name in shapes(0, 1, 1, schema, [0] * len(list(schema.several()))))}
    needed = {"vocabulary.parquet"} | ({"groups.parquet"} if schema.group is not None else set())
    common.check_files(folder, tree["files"], allowed, needed)
    return tree, schema


def is_own(name: str) -> bool:
    """Whether a file name is one that some store of impressions has."""
    arrays = {"labels", "inputs", "categorical", "numeric", "groups", "times"}
    return name in (NAME, *TABLES) or (
        name.endswith(".npy") and (name[:-4] in arrays or re.fullmatch(r"bag\d+_(ids|offsets)", name[:-4]) is not None)
    )


def _check_counts(counts: dict[str, Any], bags: int, where: str) -> None:
    parts, values = counts.get("parts"), counts.get("bag_values")
    sound = (
        is_count(counts.get("rows"))
        and isinstance(parts, dict)
        and isinstance(values, list)
        and len(values) == bags
        and all(is_count(value) for value in values)
        and list(parts) == ["train", "validation", "test"]
        and all(isinstance(part, dict) and is_count(part.get("rows")) for part in parts.values())
        and sum(part["rows"] for part in parts.values()) == counts["rows"]
    )
    if not sound:
        raise UserError(f"{where} has counts that do not fit together; prepare the data again")
