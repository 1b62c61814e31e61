"""What tests of the model side are made of: a small catalogue, padded batches, and a table of vectors to search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from discover import Pair, load
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Queries
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.testing.inputs import (
    ITEMS,
    built,
    catalog,
    close,
    example,
    histories,
    padded,
    reachable,
    shaken,
)  # fmt: skip

__all__ = [
    "ITEMS", "Flat", "built", "catalog", "close", "histories", "padded", "plain", "questions", "reachable", "shaken",
    "store",
]  # fmt: skip


def store(rows: Sequence[Sequence[int]], items: int = ITEMS, *, times: Sequence[Sequence[int]] | None = None) -> Store:
    """A store in memory, split by leave-one-out: a row's last event is the test target, the one before validation's."""
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    bounds = np.stack([np.maximum(offsets[1:] - 2, offsets[:-1]), np.maximum(offsets[1:] - 1, offsets[:-1])], 1)
    trained = [item for row in rows for item in row[:-2]]
    counts = np.bincount(np.array(trained, dtype=np.int64), minlength=items)
    flat = np.array([item for row in rows for item in row], dtype=np.int32)
    clock = None if times is None else np.array([t for row in times for t in row], dtype=np.int64)
    arrays = {"items": flat, "offsets": offsets, "bounds": bounds, "times": clock, "weights": None, "types": None}
    frame = catalog(items).frame.with_columns(train_count=pl.Series(counts))
    return Store(Path("in memory"), {"fingerprint": "tiny"}, arrays, Catalog(frame))


class Flat:
    """A catalogue of given vectors and training counts."""

    def __init__(self, vectors: Tensor, counts: Tensor | None = None):
        self.vectors = vectors
        self.counts = torch.ones(len(vectors)) if counts is None else counts.float()

    @property
    def size(self) -> int:
        return len(self.vectors)

    def embed(self, ids: Tensor) -> Tensor:
        return self.vectors[ids]

    def all(self) -> Tensor:
        return self.vectors

    def log_q(self, ids: Tensor) -> Tensor:
        return (self.counts / self.counts.sum()).log()[ids]


def questions(batch: Batch, *, items: int = ITEMS, dim: int = 6, seed: int = 0, temperature: float = 1.0) -> Queries:
    """A query for every event but each row's first, against random vectors with power-law counts."""
    generator = torch.Generator().manual_seed(seed)
    rows, positions = batch.valid[:, 1:].nonzero(as_tuple=True)
    table = torch.randn(items, dim, generator=generator).requires_grad_()
    places = torch.randn(1000, 64, dim, generator=generator)  # a query's vector is a function of its place alone
    assert batch.rows is not None
    vectors = places[batch.rows[rows] % 1000, positions].requires_grad_()
    counts = 100 / torch.arange(1, items + 1)
    return Queries(
        "ahead_1", vectors, batch.items[rows, positions + 1], Flat(table, counts), rows, positions, temperature
    )


def plain(pair: Pair) -> Spec:
    """The spec of a kind at its defaults (and the settings that it cannot do without)."""
    return example(load(pair))
