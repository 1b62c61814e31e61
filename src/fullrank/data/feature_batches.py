"""Features of some histories as the tensors of a batch: one gather from each table for all of them, without padding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from fullrank.core.jagged import Jagged
from fullrank.data.batch import BatchFeatures, Fields
from fullrank.data.features import Encoded, HistoryFeatures


def batch_features(known: HistoryFeatures | None, rows: Jagged, roles: Collection[str]) -> BatchFeatures:
    """What is known of the events of these rows, of their requests and of their users, of some roles.

    `known` has the tables of events beside `rows.values`, and a user and a request for each row; None: nothing is.
    """
    if known is None:
        return BatchFeatures()
    places, lengths = rows.places(), rows.lengths
    fields = {
        role: to_fields(table.take(places), lengths)
        for role, table in (("event", known.event), ("request", known.request))
        if table is not None and role in roles
    } | {
        name: to_fields(one.table.take(one.rows))
        for name, role, one in (("user", "user", known.user), ("asked", "request", known.asked))
        if one is not None and role in roles
    }
    return BatchFeatures(**fields, asked_at=None if known.asked_at is None else torch.as_tensor(known.asked_at))


def to_fields(encoded: Encoded, lengths: Int[np.ndarray, "B"] | None = None) -> Fields:
    """Encoded rows as tensors: a row each, or padded rows of so many each, where all other places are missing."""

    def padded(values: np.ndarray, fill: Any = 0) -> torch.Tensor:
        return torch.from_numpy(values if lengths is None else Jagged.from_lengths(values, lengths).padded(fill=fill))

    missing = np.isnan(encoded.numeric)
    numbers = np.where(missing, np.float32(0), encoded.numeric)
    bags = tuple(padded(bag.padded().astype(np.int32, copy=False)) for bag in encoded.bags)
    return Fields(padded(encoded.categorical), padded(numbers), padded(missing, True), bags)
