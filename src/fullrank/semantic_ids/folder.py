"""A folder of codes: manifest.json, codes.parquet, codebooks.safetensors. Whole or absent, and checked when opened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from fullrank.core.files import JsonObject, jsonable, require_replaceable, whole_folder
from fullrank.core.parquet import read_parquet
from fullrank.core.tables import write_table
from fullrank.core.tensor_files import write_tensors
from fullrank.data import manifest as manifests
from fullrank.semantic_ids import Tensors

FORMAT, VERSION = "fullrank.codes", 1
TABLE, BOOKS = "codes.parquet", "codebooks.safetensors"
AGAIN = "encode the items again"
FORM = manifests.FolderFormat("folder of codes", "make one with fullrank encode", FORMAT, VERSION, AGAIN)
MOST_CODES = 65536
"""Codes of a level: what fits into 16 bits."""
Sizes = Annotated[list[Annotated[int, Field(strict=True, ge=1, le=MOST_CODES)]], Field(min_length=1)]
"""Codes of each level."""


def require_replaceable_codes(out: Path, *, overwrite: bool) -> None:
    """Raise `UserError` unless `out` is free for codes: not there, empty, or, with
    `overwrite`, a folder of codes."""
    manifests.require_outside_stores(out)
    files = {manifests.NAME, TABLE, BOOKS}
    require_replaceable(out, "folder of codes", is_codes, files.__contains__, overwrite=overwrite)


def is_codes(folder: Path) -> bool:
    """Whether a folder says that it holds codes (of any version)."""
    return manifests.format_of(folder) == FORMAT


def write_folder(
    out: Path, item_ids: pl.Series, codes: Int64[Tensor, "V K"], tensors: Tensors, facts: JsonObject
) -> None:
    """Write the folder, all or nothing; one of codes that is there is replaced. `facts` go into the manifest."""
    with whole_folder(out) as folder:
        table = pl.DataFrame({"item_id": item_ids, "codes": codes_column(codes)})
        write_table(table, folder / TABLE)
        write_tensors(folder / BOOKS, dict(tensors))
        files = manifests.describe_files(folder)
        manifests.write_manifest(folder, FORM, jsonable(facts), files)


def codes_column(codes: Int64[Tensor, "V K"]) -> pl.Series:
    """Codes as a column of arrays of K small numbers."""
    return pl.Series("codes", codes.numpy().astype(np.uint16), dtype=pl.Array(pl.UInt16, codes.shape[1]))


def read_folder(folder: Path, verify: bool | None) -> tuple[JsonObject, pl.Series, Int64[Tensor, "V K"]]:
    """(manifest, item ids, codes), all of it checked. Raises `UserError` for what is
    no codes, newer, or damaged."""
    manifest = manifests.read_header(folder, FORM)
    kinds = {
        "spec": dict,
        "counts": dict,
        "report": dict,
        "content": str,
        "item_ids": str,
        "files": dict,
        "sizes": Sizes,
    }
    manifests.require_keys(folder, manifest, kinds, AGAIN)
    sizes = manifest["sizes"]
    manifests.check_files(folder, manifest["files"], {TABLE, BOOKS}, {TABLE, BOOKS}, AGAIN)
    manifests.verify_hashes(folder, manifest, AGAIN, verify=verify)
    path = folder / TABLE
    frame = read_parquet(path, "the table of codes", rows=manifest["counts"].get("items", -1))
    if frame.columns != ["item_id", "codes"] or frame["codes"].dtype != pl.Array(pl.UInt16, len(sizes)):
        raise manifests.damaged_file(
            path, f"it must hold the columns item_id and codes ({len(sizes)} small numbers)", AGAIN
        )
    ids, cells = frame["item_id"], frame["codes"]
    if frame.is_empty() or not (ids.dtype == pl.String or ids.dtype.is_integer()):
        raise manifests.damaged_file(path, "its item ids must be whole numbers or strings of at least one item", AGAIN)
    if ids.null_count() or ids.n_unique() < len(ids):
        raise manifests.damaged_file(path, "an item is missing its id or stands there twice", AGAIN)
    if cells.null_count() or cells.explode().null_count():
        raise manifests.damaged_file(path, "an item lacks codes", AGAIN)
    codes = torch.from_numpy(cells.to_numpy().astype(np.int64).reshape(len(ids), len(sizes)))
    if (codes >= torch.tensor(sizes)).any():
        raise manifests.damaged_file(path, "it holds codes beyond the sizes of the levels", AGAIN)
    return manifest, ids, codes
