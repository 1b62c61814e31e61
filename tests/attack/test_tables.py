"""Every table that is read with wrong columns and forms: an answer, or one sentence and exit code 2.

Random tables of events: `prepare` refuses them, or the store holds what a slow reference in Python says.
"""

import math
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import fullrank as fr
from tests.attack.bases import changed, parameter_of
from tests.attack.frame import SURVIVED, Outcome, attack, call, every, outcome_of, own_folder
from tests.attack.strategies import Content, columns, frames, texts
from tests.attack.test_options import spoken
from tests.attack.worlds import events, impressions, items, people, vectors

READ = {
    "prepare events": partial(events, 10), "prepare --items": items, "prepare --users": people,
    "recommend --histories": partial(events, 10), "prepare-impressions impressions": partial(impressions, 60),
    "predict impressions": lambda: impressions(60).drop("label", "timestamp"),
    "cascade --items": lambda: items().select("item_id", "price"), "cascade --users": people,
    "encode --vectors": vectors,
}  # fmt: skip
"""Verb and parameter -> a table that it can read."""


def with_table(verb: str, parameter: str, table: pl.DataFrame | Content, folder: Path) -> Outcome:
    """A verb with another table, of some suffix."""
    if isinstance(table, tuple):
        suffix, content = table
        (folder / f"given.{suffix}").write_bytes(content)
    else:
        plain = all(kind in (pl.Int64, pl.Float64, pl.String, pl.Boolean) for kind in table.dtypes)
        suffix = ("parquet", "csv", "jsonl")[len(str(table.schema)) % 3 if plain else 0]
        write = {"parquet": table.write_parquet, "csv": table.write_csv, "jsonl": table.write_ndjson}[suffix]
        write(folder / f"given.{suffix}")
    return spoken(changed(verb, parameter_of(verb, parameter), f"~given.{suffix}"), folder)


@every(READ, ("recommend --histories",), "read")
def test_tables(read: str) -> None:
    verb, parameter = read.split()
    frame, run = READ[read](), partial(with_table, verb, parameter)
    attack("tables", verb, frames(frame), run, draws=20, key=parameter)
    attack("tables", verb, texts(frame), run, draws=20, key=parameter)
    for name in frame.columns:
        damaged = columns(frame[name]).map(frame.with_columns)
        attack("tables", verb, damaged, run, draws=14, key=name)
        attack("tables", verb, st.just(frame.drop(name)), run, draws=1)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0, -1]), st.integers(0, 9)
)
ODD = ["007", "7", "07", "größe", "a b", "1.0", "1e3", "NaN", "null", "-0"]
WORDS = st.one_of(st.sampled_from(ODD), st.text("abc019 ", min_size=1))
SECONDS = st.integers(0, 16_000_000_000).map(lambda quarters: quarters / 4)


def ids(rows: int, most: int) -> SearchStrategy[list[Any]]:
    """Ids of one type, of which some come again."""
    pools = st.sampled_from([NUMBERS, WORDS]).flatmap(
        lambda kind: st.lists(kind, min_size=1, max_size=most, unique=True)
    )
    return pools.flatmap(lambda pool: st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))


def shown(kind: str, moment: datetime, hours: int) -> Any:
    """A moment as a column of some kind may hold it."""
    if kind == "offset":
        local, sign = moment + timedelta(hours=hours), "-" if hours < 0 else "+"
        return f"{local:%Y-%m-%dT%H:%M:%S}{sign}{abs(hours):02d}:00"
    return {"whole": int(moment.timestamp()), "float": moment.timestamp(), "datetime": moment, "date": moment.date(),
            "iso": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}[kind]  # fmt: skip


@st.composite
def tables(draw: Any) -> tuple[pl.DataFrame, dict[Any, list[Any]]]:
    """A table of events, and the items of each user in order of time (equal times in input order)."""
    rows = draw(st.integers(1, 30))
    users, items = draw(ids(rows, 4)), draw(ids(rows, 8))
    kind = draw(st.sampled_from(["whole", "float", "iso", "offset", "datetime", "date"]))
    unit = {"date": 86_400, "float": 0.25}.get(kind, 1)
    seconds = [unit * int(second / unit) for second in draw(st.lists(SECONDS, min_size=rows, max_size=rows))]
    column = [shown(kind, EPOCH + timedelta(seconds=second), draw(st.integers(-11, 11))) for second in seconds]
    reference: dict[Any, list[Any]] = {}
    for row in sorted(range(rows), key=lambda row: seconds[row]):
        reference.setdefault(users[row], []).append(items[row])
    return pl.DataFrame({"user_id": users, "item_id": items, "timestamp": column}, strict=False), reference


def prepared(frame: pl.DataFrame) -> dict[Any, list[Any]] | None:
    """The items of each user in the store that `prepare` writes; None where it refuses."""
    with own_folder() as folder:
        frame.write_parquet(folder / "events.parquet")
        outcome = outcome_of(call("prepare", folder / "events.parquet", "--out", folder / "store", "--json"))
        assert outcome.kind in SURVIVED, outcome
        if outcome.kind == "refused":
            assert not (folder / "store").exists()
            return None
        store = fr.Store.open(folder / "store", verify=True)
        flat, offsets = [store.catalog.ids[int(item)] for item in store.items], store.offsets
        return {user: flat[offsets[n] : offsets[n + 1]] for n, user in enumerate(store.user_ids.to_list())}


@pytest.mark.attack
@pytest.mark.parametrize("draws", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_a_store_holds_what_the_table_says(draws: int) -> None:
    settings(max_examples=draws, suppress_health_check=[HealthCheck.too_slow])(given(tables())(holds_what_it_says))()


def holds_what_it_says(made: tuple[pl.DataFrame, dict[Any, list[Any]]]) -> None:
    frame, reference = made
    found = prepared(frame)
    assert found is None or found == reference
    longest = max(map(len, reference.values()))
    assert found is not None or longest < 3, "a table with a user of three events or more can be prepared"


@pytest.mark.slow
@pytest.mark.attack
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.sampled_from([None, math.nan, math.inf, "yesterday"]), st.data())
def test_one_time_that_is_none(made: tuple[pl.DataFrame, dict[Any, list[Any]]], wrong: Any, data: Any) -> None:
    frame, _ = made
    column = frame["timestamp"].to_list()
    fits = str if isinstance(wrong, str) else (int, float)
    row = data.draw(st.integers(0, frame.height - 1))
    column[row] = wrong if wrong is None or isinstance(column[row], fits) else None
    assert prepared(frame.with_columns(pl.Series("timestamp", column, strict=False))) is None
