"""The check of `benchmarks.prepare_impressions`: green as it is, red where parts change what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks import prepare_impressions as benchmark
from benchmarks.harness import Wrong
from fullrank.data.impressions.store import ImpressionStore


def test_the_check_is_green() -> None:
    benchmark.check()


def test_rows_that_are_lost_in_parts_are_noticed() -> None:
    def lossy(folder: Path, out: Path, schema: Any, parts: int | None) -> ImpressionStore:
        rows = pl.scan_parquet(folder).slice(parts or 0)
        return benchmark.prepare_impressions(rows, out, schema=schema, parts=parts, overwrite=True)

    with pytest.raises(Wrong, match="number of parts"):
        benchmark.check(lossy)
