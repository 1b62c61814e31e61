"""Random tables of events: `prepare` refuses them, or the store holds what a slow reference in Python says."""

from __future__ import annotations

import math
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fullrank as fr
from tests.attack.frame import call, outcome_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0, -1]), st.integers(0, 9)
)
ODD = ["007", "7", "07", "größe", "a b", "1.0", "1e3", "NaN", "null", "-0"]
WORDS = st.one_of(st.sampled_from(ODD), st.text("abc019 ", min_size=1))
SECONDS = st.integers(0, 4_000_000_000)
ROWS = st.integers(1, 30)


@st.composite
def ids(draw: Any, rows: int, few: bool) -> list[Any]:
    """Ids of one type, of which some come again."""
    kind = draw(st.sampled_from([NUMBERS, WORDS]))
    pool = draw(st.lists(kind, min_size=1, max_size=4 if few else 8, unique=True))
    return draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))


@st.composite
def times(draw: Any, rows: int) -> tuple[list[Any], list[float]]:
    """A column of times, and the seconds that it means."""
    seconds = draw(st.lists(SECONDS, min_size=rows, max_size=rows))
    kind = draw(st.sampled_from(["whole", "float", "iso", "offset", "datetime", "date"]))
    moments = [EPOCH + timedelta(seconds=second) for second in seconds]
    if kind == "date":
        return [moment.date() for moment in moments], [second // 86_400 * 86_400 for second in seconds]
    if kind == "float":
        halves = [second + draw(st.sampled_from([0.0, 0.25, 0.5])) for second in seconds]
        return halves, halves
    if kind == "offset":
        hours = draw(st.lists(st.integers(-11, 11), min_size=rows, max_size=rows))
        texts = [
            f"{moment + timedelta(hours=hour):%Y-%m-%dT%H:%M:%S}{'-' if hour < 0 else '+'}{abs(hour):02d}:00"
            for moment, hour in zip(moments, hours, strict=True)
        ]
        return texts, [float(second) for second in seconds]
    shown: list[Any] = {
        "whole": seconds, "datetime": moments,
        "iso": [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments],
    }[kind]  # fmt: skip
    return shown, [float(second) for second in seconds]


@st.composite
def tables(draw: Any) -> tuple[pl.DataFrame, dict[Any, list[Any]]]:
    """A table of events, and the items of each user in order of time (equal times in input order)."""
    rows = draw(ROWS)
    users, items = draw(ids(rows, few=True)), draw(ids(rows, few=False))
    column, seconds = draw(times(rows))
    reference: dict[Any, list[Any]] = {}
    for place in sorted(range(rows), key=lambda row: seconds[row]):
        reference.setdefault(users[place], []).append(items[place])
    return pl.DataFrame({"user_id": users, "item_id": items, "timestamp": column}, strict=False), reference


def prepared(frame: pl.DataFrame, *words: str) -> dict[Any, list[Any]] | None:
    """The items of each user in the store that `prepare` writes; None where it refuses."""
    folder = Path(tempfile.mkdtemp())
    try:
        frame.write_parquet(folder / "events.parquet")
        said = call("prepare", folder / "events.parquet", "--out", folder / "store", *words, "--json")
        outcome = outcome_of(said)
        assert outcome.kind in ("ok", "refused"), outcome
        if outcome.kind == "refused":
            assert not (folder / "store").exists()
            return None
        store = fr.Store.open(folder / "store", verify=True)
        names, offsets = store.catalog.ids.to_list(), store.offsets
        flat = [names[item] for item in store.items]
        return {user: flat[offsets[n] : offsets[n + 1]] for n, user in enumerate(store.user_ids.to_list())}
    finally:
        shutil.rmtree(folder)


@pytest.mark.attack
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(tables())
def test_a_store_holds_what_the_table_says(made: tuple[pl.DataFrame, dict[Any, list[Any]]]) -> None:
    frame, reference = made
    found = prepared(frame)
    assert found is None or found == reference
    longest = max(map(len, reference.values()))
    assert found is not None or longest < 3, "a table with a user of three events or more can be prepared"


@pytest.mark.attack
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.sampled_from([None, math.nan, math.inf, "yesterday"]), st.data())
def test_one_time_that_is_none(made: tuple[pl.DataFrame, dict[Any, list[Any]]], wrong: Any, data: Any) -> None:
    frame, _ = made
    place = data.draw(st.integers(0, frame.height - 1))
    column = frame["timestamp"].to_list()
    if isinstance(wrong, float):
        if not all(isinstance(value, int | float) for value in column):
            wrong = None
    elif isinstance(wrong, str) and not all(isinstance(value, str) for value in column):
        wrong = None
    column[place] = wrong
    assert prepared(frame.with_columns(pl.Series("timestamp", column, strict=False))) is None
