"""Generated data of the GPU benchmark: histories with times, impressions, and a marketplace with something to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from benchmarks import impressions as clicks
from benchmarks.gpu.device import Where
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.sources.planted import Planted

USERS, LONGEST, ITEMS = 4000, 1100, 50_000


def histories(out: Path, where: Where) -> Store:
    """Histories of popular items, of up to `LONGEST` events, for steps whose weights do not matter."""
    users, longest, items = where.of(USERS, 40), where.of(LONGEST, 30), where.of(ITEMS, 90)
    draw = np.random.default_rng(0)
    lengths = 5 + (draw.random(users) * (longest - 5)).astype(np.int64)
    events = int(lengths.sum())
    item = (items ** draw.random(events)).astype(np.int64) - 1
    frame = pl.DataFrame(
        {"user_id": np.repeat(np.arange(users), lengths), "item_id": item, "timestamp": np.arange(events) * 60}
    )
    return prepare(frame, out)


def impressions(out: Path, where: Where) -> ImpressionStore:
    return clicks.prepared(where.of(300_000, 600), out)


def market(out: Path, where: Where) -> Store:
    """The planted marketplace, whose next purchases can be learnt."""
    tables = Planted(users=where.of(20_000, 150), items=where.of(2000, 60), events_per_user=where.of(20, 10)).read()
    return prepare(tables.events, out, items=tables.items)
