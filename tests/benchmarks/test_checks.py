"""Each benchmark's check is green before anything is timed, and red where what is timed does something else."""

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from torch import Tensor

from benchmarks import backward, batch_inference, prepare, prepare_impressions, ray, safety, sharded, stores
from benchmarks.harness import ROOT, Wrong
from fullrank.data import manifest
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.parallel import Local, Runner
from fullrank.serving.stores import open_history_store
from fullrank.serving.stores.sqlite import SqliteStore

SLOW = {
    "batch_inference": "slow",
    "blend": "slow",
    "feature_cost": "slow",
    "ray": "cluster",
    "sharded": "cluster",
    "serve": "process",
    "predict": "process",
}
CHECKED = [file.stem for file in (ROOT / "benchmarks").glob("*.py") if "\ndef check(" in file.read_text()]
NAMES = [pytest.param(name, marks=getattr(pytest.mark, SLOW[name]) if name in SLOW else ()) for name in CHECKED]


@pytest.mark.parametrize("name", NAMES)
def test_the_check_is_green(name: str) -> None:
    import_module(f"benchmarks.{name}").check()


@pytest.mark.cluster
def test_another_training_is_noticed() -> None:
    with pytest.raises(Wrong, match="loss of two processes"):
        sharded.check(("training.lr=0.01",))


def test_hashes_that_are_not_compared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "check_hash", lambda *_: None)
    with pytest.raises(Wrong, match="not noticed"):
        safety.check()


def test_a_wrong_gradient_is_noticed() -> None:
    def squares(*given: Tensor) -> Tensor:
        return sum((x.square().sum() for x in given), given[0].new_zeros(()))

    with pytest.raises(Wrong, match="not those of the reference"):
        backward.check(squares)


@pytest.mark.slow
def test_lists_of_other_settings_are_noticed() -> None:
    def keeping(folder: Path, name: str, parts: int, **how: Any) -> Any:
        return batch_inference.lists(folder, name, parts, seen="keep", **how)

    with pytest.raises(Wrong, match="other lists than one call"):
        batch_inference.check(keeping)


def test_events_that_are_lost_in_parts_are_noticed() -> None:
    def lossy(folder: Path, out: Path, parts: int) -> Store:
        events = pl.scan_parquet(folder).filter(pl.col("item_id") != parts)
        return prepare.prepare(events, out, spec=prepare.SPEC, parts=parts, overwrite=True)

    with pytest.raises(Wrong, match="number of parts"):
        prepare.check(lossy)


def test_rows_that_are_lost_in_parts_are_noticed() -> None:
    def lossy(folder: Path, out: Path, schema: Any, parts: int | None) -> ImpressionStore:
        rows = pl.scan_parquet(folder).slice(parts or 0)
        return prepare_impressions.prepare_impressions(rows, out, schema=schema, parts=parts, overwrite=True)

    with pytest.raises(Wrong, match="number of parts"):
        prepare_impressions.check(lossy)


def test_a_lost_event_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = SqliteStore._insert
    monkeypatch.setattr(
        SqliteStore, "_insert", lambda self, connection, rows: [*insert(self, connection, rows[:-1]), True]
    )
    with pytest.raises(Wrong, match="the store is wrong"):
        stores.check()


def test_figures_of_a_history_store() -> None:
    found = asyncio.run(stores.measured(open_history_store("memory:"), 64))
    assert found["events_per_second_64"] > 0 and found["add_p50_ms_1"] <= found["add_p99_ms_1"]


def test_other_metrics_are_noticed() -> None:
    class Other(Runner):
        def __init__(self, jobs: int) -> None:
            pass

        def map(self, task: Any, items: Any) -> Any:
            yield from ((item, {**row, "metrics": {}}) for item, row in Local().map(task, items))

    ray.check(lambda jobs: Local())
    with pytest.raises(Wrong, match="other metrics"):
        ray.check(Other)
