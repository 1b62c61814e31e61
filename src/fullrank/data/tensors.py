"""Arrays of impressions as the tensors that rankers read: bags padded, missing numbers 0 and marked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fullrank.batch import Bag, Impressions


def tensors(
    categorical: np.ndarray,
    numeric: np.ndarray,
    bags: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    labels: np.ndarray | None,
    groups: np.ndarray | None,
    rows: np.ndarray,
) -> Impressions:
    """A batch. `numeric` is NaN where missing; a bag is (ids row after row, how many each row has)."""
    missing = np.isnan(numeric)
    return Impressions(
        categorical=_tensor(categorical, np.int64),
        numeric=_tensor(np.where(missing, np.float32(0), numeric), np.float32),
        missing=_tensor(missing, np.bool_),
        bags=tuple(_padded(ids, lengths) for ids, lengths in bags),
        labels=None if labels is None else _tensor(labels, np.float32),
        rows=_tensor(rows, np.int64),
        groups=None if groups is None else _tensor(groups, np.int64),
    )


def _padded(ids: np.ndarray, lengths: np.ndarray) -> Bag:
    """Right-padded with 0 to the longest row; at least one place wide, so that pooling always has one to read."""
    width = max(int(lengths.max()), 1) if len(lengths) else 1
    table = np.zeros((len(lengths), width), np.int64)
    table[np.arange(width) < lengths[:, None]] = ids
    return Bag(_tensor(table, np.int64), _tensor(lengths, np.int64))


def _tensor(array: np.ndarray, dtype: type) -> Tensor:
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
