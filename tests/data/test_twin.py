"""`prepare` against a slow twin of dictionaries and loops, on every engine, at odd sizes and with many ties."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fullrank.core.errors import UserError
from fullrank.data.events.prepare import Columns, Prepare, prepare
from fullrank.data.events.store import Store

Row = dict[str, Any]


def _duckdb(frame: pl.DataFrame) -> Any:
    connection = duckdb.connect()
    connection.register("events", frame.to_arrow())
    return connection.sql("select * from events")


ENGINES = {
    "polars": lambda frame: frame,
    "lazy": lambda frame: frame.lazy(),
    "pandas": lambda frame: frame.to_pandas(),
    "arrow": lambda frame: frame.to_arrow(),
    "duckdb": _duckdb,
}

COLUMNS = Columns(rating="rating", type="type", weight="weight")


def slow_filters(rows: list, spec: Prepare) -> list:
    """The filters, read off their definitions. Rows come back in chronological order."""
    if spec.columns.time is not None:
        rows = sorted(rows, key=lambda row: row["timestamp"])
    if spec.event_types is not None:
        rows = [row for row in rows if row["type"] in spec.event_types]
    if spec.min_rating is not None:
        rows = [row for row in rows if row["rating"] >= spec.min_rating]
    if spec.duplicates != "keep":
        chosen = {}
        for at, row in enumerate(rows):
            pair = (row["user_id"], row["item_id"])
            if spec.duplicates == "last" or pair not in chosen:
                chosen[pair] = at
        rows = [rows[at] for at in sorted(chosen.values())]
    per_user, per_item = spec.per_user_and_item
    while True:
        users, items = Counter(r["user_id"] for r in rows), Counter(r["item_id"] for r in rows)
        kept = [r for r in rows if users[r["user_id"]] >= per_user and items[r["item_id"]] >= per_item]
        if len(kept) == len(rows):
            return rows
        rows = kept


def slow_split(rows: list, spec: Prepare) -> dict:
    """Train, validation and test rows of each user."""
    histories = {}
    for row in rows:
        histories.setdefault(row["user_id"], []).append(row)
    if spec.split.kind == "leave_one_out":
        return {u: (h[:-2], h[-2:-1], h[-1:]) if len(h) >= 3 else (h, [], []) for u, h in histories.items()}
    times = sorted(row["timestamp"] for row in rows)
    first, second = (times[int(q * len(times))] for q in (spec.split.validation_from, spec.split.test_from))
    return {
        user: (
            [r for r in h if r["timestamp"] < first],
            [r for r in h if first <= r["timestamp"] < second],
            [r for r in h if r["timestamp"] >= second],
        )
        for user, h in histories.items()
    }


def read_back(store: Store) -> dict:
    """A store's events under external ids."""
    items, users = store.catalog.ids.to_list(), store.user_ids.to_list()

    def rows(user: int, low: int, high: int) -> list:
        return [
            {
                "user_id": users[user],
                "item_id": items[store.items[at]],
                "timestamp": None if store.times is None else int(store.times[at]),
                "weight": float(store.weights[at]),
                "type": store.type_names[store.types[at]],
            }
            for at in range(low, high)
        ]

    edges = np.column_stack([store.offsets[:-1], store.bounds, store.offsets[1:]]).tolist()
    return {users[u]: (rows(u, a, b), rows(u, b, c), rows(u, c, d)) for u, (a, b, c, d) in enumerate(edges)}


def same(store: Store, expected: dict, timed: bool) -> bool:
    shown = ("user_id", "item_id", "timestamp", "weight", "type")
    want = {
        user: tuple([{k: (r[k] if k != "timestamp" or timed else None) for k in shown} for r in part] for part in parts)
        for user, parts in expected.items()
    }
    return read_back(store) == want


@st.composite
def tables(draw: st.DrawFn) -> pl.DataFrame:
    size = draw(st.integers(1, 61))
    users, items, span = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 12))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    strings = draw(st.booleans())
    ids = random.integers(-3, users, size), random.integers(0, items, size) * 7
    return pl.DataFrame(
        {
            "timestamp": random.integers(-5, span, size),
            "item_id": [f"é{i}" for i in ids[1]] if strings else ids[1].astype(np.int32),
            "user_id": ids[0],
            "rating": random.integers(1, 6, size) / 2,
            "weight": random.integers(0, 5, size) / 4,
            "type": [("view", "cart", "buy")[i] for i in random.integers(0, 3, size)],
        }
    )


GLOBAL = {"kind": "global_time", "validation_from": 0.5, "test_from": 0.7}


@st.composite
def specs(draw: st.DrawFn) -> Prepare:
    return Prepare(
        columns=COLUMNS.model_copy(update={"time": draw(st.sampled_from(["timestamp", "timestamp", None]))}),
        event_types=draw(st.sampled_from([None, ("buy", "view")])),
        min_rating=draw(st.sampled_from([None, 1.5])),
        duplicates=draw(st.sampled_from(["keep", "first", "last"])),
        k_core=draw(st.sampled_from([0, 2, 3, (2, 1), (1, 3)])),
        split=draw(st.sampled_from(["leave_one_out", GLOBAL])),
    )


@pytest.mark.parametrize("engine", ENGINES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(frame=tables(), spec=specs())
def test_equals_the_slow_twin(engine: str, tmp_path: Path, frame: pl.DataFrame, spec: Prepare) -> None:
    rows = slow_filters(frame.to_dicts(), spec)
    try:
        store = prepare(ENGINES[engine](frame), tmp_path / "store", spec=spec, overwrite=True)
    except UserError as error:
        message = str(error)
        if not rows:
            assert "leaves none of" in message or "unknown event type" in message
        elif spec.event_types is not None and "unknown event type" in message:
            assert not set(spec.event_types) <= set(frame["type"])
        else:  # global time without times, or with one part empty
            assert (spec.split.kind == "global_time" and "global_time" in message) or "must begin later" in message
        return
    assert same(store, slow_split(rows, spec), spec.columns.time is not None)
    assert store.manifest["counts"].items() <= store.manifest["filters"][-1].items()
    assert store.num_events == len(rows)


def test_engines_agree_on_the_fingerprint(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    frame = pl.DataFrame(
        {"user_id": random.integers(0, 50, 997), "item_id": random.integers(0, 90, 997), "timestamp": [1] * 997}
    )
    prints = {name: prepare(make(frame), tmp_path / name).fingerprint for name, make in ENGINES.items()}
    assert len(set(prints.values())) == 1, prints
    narrow = prepare(frame.cast(pl.Int16), tmp_path / "narrow").fingerprint
    assert narrow == prints["polars"], "the width of an integer is no part of a split"
    swapped = prepare(frame.reverse(), tmp_path / "swapped").fingerprint
    assert swapped != prints["polars"], "all times are equal: reversed input is another order"
    text = prepare(frame.cast({"user_id": pl.String}), tmp_path / "text").fingerprint
    assert text != prints["polars"], "the id '1' is not the id 1"
