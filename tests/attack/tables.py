"""Cases of tables: columns of every wrong kind in every table that a verb reads, as Parquet, CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tests.attack.bases import changed, leaves
from tests.attack.frame import Case, Outcome
from tests.attack.options import bare
from tests.attack.pools import chosen
from tests.attack.worlds import ITEMS, events, impressions, items, people

Table = Callable[[], pl.DataFrame]
ROWS = 60
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def _vectors() -> pl.DataFrame:
    draw = np.random.default_rng(2).standard_normal((ITEMS, 6)).astype(np.float32)
    return pl.DataFrame({"item_id": range(ITEMS), "v": draw})


READ: dict[tuple[str, str], Table] = {
    ("prepare", "events"): lambda: events(10),
    ("prepare", "--items"): items,
    ("prepare", "--users"): people,
    ("recommend", "--histories"): lambda: events(10),
    ("prepare-impressions", "impressions"): lambda: impressions(ROWS),
    ("predict", "impressions"): lambda: impressions(ROWS).drop("label", "timestamp"),
    ("cascade", "--items"): lambda: items().select("item_id", "price"),
    ("cascade", "--users"): people,
    ("encode", "--vectors"): _vectors,
}
"""(verb, parameter) -> a table that it can read."""


def _series(values: Callable[[int], list[Any]], dtype: Any = None) -> Callable[[pl.Series], pl.Series]:
    return lambda column: pl.Series(column.name, values(len(column)), dtype=dtype, strict=False)


def _first(value: Any) -> Callable[[pl.Series], pl.Series]:
    """The column with its first value replaced, as text where it would not fit."""
    return lambda column: pl.Series(column.name, [value, *column.to_list()[1:]], strict=False)


COLUMNS: dict[str, Callable[[pl.Series], pl.Series]] = {
    "nulls": _series(lambda n: [None] * n),
    "typed-nulls": _series(lambda n: [None] * n, pl.Int64),
    "one-null": _first(None),
    "nan": _series(lambda n: [float("nan")] * n),
    "one-nan": lambda column: pl.Series(column.name, [float("nan"), *range(1, len(column))], dtype=pl.Float64),
    "one-inf": lambda column: pl.Series(column.name, [float("inf"), *range(1, len(column))], dtype=pl.Float64),
    "halves": _series(lambda n: [k + 0.5 for k in range(n)]),
    "huge-floats": _series(lambda n: [1e300 * k for k in range(n)]),
    "booleans": _series(lambda n: [k % 2 == 0 for k in range(n)]),
    "lists": _series(lambda n: [[k, k] for k in range(n)]),
    "structs": _series(lambda n: [{"a": k} for k in range(n)]),
    "binary": _series(lambda n: [b"\xff%d" % k for k in range(n)]),
    "dates": _series(lambda n: [date(2024, 1, 1) + timedelta(k) for k in range(n)]),
    "datetimes": _series(lambda n: [NOON + timedelta(k) for k in range(n)]),
    "durations": _series(lambda n: [timedelta(k) for k in range(n)]),
    "clock": _series(lambda n: [time(k % 24) for k in range(n)]),
    "decimals": _series(lambda n: [Decimal(k) / 4 for k in range(n)]),
    "categories": lambda column: pl.Series(column.name, [f"{value}" for value in column.to_list()], pl.Categorical),
    "text": lambda column: pl.Series(column.name, [f"{value}" for value in column.to_list()]),
    "padded": lambda column: pl.Series(column.name, [f" {value} " for value in column.to_list()]),
    "zeros-before": lambda column: pl.Series(column.name, [f"00{k}" for k in range(len(column))]),
    "empty-text": _series(lambda n: [""] * n),
    "words": _series(lambda n: [f"größe\u2028{k}🛋" for k in range(n)]),
    "nul-text": _series(lambda n: [f"a\0{k}" for k in range(n)]),
    "long-text": _series(lambda n: ["x" * 100_000 + str(k % 9) for k in range(n)]),
    "2**63-1": _series(lambda n: [2**63 - 1 - k for k in range(n)]),
    "2**53": _series(lambda n: [2**53 + k for k in range(n)]),
    "minus-2**63": _series(lambda n: [-(2**63) + k for k in range(n)]),
    "unsigned": _series(lambda n: [2**64 - 1 - k for k in range(n)], pl.UInt64),
    "bytes": _series(lambda n: [k % 100 for k in range(n)], pl.Int8),
    "negative": _series(lambda n: [-k for k in range(n)]),
    "all-equal": lambda column: pl.Series(column.name, [column[0]] * len(column)),
    "reversed": lambda column: column.reverse(),
}
"""What may become of one column."""

TABLES: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "no-rows": lambda frame: frame.clear(),
    "one-row": lambda frame: frame.head(1),
    "two-rows": lambda frame: frame.head(2),
    "no-columns": lambda frame: frame.select(),
    "rows-twice": lambda frame: pl.concat([frame, frame]),
    "columns-reversed": lambda frame: frame.select(frame.columns[::-1]),
    "many-columns": lambda frame: frame.with_columns(pl.lit(k).alias(f"c{k}") for k in range(2000)),
    "upper-case": lambda frame: frame.rename(str.upper),
    "blank-names": lambda frame: frame.rename(lambda name: f" {name} "),
    "odd-names": lambda frame: frame.with_columns(
        pl.lit(1).alias(name) for name in ("", "a\u2028b", "__place", "__user", "#", "[x]", "*")
    ),
    "ten-thousand": lambda frame: frame.head(1).select(pl.all().repeat_by(10_000).explode()),
    "own-names": lambda frame: frame.with_columns(
        pl.lit(1).alias(name) for name in ("user", "item", "train_count", "score", "rank", "probability")
    ),
    "shuffled": lambda frame: frame.sample(fraction=1.0, shuffle=True, seed=0),
}


SUFFIXES = ("parquet", "csv", "jsonl")
OF_EACH = 14
"""Changes that a column gets, a different choice for each."""


def cases() -> Iterator[Case]:
    """Every case of tables."""
    for (verb, parameter), table in READ.items():
        for name in TABLES:
            for suffix in SUFFIXES if name in ("no-rows", "one-row", "odd-names") else SUFFIXES[:1]:
                if suffix == "csv" and any(kind.is_nested() for kind in table().dtypes):
                    continue  # CSV has no vectors
                yield Case(
                    "tables", verb, f"{parameter}:{name}.{suffix}", partial(with_table, verb, parameter, name, suffix)
                )
        for column in table().columns:
            yield Case(
                "tables",
                verb,
                f"{parameter}:{column}:missing",
                partial(with_column, verb, parameter, column, "missing"),
            )
            for name in chosen(COLUMNS, f"{verb} {parameter} {column}", OF_EACH):
                yield Case(
                    "tables", verb, f"{parameter}:{column}:{name}", partial(with_column, verb, parameter, column, name)
                )
        for name, change in TEXTS.items():
            yield Case("tables", verb, f"{parameter}:{name}", partial(with_text, verb, parameter, name, change))


def with_table(verb: str, parameter: str, name: str, suffix: str, place: Path) -> Outcome:
    """A verb with a table of another shape."""
    return given(verb, parameter, TABLES[name](READ[verb, parameter]()), suffix, place)


def with_column(verb: str, parameter: str, column: str, name: str, place: Path) -> Outcome:
    """A verb with a table of which one column is something else."""
    frame = READ[verb, parameter]()
    frame = frame.drop(column) if name == "missing" else frame.with_columns(COLUMNS[name](frame[column]))
    return given(verb, parameter, frame, "parquet", place)


def given(verb: str, parameter: str, frame: pl.DataFrame, suffix: str, place: Path) -> Outcome:
    path = place / f"given.{suffix}"
    if suffix == "parquet":
        frame.write_parquet(path)
    elif suffix == "csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)
    return bare(changed(verb, parameter_of(verb, parameter), str(path)), place)


@cache
def parameter_of(verb: str, name: str) -> Any:
    return next(one for one in leaves()[verb] if one.name == name)


TEXTS: dict[str, tuple[str, Callable[[pl.DataFrame], str]]] = {
    "header-twice": ("csv", lambda frame: _csv(frame).replace("\n", "," + frame.columns[0] + "\n", 1)),
    "names-twice": ("csv", lambda frame: "\n".join(f"{line},{line}" for line in _csv(frame).splitlines()) + "\n"),
    "no-header": ("csv", lambda frame: _csv(frame).split("\n", 1)[1]),
    "semicolons": ("csv", lambda frame: _csv(frame).replace(",", ";")),
    "open-quote": ("csv", lambda frame: _csv(frame) + '"'),
    "short-row": ("csv", lambda frame: _csv(frame) + "1\n"),
    "long-row": ("csv", lambda frame: _csv(frame) + "1," * 50 + "\n"),
    "late-word": (
        "csv",
        lambda frame: _csv(frame) + _csv(frame).split("\n", 1)[1] * 20 + ",".join("x" * len(frame.columns)) + "\n",
    ),
    "byte-order-mark": ("csv", lambda frame: "\ufeff" + _csv(frame)),
    "returns": ("csv", lambda frame: _csv(frame).replace("\n", "\r\n")),
    "old-returns": ("csv", lambda frame: _csv(frame).replace("\n", "\r")),
    "torn": ("csv", lambda frame: _csv(frame)[:-3]),
    "mixed": (
        "jsonl",
        lambda frame: frame.write_ndjson() + "{" + ", ".join(f'"{name}": [1]' for name in frame.columns) + "}\n",
    ),
    "late-text": (
        "jsonl",
        lambda frame: frame.write_ndjson() * 5 + "{" + ", ".join(f'"{name}": "x"' for name in frame.columns) + "}\n",
    ),
    "torn-line": ("jsonl", lambda frame: frame.write_ndjson()[:-5]),
    "blank-lines": ("jsonl", lambda frame: frame.write_ndjson().replace("\n", "\n\n")),
    "other-keys": ("jsonl", lambda frame: frame.write_ndjson() + '{"other": 1}\n'),
    "number-line": ("jsonl", lambda frame: frame.write_ndjson() + "5\n"),
    "huge-number": (
        "jsonl",
        lambda frame: (
            frame.write_ndjson() + "{" + ", ".join(f'"{name}": {"9" * 400}' for name in frame.columns) + "}\n"
        ),
    ),
    "keys-twice": (
        "jsonl",
        lambda frame: (
            frame.write_ndjson() + "{" + ", ".join(f'"{name}": 1, "{name}": 2' for name in frame.columns) + "}\n"
        ),
    ),
}
"""Name -> suffix, and the text of a table with something wrong in its form."""


def _csv(frame: pl.DataFrame) -> str:
    flat = [name for name, kind in frame.schema.items() if not kind.is_nested()]
    return frame.select(flat).write_csv()


def with_text(
    verb: str, parameter: str, name: str, change: tuple[str, Callable[[pl.DataFrame], str]], place: Path
) -> Outcome:
    """A verb with a file of text that is no table, or one of a strange form."""
    suffix, make = change
    (place / f"given.{suffix}").write_bytes(make(READ[verb, parameter]()).encode())
    return bare(changed(verb, parameter_of(verb, parameter), str(place / f"given.{suffix}")), place)
