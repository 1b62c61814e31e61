"""Features of some histories as the tensors of a batch: one gather from each table for all of them, without padding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from fullrank.core.jagged import Jagged
from fullrank.data.batch import BatchFeatures, Fields
from fullrank.data.features import Encoded, FeatureRows, HistoryFeatures


def batch_features(known: HistoryFeatures | None, rows: Jagged, roles: Collection[str]) -> BatchFeatures:
    """What is known of the events of these rows, of their requests and of their users, of some roles.

    `known` has the tables of events beside `rows.values`, and a user and a request for each row; None: nothing is.
    """
    if known is None:
        return BatchFeatures()
    inside = np.arange(max(int(rows.lengths.max(initial=0)), 1)) < rows.lengths[:, None]
    events = FeatureRows(known.event, rows.places()) if known.event is not None else None
    requests = FeatureRows(known.request, rows.places()) if known.request is not None else None
    found = {"event": events, "request": requests, "user": known.user, "asked": known.asked}
    fields = {
        name: to_fields(one.table.take(one.rows), inside if name in ("event", "request") else None)
        for name, one in found.items()
        if one is not None and ("request" if name == "asked" else name) in roles
    }
    return BatchFeatures(**fields, asked_at=None if known.asked_at is None else torch.as_tensor(known.asked_at))


def to_fields(encoded: Encoded, inside: Bool[np.ndarray, "B T"] | None = None) -> Fields:
    """Encoded rows as tensors: a row each, or the places `inside` padded rows, where all others are missing."""

    def padded(values: np.ndarray, fill: Any = 0) -> torch.Tensor:
        if inside is None:
            return torch.from_numpy(values)
        whole = np.full((*inside.shape, *values.shape[1:]), fill, values.dtype)
        whole[inside] = values
        return torch.from_numpy(whole)

    missing = np.isnan(encoded.numeric)
    numbers = np.where(missing, np.float32(0), encoded.numeric)
    bags = tuple(padded(bag.padded().astype(np.int32, copy=False)) for bag in encoded.bags)
    return Fields(padded(encoded.categorical), padded(numbers), padded(missing, True), bags)
