"""Small runs that are served: trained once for all tests of a process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.run import Run
from serving.running import running

FIELDS = [
    "city", {"kind": "categorical", "name": "Place", "hash_buckets": 20}, {"kind": "numeric", "name": "age"},
    {"kind": "numeric", "name": "price", "transform": "bucket", "buckets": 4},
    {"kind": "bag", "name": "genres", "separator": "|"}, {"kind": "sequence", "name": "seen", "max_length": 5},
]  # fmt: skip
SMALL = ["model.dim=16", "training.max_epochs=1", "training.batch_size=64"]

HISTORY = ["i7", "i13", "i19"]
REQUESTS = [
    {"history": HISTORY, "k": 9},
    {"history": ["i8"], "k": 9, "exclude": ["i14", "i20"]},
    {"history": ["i9", "i3"], "k": 9, "filters": {"in_stock": True, "price": {"min": 3}}},
    {"history": ["i1", "i2"], "k": 9, "allow": [f"i{n}" for n in range(30)], "filters": {"in_stock": True}},
    {"history": ["i5"], "k": 9, "seen": "keep"},
    {"history": [], "k": 9, "filters": {"category": "soap"}},
    {"history": ["i4", "new"], "k": 120},
]
"""Requests to models of the shop, which may know an item `new`."""


@dataclass(frozen=True)
class Shop:
    """A store of a small shop whose items have titles, a price, a category and `in_stock`, and a run on it."""

    store: Store
    run: Run

    @property
    def ids(self) -> list:
        return self.run.catalog.ids.to_list()


def shop_events(users: int = 150, items: int = 120, seed: int = 0) -> tuple:
    """Events and items of a shop of 6 categories; who buys in one goes on to the next item in it, most of the time."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        at, many = int(draw.integers(0, items)), int(draw.integers(4, 11))
        for step in range(many):
            rows.append((f"u{user}", f"i{at}", 1_700_000_000 + 1000 * step + user))
            at = (at + 6) % items if draw.random() < 0.9 else int(draw.integers(0, items))
    events = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    kinds = ["soap", "cream", "brush", "oil", "mask", "comb"]
    scents = ["rose", "mint", "lemon", "pine", "plain"]
    table = pl.DataFrame({
        "item_id": [f"i{n}" for n in range(items)],
        "title": [f"{scents[n // 6 % 5].title()} {kinds[n % 6]} number {n}" for n in range(items)],
        "category": [kinds[n % 6] for n in range(items)],
        "price": [float(n % 17) for n in range(items)],
        "in_stock": [n % 5 != 0 for n in range(items)],
    })  # fmt: skip
    return events, table


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    place = tmp_path_factory.mktemp("shop")
    events, items = shop_events()
    store = fr.prepare(events, place / "store", items=items)
    return Shop(store, fr.train("sasrec", store, place / "first", set=SMALL))


@pytest.fixture(scope="module")
def service(shop: Shop) -> Iterator:
    """A service of the shop's run, shared by the tests of a file; each uses users and items of its own."""
    with running(run=str(shop.run.path)) as client:
        yield client


def impressions(rows: int = 600) -> pl.DataFrame:
    """Clicks that follow from the city and the age; columns of every kind, some values missing."""
    draw = np.random.default_rng(0)
    cities, ages = draw.integers(0, 8, rows), draw.integers(18, 80, rows)
    genres = ["drama", "comedy", "noir", "war"]
    return pl.DataFrame({
        "city": [None if n == 7 else int(n) for n in cities], "Place": [f"p{n}" for n in draw.integers(0, 40, rows)],
        "age": [None if n > 75 else float(n) for n in ages], "price": draw.random(rows) * 100,
        "genres": ["|".join(draw.choice(genres, n, replace=False)) for n in draw.integers(0, 4, rows)],
        "seen": [[int(one) for one in draw.integers(0, 9, n)] for n in draw.integers(0, 8, rows)],
        "label": ((cities % 2 == 0) & (ages > 40)).astype(int) ^ (draw.random(rows) < 0.1),
    })  # fmt: skip


@pytest.fixture(scope="session")
def click_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run `may` of a ranking model on such clicks."""
    place = tmp_path_factory.mktemp("clicks")
    store = fr.prepare_impressions(impressions(), place / "store", schema={"fields": FIELDS})
    settings = ["training.max_epochs=2", "model.embedding.dim=4", "model.embedding.std=0.3"]
    fr.train("dcnv2", store, place / "runs" / "may", set=settings, device="cpu", progress=False)
    return place / "runs" / "may"
