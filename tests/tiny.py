"""What tests of the model side are made of: a small catalogue, padded batches, and a table of vectors to search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from discover import Pair, example, load, variations
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Queries
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store

ITEMS = 23
SETTINGS: dict[Pair, dict[str, Any]] = {("items", "features"): {"categorical": ("brand",), "numeric": ("price",)}}
"""Settings of the specs that cannot be built from their defaults."""


def catalog(size: int = ITEMS) -> Catalog:
    """Popularity falls like a power law and ends in items without events; brands and prices are missing at times.

    Up to 25 items have different semantic ids of three levels, and all have tokens of a title and a brand.
    """
    counts = [int(40 / (1 + i)) if i < size - 2 else 0 for i in range(size)]
    brand = [None if i % 5 == 4 else f"brand-{i % 3}" for i in range(size)]
    price = [None if i % 7 == 6 else 1.5 * i for i in range(size)]
    columns = {"item": np.arange(size), "item_id": [f"i{i}" for i in range(size)], "train_count": counts}
    codes = np.stack([np.arange(size) % 5, np.arange(size) // 5 % 5, np.arange(size) * 7 // 25 % 3], 1)
    semantic = {"codes": pl.Series(codes.astype(np.uint16), dtype=pl.Array(pl.UInt16, 3))}
    semantic["code_sizes"] = pl.Series([[5, 5, 3]] * size, dtype=pl.Array(pl.Int32, 3))
    return Catalog(pl.DataFrame(columns | {"brand": brand, "price": price} | semantic | _tokens(size)))


def _tokens(size: int) -> dict[str, pl.Series]:
    """Up to four tokens of 13 in the title, up to two in the brand; some items have none. No tokeniser made them."""
    title = [[1 + (i * k + k) % 12 for k in range(1, 1 + i % 5)] for i in range(size)]
    brand = [[1 + (i * 5 + k) % 12 for k in range(i % 3)] for i in range(size)]
    tokens = {"title_tokens": title, "brand_tokens": brand}
    found = {name: pl.Series(rows, dtype=pl.List(pl.Int32)) for name, rows in tokens.items()}
    return found | {"tokeniser_size": pl.Series([13] * size, dtype=pl.Int32)}


def padded(rows: Sequence[Sequence[int]], *, extra: int = 0, fill: int = 0, ids: Any = None, step: int = 0) -> Batch:
    """These histories, right-padded with item `fill`, and with `extra` more places.

    The times follow from the items, so a prefix keeps its own: gaps from none to half a year, and zeros in the padding.
    """
    width = max(len(row) for row in rows) + extra
    items = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    rows_ids = torch.arange(100, 100 + len(rows)) if ids is None else torch.as_tensor(ids)
    gaps = (3.0 ** (items % 16)).long() - 1
    times = torch.where(torch.arange(width) < lengths[:, None], 10**9 + gaps.cumsum(1), 0)
    return Batch(items, lengths, rows=rows_ids, times=times, seed=3, step=step)


def histories(lengths: Iterable[int], items: int = ITEMS, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, items, n).tolist() for n in lengths]


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


def shaken(module: nn.Module, scale: float = 0.3, seed: int = 1) -> nn.Module:
    """The module with every parameter drawn anew, large enough that no effect hides behind small starting values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return module


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
    return load(pair)(**SETTINGS[pair]) if pair in SETTINGS else example(load(pair))


def reachable(spec: Spec, changes: int = 2, *, numbers: bool = True) -> list[Spec]:
    """The spec and every one that differs from it in at most this many settings (but numbers, unless asked for)."""
    found, edge = {spec: None}, [spec]
    for _ in range(changes):
        edge = [other for one in edge for other in variations(one) if other not in found]
        edge = [other for other in edge if numbers or not _counts(spec, other)]
        found |= dict.fromkeys(edge)
    return list(found)


def _counts(a: Spec, b: Spec) -> bool:
    values = [getattr(b, key) for key in type(b).model_fields if getattr(a, key) != getattr(b, key)]
    return any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def built(specs: Iterable[Spec], *arguments: Any) -> Iterator[tuple[Spec, Any]]:
    """What these specs build, shaken, in evaluation mode; those whose settings do not suit the sizes are left out."""
    count = 0
    for spec in specs:
        try:
            torch.manual_seed(0)
            module = spec.build(*arguments)  # type: ignore[attr-defined]
        except UserError:
            continue
        count += 1
        yield spec, shaken(module).eval()
    assert count, "none of the specs could be built"


def close(a: Tensor, b: Tensor, tolerance: float = 2e-5) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance))
