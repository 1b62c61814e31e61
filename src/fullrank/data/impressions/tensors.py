"""Arrays of impressions as the tensors that rankers read: bags padded, missing numbers 0 and marked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.data.batch import Bag, Impressions


def tensors(
    categorical: np.ndarray,
    numeric: np.ndarray,
    bags: Sequence[Jagged],
    *,
    labels: np.ndarray | None,
    groups: np.ndarray | None,
    rows: np.ndarray,
) -> Impressions:
    """A batch. `numeric` is NaN where missing; a row of a bag is the ids of one impression."""
    missing = np.isnan(numeric)
    return Impressions(
        categorical=_tensor(categorical, np.int64),
        numeric=_tensor(np.where(missing, np.float32(0), numeric), np.float32),
        missing=_tensor(missing, np.bool_),
        bags=tuple(Bag(_tensor(bag.padded(), np.int64), _tensor(bag.lengths, np.int64)) for bag in bags),
        labels=None if labels is None else _tensor(labels, np.float32),
        rows=_tensor(rows, np.int64),
        groups=None if groups is None else _tensor(groups, np.int64),
    )


def _tensor(array: np.ndarray, dtype: type) -> Tensor:
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))
