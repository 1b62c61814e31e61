"""Requests are read as `prepare` reads events: the same order, ties and refusals, in any type of time and of frame."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.data.column_names import EventColumns
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.prepare import Prepare
from fullrank.inference.requests import RequestBatch, read_histories
from refusals import refused

NAMES = [f"i{n:02d}" for n in range(12)]
KNOWN = Catalog(pl.DataFrame({"item": range(12), "item_id": NAMES, "train_count": [1] * 12}))
DAYS = st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2030, 1, 1))
FEW = st.integers(0, 4)  # few different times, so that ties are common
OFFSETS = st.sampled_from(["", "Z", "+00:00", "-03:00", "+05:30"])
ISO = st.builds(lambda minutes, offset: f"2024-01-01T{minutes // 60:02d}:{minutes % 60:02d}{offset}",
                st.sampled_from([0, 30, 60, 90, 120, 600]), OFFSETS)  # fmt: skip
COLUMNS: dict[str, Any] = {
    "ints": FEW,
    "large ints": st.integers(-(2**62), 2**62),
    "floats": st.one_of(FEW.map(float), st.floats(width=64)),
    "ISO text": ISO,
    "text of many kinds": st.one_of(ISO, st.sampled_from(["2024-01-01", "9", "10", "1e1", "", "soon", "NaN"])),
    "numbers as text": st.sampled_from(["9", "10", "1.5", "-3", "1e3", "007"]),
    "dates": st.dates(datetime.date(1990, 1, 1), datetime.date(1990, 1, 3)),
    "datetimes": DAYS,
    "zoned datetimes": st.one_of(DAYS).map(lambda moment: moment.replace(tzinfo=ZoneInfo("America/Sao_Paulo"))),
    "truth": st.booleans(),
    "durations": st.timedeltas(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("order")


def table(times: list[Any]) -> pl.DataFrame:
    """An event for each time: of three users in turn, and of an item of its own."""
    n = len(times)
    return pl.DataFrame({
        "user_id": [f"u{at % 3}" for at in range(n)], "item_id": NAMES[:n], "timestamp": pl.Series(times, strict=False),
    })  # fmt: skip


def stored(source: Any, out: Path, unit: str = "s") -> dict[str, list[str]] | str:
    """The order in which `prepare` keeps the events, by user; where it refuses, the code."""
    try:
        store = fr.prepare(source, out, overwrite=True, spec=Prepare().override(f"columns.time_unit={unit}"))
    except UserError as error:
        return error.code
    order = zip(store.user_ids, Jagged.from_offsets(store.items, store.offsets), strict=True)
    return {user: store.catalog.external(items).to_list() for user, items in order}


def asked(frame: Any, unit: Any = "s", known: Catalog = KNOWN) -> dict[str, list[str]] | str:
    """The order in which a request gives the events to a model that does not read times, or the code."""
    try:
        request = read_histories(frame, known, columns=EventColumns(unit=unit))
    except UserError as error:
        return error.code
    return given_to_model(request)


def given_to_model(request: RequestBatch) -> dict[str, list[str]]:
    return {user: KNOWN.external(items).to_list()
            for user, items in zip(request.users, request.histories.items, strict=True)}  # fmt: skip


@pytest.mark.parametrize("kind", COLUMNS)
@settings(max_examples=30)
@given(data=st.data())
def test_a_request_has_the_order_that_prepare_stores(kind: str, folder: Path, data: st.DataObject) -> None:
    """Or both refuse it, with one code: nulls, NaN, text that is no time, types that are none."""
    element = st.one_of(COLUMNS[kind], st.none()) if data.draw(st.booleans(), label="nulls") else COLUMNS[kind]
    times = data.draw(st.lists(element, min_size=2, max_size=12), label="times")
    unit = data.draw(st.sampled_from(["s", "s", "ms", "ns"]), label="unit")
    frame = table(times)
    assert asked(frame, unit) == stored(frame, folder / "store", unit)


@settings(max_examples=60)
@given(st.lists(st.one_of(COLUMNS["text of many kinds"], COLUMNS["numbers as text"]), min_size=2, max_size=9))
def test_the_text_of_a_file_without_types_too(folder: Path, times: list[str]) -> None:
    """CSV, as the command line hands it on, whose numbers are text."""
    table(times).write_csv(folder / "h.csv")
    assert asked(folder / "h.csv") == stored(folder / "h.csv", folder / "store")


@pytest.mark.parametrize("make", [pl.DataFrame.to_pandas, pl.DataFrame.to_arrow, pl.DataFrame.lazy, pl.DataFrame.clone])
def test_every_engine_gives_one_order(make: Any) -> None:
    """Of mixed offsets and ties: 10:00-01:00 and 11:00Z are one moment, so their input order stands."""
    offsets = ["11:00:00Z", "10:00:00-01:00", "09:30:00-01:00", "10:45:00+00:00"]
    frame = pl.DataFrame({"user_id": ["u"] * 4, "item_id": NAMES[:4],
                          "timestamp": [f"2024-01-01T{one}" for one in offsets]})  # fmt: skip
    assert asked(make(frame)) == {"u": ["i02", "i03", "i00", "i01"]}


def test_a_million_ties_keep_input_order() -> None:
    n = 100_000
    items = np.random.default_rng(0).integers(0, 12, n)
    frame = pl.DataFrame({"user_id": np.arange(n) % 7, "item_id": [NAMES[i] for i in items], "timestamp": [5] * n})
    request = read_histories(frame, KNOWN)
    for user, found in enumerate(request.histories.items):
        assert (found == items[user::7]).all()


def test_categories_of_users_keep_their_histories() -> None:
    """Their codes go by first occurrence, their names by the alphabet."""
    frame = pl.DataFrame({"user_id": ["b", "a", "b"], "item_id": NAMES[:3], "timestamp": [3, 2, 1]})
    wanted = {"a": ["i01"], "b": ["i02", "i00"]}
    for dtype in (pl.Categorical, pl.Enum(["b", "a"]), pl.String):
        assert asked(frame.cast({"user_id": dtype})) == wanted
    assert asked(frame.to_pandas().astype({"user_id": "category"})) == wanted


@pytest.mark.parametrize("name", ["__place", "__user", "__seconds", "index", "row_nr", "user", "item"])
def test_no_name_of_a_column_is_taken(name: str) -> None:
    frame = pl.DataFrame({"user_id": ["b", "a"], "item_id": ["i01", "i02"], "timestamp": [2, 1]})
    for own in frame.columns:
        renamed = frame.rename({own: name})
        found = read_histories(renamed, KNOWN, columns=EventColumns(tuple(renamed.columns)))
        assert given_to_model(found) == {"a": ["i02"], "b": ["i01"]}


FRAME = pl.DataFrame({"user_id": ["a", "b"], "item_id": ["i01", "i02"], "timestamp": [2, 1]})
REFUSED: dict[str, tuple[Any, ...]] = {
    "one column twice": (FRAME, "repeated-column", "'item_id'", {"columns": ("item_id", "item_id")}),
    "columns as text": (FRAME, "not-column-names", "'user_id'", {"columns": "user_id"}),
    "a column that is not there": (FRAME, "missing-column", "'user'", {"columns": ("user", "item_id")}),
    "a unit without times": (FRAME[:, :2], "setting-without-effect", "'ms'", {"time_unit": "ms"}),
    "a unit of lists": ([["i01"]], "setting-without-effect", "'ms'", {"time_unit": "ms"}),
    "a unit of dates": (
        FRAME.with_columns(timestamp=pl.from_epoch("timestamp")),
        "setting-without-effect",
        "'timestamp'",
        {"time_unit": "ms"},
    ),
    "a missing user": (FRAME.with_columns(user_id=pl.Series(["a", None])), "missing-users", "1 of 2"),
    "a missing item": (FRAME.with_columns(item_id=pl.Series([None, "i01"])), "missing-ids", "column 'item_id'"),
    "a missing time": (FRAME.with_columns(timestamp=pl.Series([None, 1])), "missing-times", "'timestamp'"),
    "times of NaN": (FRAME.with_columns(timestamp=float("nan")), "unreadable-times", "2 times"),
    "users in lists": (FRAME.with_columns(user_id=pl.Series([["a"], ["b"]])), "wrong-column-type", "'user_id'"),
    "items of another type": (FRAME.with_columns(item_id=pl.Series([1, 2])), "wrong-id-type", "Int64"),
    "pandas columns twice": (pd.concat([FRAME.to_pandas()] * 2, axis=1), "repeated-column", "histories"),
    "users of several types": ({1: ["i01"], "a": ["i02"]}, "mixed-ids", "int, str"),
    "a user None": ({None: ["i01"]}, "wrong-id-type", "None"),
    "an item None": ({"a": ["i01", None]}, "missing-ids", "1 of 2"),
    "an item NaN": ({"a": [float("nan")]}, "wrong-id-type", "nan"),
    "items of several types": ({"a": ["i01", 5]}, "mixed-ids", "int, str"),
    "a truth among numbers": ({"a": [True]}, "wrong-id-type", "True"),
    "bytes": (b"i01", "not-histories", "b'i01'"),
    "a text": ("i01", "not-histories", "'i01'"),
    "a set": ({"i01"}, "not-histories", "{'i01'}"),
    "a generator": ((one for one in [["i01"]]), "not-histories", "generator"),
    "nothing": (None, "not-histories", "None"),
    "no list": ([], "no-histories", ""),
    "a mapping in a mapping": ({"a": {"i01": 1}}, "not-item-lists", "'a'"),
    "lists in lists": ([[["i01"]], ["i02"]], "mixed-ids", "list, str"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_one_sentence(name: str) -> None:
    histories, code, named, *how = REFUSED[name]
    with refused(code, named) as refusal:
        read_histories(histories, KNOWN, columns=EventColumns.of(dict(*how)))
    assert "\n" not in str(refusal)


@pytest.mark.parametrize("given", [np.int8, np.int32, np.int64, np.uint64, int], ids=lambda kind: kind.__name__)
def test_whole_numbers_of_any_width_are_ids(given: Any) -> None:
    for far in (8, 2**62):
        known = Catalog(pl.DataFrame({"item": range(4), "item_id": [5, 6, 7, far], "train_count": [1] * 4}))
        assert known.lookup([far, 9, -1]).tolist() == [3, -1, -1]
    for items in ([given(5), given(7)], (given(5), given(7)), np.array([5, 7]).astype(given), pl.Series([5, 7])):
        assert [one.tolist() for one in read_histories({given(1): items}, known).histories.items] == [[0, 2]]
    for items, *said in (
        (["5"], "wrong-id-type", "'5'"), (["5", 6], "mixed-ids", "int, str"), ([True, 6], "mixed-ids", "bool, int"),
    ):  # fmt: skip
        with refused(*said):
            read_histories([items], known)
