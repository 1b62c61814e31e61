"""What tests of the model side are made of: those of `fullrank.testing`, and the spec of a kind."""

import numpy as np
import polars as pl
import torch
from torch import Tensor

from discover import Pair, load
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog
from fullrank.testing.inputs import (
    ITEMS,
    Flat,
    built,
    catalog,
    close,
    example,
    histories,
    padded,
    questions,
    reachable,
    shaken,
    store,
)  # fmt: skip

__all__ = [
    "ITEMS", "Flat", "built", "catalog", "close", "coded_catalog", "drawn", "histories", "padded", "plain",
    "questions", "reachable", "shaken", "store", "with_codes",
]  # fmt: skip


def plain(pair: Pair) -> Spec:
    """The spec of a kind at its defaults (and the settings that it cannot do without)."""
    return example(load(pair))


def with_codes(items: Catalog, codes: np.ndarray, sizes: tuple[int, ...]) -> Catalog:
    """The items with these semantic ids, [V, K]."""
    codes = codes.astype(np.uint16)
    return Catalog(
        items.frame.with_columns(
            codes=pl.Series(codes, dtype=pl.Array(pl.UInt16, len(sizes))),
            code_sizes=pl.Series([sizes] * len(codes), dtype=pl.Array(pl.Int32, len(sizes))),
        )
    )


def coded_catalog(size: int, sizes: tuple[int, ...], same: int = 0) -> Catalog:
    """Items with codes drawn at random; the last `same` of them have the first one's."""
    rng = np.random.default_rng(3)
    codes = np.stack([rng.integers(0, number, size) for number in sizes], 1)
    codes[size - same :] = codes[0]
    return with_codes(catalog(size), codes, sizes)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers that are the same each time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
