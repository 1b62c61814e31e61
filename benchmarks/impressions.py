"""Generated impressions shaped like MovieLens-1M: its fields with as many values, users and items by popularity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.impressions.schema import AnyField, BagOf, Categorical, Schema, TemporalSplit
from fullrank.data.impressions.store import ImpressionStore

USERS, ITEMS, GENRES = 6040, 3706, 18
SIZES = {"gender": 2, "age": 7, "occupation": 21, "zip": 3439, "year": 81}
"""Values of what is known of a user (the first four) or of an item."""


def table(rows: int, *, seed: int = 0) -> pl.DataFrame:
    """`rows` impressions in order of time; a user and an item each have a taste, whose sum decides the label."""
    draw = np.random.default_rng(seed)
    user, item = _popular(draw, USERS, rows), _popular(draw, ITEMS, rows)
    odds = draw.normal(0, 1, USERS)[user] + draw.normal(0, 1, ITEMS)[item]
    columns = {"label": (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int8), "user": user, "item": item}
    for name, size in SIZES.items():
        known, of = (USERS, user) if name != "year" else (ITEMS, item)
        columns[name] = draw.integers(0, size, known)[of]
    names = [f"genre {n}" for n in range(GENRES)]
    lists = [draw.choice(names, 1 + draw.binomial(5, 0.2), replace=False).tolist() for _ in range(ITEMS)]
    seconds = 956_703_932 + np.arange(rows) * 90
    return pl.DataFrame(columns).with_columns(
        genre=pl.Series([some[0] for some in lists]).gather(item),
        genres=pl.Series(["|".join(some) for some in lists]).gather(item),
        hour=pl.Series(seconds // 3600 % 24),
        weekday=pl.Series(seconds // 86_400 % 7),
        time=pl.Series(seconds),
    )


def schema() -> Schema:
    """The fields in the order of `movielens_ctr`."""
    one = ["user", "item", *SIZES, "genre", "hour", "weekday"]
    fields: list[AnyField] = [Categorical(name=name) for name in one]
    fields.insert(8, BagOf(name="genres", separator="|", max_length=8))
    return Schema(fields=tuple(fields), group="user", time="time", split=TemporalSplit())


def prepared(rows: int, out: Path, *, seed: int = 0) -> ImpressionStore:
    """A store of them."""
    return prepare_impressions(table(rows, seed=seed), out, schema=schema())


def _popular(draw: np.random.Generator, size: int, rows: int) -> np.ndarray:
    """Values drawn with weights 1 / (rank + 50): some are a hundred times as frequent as others."""
    weights = 1 / (np.arange(size) + 50)
    return draw.choice(size, rows, p=weights / weights.sum())
