"""Generated tables for golden records: events with times, items with titles and categories, vectors, impressions.

They are drawn here and not by `fullrank.data.sources`, so that a change of the library cannot change its own test data.
"""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

COLOURS = ("red", "green", "blue", "black", "white")
THINGS = ("chair", "lamp", "table", "shelf", "rug", "clock", "vase")
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = {
    "fields": [
        "user",
        {"name": "item", "min_count": 2},
        {"name": "hour", "kind": "categorical", "hash_buckets": 7},
        {"name": "age", "kind": "numeric"},
        {"name": "price", "kind": "numeric", "transform": "bucket", "buckets": 6},
        {"name": "views", "kind": "numeric", "transform": "log"},
        {"name": "tags", "kind": "bag"},
        {"name": "history", "kind": "sequence", "shares": "item", "max_length": 5},
    ],
    "group": "user",
    "split": {"kind": "random"},
}
"""Every kind of field that a schema has."""


def events(users: int, items: int, mean: int = 10, seed: int = 0) -> pl.DataFrame:
    """Users who prefer one colour and buy popular items; gaps from seconds to months, some at the same second."""
    rng = np.random.default_rng([seed, 1])
    rows = []
    attraction = 1 / (1 + np.arange(items)) ** 0.7
    for user in range(users):
        liked = np.where(np.arange(items) % len(COLOURS) == user % len(COLOURS), 6.0, 1.0)
        count = 5 + int(rng.integers(2 * (mean - 5) + 1))
        bought = rng.choice(items, count, p=attraction * liked / (attraction * liked).sum())
        gaps = np.floor(10 ** rng.uniform(-0.5, 6.5, count)).astype(np.int64)
        for item, second in zip(bought, gaps.cumsum(), strict=True):
            rows.append((f"u{user}", f"i{item}", START + timedelta(seconds=int(second))))
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def catalogue(items: int) -> pl.DataFrame:
    """Titles of two or three words, a category that the colour follows from, prices; some of each are missing."""
    numbers = range(items)
    return pl.DataFrame(
        {
            "item_id": [f"i{n}" for n in numbers],
            "title": [None if n % 19 == 18 else _title(n) for n in numbers],
            "category": [None if n % 17 == 16 else f"{COLOURS[n % len(COLOURS)]} goods" for n in numbers],
            "price": [None if n % 13 == 12 else 2.5 + 1.25 * (n * 7 % 23) for n in numbers],
        }
    )


def _title(number: int) -> str:
    size = ("", "small ", "large ")[number % 3]
    return f"{size}{COLOURS[number % len(COLOURS)]} {THINGS[number * 3 % len(THINGS)]}"


def vectors(items: int, width: int = 8, seed: int = 0) -> pl.DataFrame:
    """A vector for each item, in clusters by colour."""
    rng = np.random.default_rng([seed, 2])
    centres = rng.normal(size=(len(COLOURS), width)) * 2
    drawn = centres[np.arange(items) % len(COLOURS)] + rng.normal(size=(items, width))
    return pl.DataFrame({"item_id": [f"i{n}" for n in range(items)], "vector": drawn.astype(np.float32).tolist()})


def impressions(rows: int, seed: int = 0) -> pl.DataFrame:
    """Even users click even items, and more in the evening; of every field but the user some values are missing."""
    rng = np.random.default_rng([seed, 3])
    user, item, hour = rng.integers(20, size=rows), rng.integers(30, size=rows), rng.integers(24, size=rows)
    odds = np.where((user + item) % 2 == 0, 1.5, -1.5) + 0.05 * (hour - 12)
    age, price = rng.normal(40, 9, rows), rng.lognormal(2, 1, rows)
    gone = rng.random((rows, 4)) < 0.08
    several = [rng.integers(30, size=n) for n in rng.integers(0, 7, rows)]
    return pl.DataFrame(
        {
            "label": (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int64),
            "user": [f"u{n}" for n in user],
            "item": pl.Series([f"i{n}" for n in item]).set(pl.Series(gone[:, 0]), None),
            "hour": pl.Series(hour).set(pl.Series(gone[:, 1]), None),
            "age": pl.Series(age.round(2)).set(pl.Series(gone[:, 2]), None),
            "price": pl.Series(price.round(2)).set(pl.Series(gone[:, 3]), None),
            "views": rng.integers(0, 500, rows),
            "tags": [[f"t{n % 5}" for n in some[:3]] for some in several],
            "history": [[f"i{n}" for n in some] for some in several],
        }
    )


def people() -> pl.DataFrame:
    """What impressions say of users, a row for each."""
    return pl.DataFrame(
        {
            "user": [f"u{n}" for n in range(20)],
            "age": [None if n % 9 == 8 else 20.0 + n for n in range(20)],
            "history": [[f"i{n}", f"i{n + 3}"][: n % 3] for n in range(20)],
        }
    )


def goods(items: int) -> pl.DataFrame:
    """What impressions say of items, a row for each."""
    return pl.DataFrame(
        {
            "item": [f"i{n}" for n in range(items)],
            "price": [None if n % 7 == 6 else 1.5 * n for n in range(items)],
            "views": [10 * n for n in range(items)],
            "tags": [[f"t{n % 5}"][: n % 2] for n in range(items)],
        }
    )
