"""The check of `benchmarks.stores`: green as it is, red where an event is lost; and figures of a store in memory."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks import stores
from benchmarks.harness import Wrong
from fullrank.serving.stores import open_history_store
from fullrank.serving.stores.sqlite import SqliteStore


def test_the_check_is_green() -> None:
    stores.check()


def test_a_lost_event_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = SqliteStore._add
    monkeypatch.setattr(SqliteStore, "_add", lambda self, connection, rows: [*add(self, connection, rows[:-1]), True])
    with pytest.raises(Wrong, match="the store is wrong"):
        stores.check()


def test_figures() -> None:
    found = asyncio.run(stores.measured(open_history_store("memory:"), 64))
    assert found["events_per_second_64"] > 0 and found["add_p50_ms_1"] <= found["add_p99_ms_1"]
