"""A ranker's fields for pairs (user, item): each side is encoded once, and a pair is a gather of both.

The encoding is the ranker's own (`data.encoding`): what `predict` gives for the joined table of pairs is what is given
here, an unknown value is id 1 and a missing one id 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from fullrank.cascade.tables import constant
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Impressions
from fullrank.data.impressions.encoding import FieldEncoder, to_tensors


@dataclass(frozen=True)
class Side:
    """Some of the fields for N users or N items; places are those among the ranker's fields of that kind."""

    categorical: Int[np.ndarray, "N c"]
    categorical_at: list[int]
    numeric: Float[np.ndarray, "N n"]
    numeric_at: list[int]
    bags: dict[int, Jagged]
    """Bag number -> the ids of each row."""


def encoded(encoder: FieldEncoder, columns: Sequence[pl.Series], rows: int, what: str) -> Side:
    """The fields that these columns hold, of `rows` rows. Raises `UserError` for values that the schema refuses."""
    own = {column.name: column for column in columns}
    names = [field.name for field in encoder.schema.fields]
    frame = pl.DataFrame([own[name] if name in own else constant(name, None, rows) for name in names])
    found = encoder.encode(frame, what)
    columns_at = [at for at, field in enumerate(encoder.categorical) if field.name in own]
    numbers_at = [at for at, field in enumerate(encoder.numeric) if field.name in own]
    bags = {at: bag for at, bag in enumerate(found.bags) if encoder.several[at].name in own}
    return Side(found.categorical[:, columns_at], columns_at, found.numeric[:, numbers_at], numbers_at, bags)


@dataclass(frozen=True)
class Pairs:
    """All fields of any user with any item."""

    encoder: FieldEncoder
    users: Side
    items: Side

    def batch(self, users: Int[np.ndarray, "R"], items: Int[np.ndarray, "R"]) -> Impressions:
        """The impressions of user users[r] and item items[r], as rows of the two sides."""
        categorical = np.zeros((len(users), len(self.encoder.categorical)), np.int32)
        numeric = np.full((len(users), len(self.encoder.numeric)), np.nan, np.float32)
        without = Jagged.from_lengths(np.zeros(0, np.int32), np.zeros(len(users), np.int64))
        bags = [without] * len(self.encoder.several)
        for side, rows in ((self.users, users), (self.items, items)):
            categorical[:, side.categorical_at] = side.categorical[rows]
            numeric[:, side.numeric_at] = side.numeric[rows]
            for number, bag in side.bags.items():
                bags[number] = bag.take(rows)
        return to_tensors(categorical, numeric, bags, labels=None, groups=None, rows=np.arange(len(users)))
