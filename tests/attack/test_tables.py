"""Every table that is read with wrong columns and forms: an answer, or one sentence and exit code 2."""

from functools import partial
from pathlib import Path

import polars as pl
from hypothesis import strategies as st

from tests.attack.bases import changed, parameter_of
from tests.attack.frame import Outcome, attack, every
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


def given(verb: str, parameter: str, table: pl.DataFrame | Content, folder: Path) -> Outcome:
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
    frame, run = READ[read](), partial(given, verb, parameter)
    attack("tables", verb, frames(frame), run, draws=20, key=parameter)
    attack("tables", verb, texts(frame), run, draws=20, key=parameter)
    for name in frame.columns:
        damaged = columns(frame[name]).map(frame.with_columns)
        attack("tables", verb, damaged, run, draws=14, key=name)
        attack("tables", verb, st.just(frame.drop(name)), run, draws=1)
