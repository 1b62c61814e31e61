"""Small runs that are served: trained once for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.serving.client import Client
from serving.running import running

SMALL = ["model.dim=16", "training.max_epochs=1", "training.batch_size=64"]


@dataclass(frozen=True)
class Shop:
    """A store of a small shop whose items have titles, a price, a category and `in_stock`, and a run on it."""

    store: Store
    run: Run

    @property
    def ids(self) -> list[str]:
        found: list[str] = self.run.catalog.ids.to_list()
        return found


def shop_events(users: int = 150, items: int = 120, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
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
    place: Path = tmp_path_factory.mktemp("shop")
    events, items = shop_events()
    store = fr.prepare(events, place / "store", items=items)
    return Shop(store, fr.train("sasrec", store, place / "first", set=SMALL))


@pytest.fixture(scope="module")
def service(shop: Shop) -> Iterator[Client]:
    """A service of the shop's run, shared by the tests of a file; each uses users and items of its own."""
    with running(run=str(shop.run.path)) as client:
        yield client
