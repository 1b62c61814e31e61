"""The data that benchmarks run on: amazon-beauty, prepared once into the cache, and a tiny store for the checks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import CACHE, ROOT, Say
from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store


def beauty(given: Path | None, say: Say, *, cache: Path = CACHE) -> Store:
    """The store `given`, or amazon-beauty split by leave-one-out.

    The events are read from the folder in the environment variable FULLRANK_DATA, by default ``../shared/data`` beside
    the repository. Raises `UserError` where they are absent.
    """
    if given is not None:
        return Store.open(given)
    events = beauty_events()
    place = cache / "amazon-beauty"
    try:
        if place.stat().st_mtime >= events.stat().st_mtime:
            return Store.open(place)
    except (OSError, UserError):
        pass  # not there yet, or written by another version
    say(f"prepare {events}")
    return prepare(events, place, overwrite=True)


def beauty_events() -> Path:
    """The file of events of amazon-beauty. Raises `UserError` where it is absent."""
    root = Path(os.environ.get("FULLRANK_DATA") or ROOT.parent / "shared" / "data")
    events = root / "amazon-beauty" / "events.parquet"
    if not events.is_file():
        raise UserError(f"{events} is absent: set FULLRANK_DATA to the folder of the data, or pass --data STORE")
    return events


def tiny(users: int = 90, items: int = 211, longest: int = 70, *, seed: int = 0) -> Store:
    """A store in memory, split by leave-one-out: histories of 3 to `longest` events, so that some are cut at 50."""
    draw = np.random.default_rng(seed)
    lengths = 3 + (draw.random(users) ** 3 * (longest - 2)).astype(np.int64)
    lengths[:2] = 3, longest
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = draw.integers(0, items, offsets[-1]).astype(np.int32)
    bounds = np.stack([offsets[1:] - 2, offsets[1:] - 1], 1)
    trained = np.arange(offsets[-1]) < np.repeat(bounds[:, 0], lengths)
    counts = np.bincount(flat[trained], minlength=items)
    frame = pl.DataFrame({"item": np.arange(items), "item_id": np.arange(items) + 1, "train_count": counts})
    arrays = {"items": flat, "offsets": offsets, "bounds": bounds, "times": None, "weights": None, "types": None}
    return Store(Path("in memory"), {"fingerprint": "tiny"}, arrays, Catalog(frame))
