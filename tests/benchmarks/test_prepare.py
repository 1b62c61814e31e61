"""The check of `benchmarks.prepare`: green as it is, red where parts change what a store holds."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from benchmarks import prepare
from benchmarks.harness import Wrong
from fullrank.data.events.store import Store


def test_the_check_is_green() -> None:
    prepare.check()


def test_events_that_are_lost_in_parts_are_noticed() -> None:
    def lossy(folder: Path, out: Path, parts: int) -> Store:
        events = pl.scan_parquet(folder).filter(pl.col("item_id") != parts)
        return prepare.prepare(events, out, spec=prepare.SPEC, parts=parts, overwrite=True)

    with pytest.raises(Wrong, match="number of parts"):
        prepare.check(lossy)
