"""Vectors that are there already: of your own, in a table, or several sources side by side."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from pydantic import Field

from fullrank.core.constraints import MOST_ENTRIES, MOST_FACTOR
from fullrank.core.errors import UserError
from fullrank.core.log import Tell
from fullrank.data import frames
from fullrank.data.events.catalog import Catalog
from fullrank.data.manifest import sha256_file
from fullrank.data.values import refuse
from fullrank.semantic_ids.vectors import Vectors, VectorsSpec, require_known
from fullrank.semantic_ids.vectors.text import TextVectors


class FileVectors(VectorsSpec):
    """Vectors of your own, from a table with a row for each item: any model, any modality.

    The numbers stand in one column of lists, or in a column each. Rows of items that the catalogue
    does not have are counted and left out; items without a row (or with a null in it) have no vector.
    """

    kind: Literal["file"] = "file"
    path: str
    """A Parquet (or CSV, JSONL) file."""
    item: str = "item_id"
    """The file's column of item ids."""
    columns: tuple[str, ...] = ()
    """One column of lists of numbers, or several of numbers; empty: the only column of lists, else all of numbers."""

    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        """Raises `UserError` for a file that is not there or holds no vectors of these items."""
        source = frames.InputTable(self.path, "vectors")
        for name in (self.item, *self.columns):
            source.require(name, f"name it with vectors.{'item' if name == self.item else 'columns'}")
        frame = source.read([self.item, *self.columns] if self.columns else source.columns)
        frame = source.infer(frame, keep_text=self.item)
        ids = source.ids(frame, self.item, text=catalog.ids.dtype == pl.String)
        refuse(ids.is_duplicated(), ids, source.name, "repeated ids", code="item-ids-not-unique")
        numbers = _matrix(frame.drop(self.item), self.columns, source.name)
        rows = catalog.lookup(ids)
        here = (rows >= 0) & np.isfinite(numbers).all(1)
        require_known(here, f"the {catalog.size:,} items", f"{source.name} has {len(ids):,} rows")
        matrix, known = np.zeros((catalog.size, numbers.shape[1]), np.float32), np.zeros(catalog.size, bool)
        matrix[rows[here]], known[rows[here]] = numbers[here], True
        tell("vectors")(int(here.sum()), catalog.size)
        path = Path(self.path)
        fingerprint = sha256_file(path) if path.is_file() else "folder"
        facts = {
            "kind": "file",
            "file": path.name,
            "width": numbers.shape[1],
            "fingerprint": fingerprint,
            "rows_of_other_items": int((rows < 0).sum()),
        }
        return Vectors(torch.from_numpy(matrix), torch.from_numpy(known), facts)


def _matrix(frame: pl.DataFrame, chosen: tuple[str, ...], name: str) -> np.ndarray:
    """[n, D] float32; NaN where a row has no vector."""
    names = list(chosen) or frame.columns
    lists = [n for n in names if isinstance(frame[n].dtype, (pl.List, pl.Array))]
    plain = [n for n in names if frame[n].dtype.is_numeric()]
    if len(lists) == 1 and len(chosen) <= 1:
        return _rows(frame[lists[0]], name)
    if lists or not plain or len(plain) < len(chosen):
        columns = ", ".join(f"{n} ({frame[n].dtype})" for n in names) or "none"
        raise UserError(
            f"{name}: name one column of lists of numbers, or columns of numbers, with vectors.columns "
            f"(found: {columns})",
            code="no-vector-columns",
        )
    return frame.select(pl.col(plain).cast(pl.Float32).fill_null(float("nan"))).to_numpy()


def _rows(column: pl.Series, name: str) -> np.ndarray:
    """[n, D] of a column of lists; NaN where a list or a number is null."""
    lists = column.cast(pl.List(pl.Float32))
    sizes = lists.drop_nulls().list.len().unique().to_list()
    if len(sizes) != 1 or sizes[0] == 0:
        raise UserError(
            f"column {column.name!r} of {name} must hold lists of one length, not of {sizes[:5]}",
            code="lists-of-unequal-length",
        )
    matrix = np.full((len(column), sizes[0]), np.nan, np.float32)
    numbers = lists.drop_nulls().explode().fill_null(float("nan")).to_numpy()
    matrix[lists.is_not_null().to_numpy()] = numbers.reshape(-1, sizes[0])
    return matrix


Part = Annotated[TextVectors | FileVectors, Field(discriminator="kind")]


class JoinedVectors(VectorsSpec):
    """Vectors of several sources side by side, such as text and what a recommender learned, for any learner of codes.

    Each part is scaled to length one before it is joined (times its weight), so that none rules by
    its scale; an item's vector depends on itself alone, and a new item's is made as the old ones
    were. A part that is not known of an item is zeros.
    """

    kind: Literal["joined"] = "joined"
    parts: tuple[Part, ...] = Field((TextVectors(),), min_length=1, max_length=MOST_ENTRIES)
    """The sources: mappings with kind `text` or `file`."""
    weights: tuple[Annotated[float, Field(gt=0, le=MOST_FACTOR)], ...] = Field((), max_length=MOST_ENTRIES)
    """Length of each part; empty: one."""

    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        """Raises `UserError` where a part cannot be had, or there are not as many weights as parts."""
        if self.weights and len(self.weights) != len(self.parts):
            raise UserError(
                f"joined has {len(self.parts)} parts and {len(self.weights)} weights; give each part a weight, or none",
                code="weights-not-of-parts",
            )
        parts = [part.read(catalog, cache, tell) for part in self.parts]
        weights = self.weights or (1.0,) * len(parts)
        matrix = torch.cat([w * F.normalize(part.matrix, dim=1) for part, w in zip(parts, weights, strict=True)], 1)
        known = torch.stack([part.known for part in parts]).any(0)
        marks = [[part.facts.get("fingerprint"), weight] for part, weight in zip(parts, weights, strict=True)]
        facts = {
            "kind": "joined",
            "width": matrix.shape[1],
            "parts": [part.facts for part in parts],
            "fingerprint": hashlib.sha256(repr(marks).encode()).hexdigest(),
            "rows_of_other_items": sum(part.facts.get("rows_of_other_items", 0) for part in parts),
        }
        return Vectors(matrix, known, facts)
