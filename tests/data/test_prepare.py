"""Tables in, store out: file formats, features, filters and their counts, and every mistake as one sentence."""

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from fullrank.core.errors import UserError
from fullrank.data.events.prepare import Columns, Prepare, prepare
from refusals import refused

EVENTS = pl.DataFrame(
    {
        "user_id": ["u2", "u1", "u1", "u2", "u1", "u1", "u3"],
        "item_id": [30, 10, 20, 10, 30, 10, 20],
        "timestamp": [3, 1, 2, 4, 5, 6, 9],
        "stars": [5.0, 4.0, 1.0, 3.0, 5.0, 2.0, 5.0],
        "what": ["buy", "view", "view", "buy", "buy", "view", "view"],
        "value": [1.0, 0.5, 0.25, 2.0, 0.0, 1.0, 3.0],
    }
)
ITEMS = pl.DataFrame(
    {
        "item_id": [10, 99, 30, 10],
        "title": ["ten", "never bought", "thirty", "ten"],
        "price": [1.5, 2.0, None, 1.5],
    }
)


def write(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        frame.write_ndjson(path)
    else:
        text = frame.write_csv(separator="\t" if ".tsv" in path.suffixes else ",")
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    "name", ["e.parquet", "e.csv", "e.csv.gz", "e.tsv", "e.tsv.gz", "e.jsonl", "e.ndjson", "E.CSV"]
)
def test_every_file_format_gives_the_same_store(tmp_path: Path, name: str) -> None:
    expected = prepare(EVENTS, tmp_path / "frame", items=ITEMS)
    store = prepare(write(EVENTS, tmp_path / name), tmp_path / "file", items=write(ITEMS, tmp_path / f"items_{name}"))
    assert store.fingerprint == expected.fingerprint
    assert store.catalog.frame.equals(expected.catalog.frame)
    assert store.catalog.ids.dtype == pl.Int64 and store.user_ids.dtype == pl.String


def test_a_folder_of_parquet_parts_is_read_in_order_of_name(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    EVENTS[4:].write_parquet(tmp_path / "parts" / "b.parquet")
    EVENTS[:4].write_parquet(tmp_path / "parts" / "a.parquet")
    spec = Prepare(columns=Columns(time=None))
    store = prepare(tmp_path / "parts", tmp_path / "store", spec=spec)
    assert store.fingerprint == prepare(EVENTS, tmp_path / "frame", spec=spec).fingerprint


def test_csv_ids_with_leading_zeros_stay_text(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user_id,item_id,timestamp\n1,007,1\n1,7,2\n")
    (tmp_path / "i.csv").write_text("item_id,title,year\n007,Bond,1962\n")
    store = prepare(tmp_path / "e.csv", tmp_path / "s", items=tmp_path / "i.csv")
    assert store.catalog.ids.to_list() == ["007", "7"] and store.user_ids.to_list() == [1]
    assert store.catalog.frame["year"].to_list() == [1962, None]


def test_items_are_joined_counted_and_kept_in_id_order(tmp_path: Path) -> None:
    store = prepare(EVENTS, tmp_path / "s", items=ITEMS)
    assert store.catalog.ids.to_list() == [10, 20, 30]
    assert store.catalog.titles.to_list() == ["ten", None, "thirty"]
    assert store.manifest["item_table"] == {"rows": 4, "repeated": 1, "without_events": 1, "missing": 1}
    assert store.manifest["user_table"] is None
    notes = [note for note in store.manifest["notes"] if "items" in note]
    begin = ("1 rows of items repeat", "1 of 3 items have no row", "1 of 3 items of the table of items have no event")
    assert len(notes) == 3 and all(note.startswith(text) for note, text in zip(notes, begin, strict=True)), notes


def test_rows_of_one_id_that_differ_are_refused(tmp_path: Path) -> None:
    """Until they were, the first won without a word; equal rows are one, whatever the columns hold."""
    for column, values in {
        "title": ["ten", "x", "x", "ten again"],
        "price": [1.5, 2.0, 2.0, None],
        "tags": [["a"], [], [], ["a", "b"]],
        "size": [{"w": 1}, {"w": 2}, {"w": 2}, {"w": 3}],
    }.items():
        table = pl.DataFrame({"item_id": [10, 99, 99, 10], column: pl.Series(values, strict=False)})
        with refused("duplicate-rows", "items", "1 ids", "10 with 2", repr(column), "keep='first'"):
            prepare(EVENTS, tmp_path / "s", items=table, overwrite=True)
        store = prepare(EVENTS, tmp_path / "s", items=table[:3], overwrite=True)
        assert store.manifest["item_table"]["repeated"] == 1 and store.catalog.frame[column].to_list()[0] == values[0]
    people = pl.DataFrame({"user_id": ["u1", "u2", "u1"], "age": [1, 2, 3]})
    with refused("duplicate-rows", "users", "'u1'", "'age'"):
        prepare(EVENTS, tmp_path / "s", users=people, overwrite=True)
    unsigned = EVENTS.cast({"item_id": pl.UInt64})
    strange = pl.DataFrame({"item_id": [-1, -2, 10], "title": ["a", "b", "ten"]})  # no two of them are one id
    assert prepare(unsigned, tmp_path / "s", items=strange, overwrite=True).manifest["item_table"]["repeated"] == 0


@pytest.mark.parametrize("make", [pl.DataFrame.to_pandas, pl.DataFrame.to_arrow, pl.DataFrame.lazy])
def test_tables_of_other_engines_and_other_names(tmp_path: Path, make: Any) -> None:
    users = pl.DataFrame({"user_id": ["u1", "u3", "u4"], "age": [20, 30, 40]})
    events = EVENTS.rename({"user_id": "who", "item_id": "what_item", "timestamp": "when"})
    items = ITEMS.rename({"item_id": "what_item"})
    spec = Prepare(columns=Columns(user="who", item="what_item", time="when"))
    store = prepare(make(events), tmp_path / "s", items=make(items), users=make(users), spec=spec)
    assert store.users["age"].to_list() == [20, None, 30] and store.users.columns == ["user", "user_id", "age"]
    assert store.manifest["user_table"] == {"rows": 3, "repeated": 0, "without_events": 1, "missing": 1}
    assert store.catalog.frame["price"].to_list() == [1.5, None, None]


def test_id_widths_of_events_and_items_may_differ(tmp_path: Path) -> None:
    store = prepare(EVENTS.cast({"item_id": pl.Int16}), tmp_path / "s", items=ITEMS.cast({"item_id": pl.UInt64}))
    assert store.manifest["item_table"]["missing"] == 1 and store.catalog.ids.dtype == pl.Int16


def test_filters_are_counted_one_by_one(tmp_path: Path) -> None:
    spec = Prepare(
        columns=Columns(rating="stars", type="what", weight="value"),
        event_types=("buy", "view"), min_rating=2, duplicates="last", k_core=(2, 1),
    )  # fmt: skip
    store = prepare(EVENTS, tmp_path / "s", spec=spec)
    counts = [(s["filter"], s["events"], s["users"], s["items"]) for s in store.manifest["filters"]]
    assert counts == [
        ("read", 7, 3, 3),
        ("event_types", 7, 3, 3),
        ("min_rating", 6, 3, 3),
        ("duplicates", 5, 3, 3),
        ("k_core", 4, 2, 2),
    ]
    assert Prepare.parse(store.manifest["spec"]) == spec
    assert store.weights.tolist() == [0.0, 1.0, 1.0, 2.0]
    assert [store.type_names[t] for t in store.types] == ["buy", "view", "buy", "buy"]


def test_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store = prepare(EVENTS, tmp_path / "s", progress=True, notes=("research only",))
    assert "research only" in store.manifest["notes"]
    said = capsys.readouterr()
    assert said.out == "" and "read: 7 events, 3 users, 3 items" in said.err


MISTAKES = {
    "a misspelt column": ({"events": EVENTS.rename({"user_id": "userid"})}, "missing-column", "'user_id'", "'userid'"),
    "a negative weight": (
        {"events": EVENTS.with_columns(value=-pl.col("value")), "weight_col": "value"},
        "numbers-too-small", "6 numbers below 0",
    ),
    "a missing rating": (
        {"events": EVENTS.with_columns(stars=pl.Series([1, None, 3, 4, 5, 6, 7])), "rating_col": "stars",
         "set": ["min_rating=1"]},
        "unreadable-numbers", "'stars'", "1 missing", "row 1",
    ),
    "no rows": ({"events": EVENTS[:0]}, "empty-table"),
    "a list": ({"events": [1, 2]}, "not-a-table", "events", "list", ".parquet"),
    "mixed pandas objects": (
        {"events": pd.DataFrame({"user_id": [1, "a"], "item_id": [1, 2], "timestamp": [1, 2]})},
        "table-unreadable", "events",
    ),
    "an unknown event type": (
        {"type_col": "what", "set": ["event_types=bye"]}, "unknown-event-type", "'bye'", "'buy'", "view"
    ),
    "everything filtered": ({"set": ["k_core=9"]}, "no-events-left", "k_core", "per_user=9", "per_item=9", "7"),
    "items without the id": (
        {"items": ITEMS.rename({"item_id": "itemid"})}, "missing-column", "items", "'item_id'", "'itemid'"
    ),
    "items of another type": ({"items": ITEMS.cast({"item_id": pl.String})}, "wrong-id-type", "String", "Int64"),
    "items of another shop": ({"items": ITEMS[1:2]}, "no-known-ids", "items", "3"),
    "a missing item id": (
        {"items": pl.DataFrame({"item_id": [10, None, 30]})}, "missing-ids", "1 missing", "3 rows", "row 1"
    ),
    "a reserved name": ({"items": ITEMS.with_columns(train_count=1)}, "reserved-column", "'train_count'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path: Path, name: str) -> None:
    change, *says = MISTAKES[name]
    with refused(*says) as refusal:
        prepare(out=tmp_path / "store", **{"events": EVENTS} | change)
    assert "\n" not in str(refusal) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("e.parquet", b"PAR1 this is not parquet PAR1", ("table-unreadable", "e.")),
        ("e.parquet", b"", ("empty-file",)),
        ("e.csv", b"", ("empty-file",)),
        ("e.csv", b"\n", ("table-unreadable|empty-file|missing-column|empty-table", "e.csv")),
        ("e.csv", b"user_id,item_id,timestamp\n", ("empty-table",)),
        ("e.csv", b"user_id,item_id,timestamp\n1,2,3,4,5\n", ("table-unreadable", "e.")),
        ("e.csv", b"user_id,item_id,timestamp\n1,\xff\xfe,3\n", ("not-utf-8", "e.csv", "line 2", "0xff")),
        ("e.csv.gz", b"not gzip at all", ("table-unreadable|missing-column", "e.csv.gz")),
        ("e.jsonl", b'{"user_id": 1, "item_id"', ("table-unreadable|missing-column", "e.jsonl")),
        ("e.jsonl", b"[1, 2]\n", ("table-unreadable|missing-column", "e.jsonl")),
        ("e.xlsx", b"PK", ("unknown-suffix", "'.xlsx'", ".parquet")),
        ("e", b"x", ("unknown-suffix", "''")),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, said: tuple) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path / name, tmp_path / "store")
    sentence = str(caught.value)
    assert caught.value.code in said[0].split("|"), sentence  # engines and their versions differ in what they accept
    assert all(named in sentence for named in said[1:]), sentence
    assert "\n" not in sentence and not (tmp_path / "store").exists()


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    whole = write(pl.concat([EVENTS] * 100), tmp_path / "e.parquet").read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:-5], whole[:4] + b"\xff" * 596 + whole[600:]):
        (tmp_path / "e.parquet").write_bytes(broken)
        with refused("table-unreadable", "e.parquet"):
            prepare(tmp_path / "e.parquet", tmp_path / "store")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    write(EVENTS, tmp_path / "events.parquet")
    with refused("missing-file", "events.parquet"):
        prepare(tmp_path / "event.parquet", tmp_path / "store")
    with refused("empty-folder"):
        (tmp_path / "nothing").mkdir()
        prepare(tmp_path / "nothing", tmp_path / "store")


def test_settings_without_effect_are_refused() -> None:
    for setting, said in {
        "min_rating=3": ("missing-setting", "min_rating", "columns.rating"),
        "event_types=[buy]": ("missing-setting", "event_types", "columns.type"),
        "columns.item=user_id": ("repeated-column", "'user_id', 'user_id'"),
        "columns.time=item_id": ("repeated-column", "'item_id', 'item_id'"),
        "k_core=-1": ("setting-out-of-range", "k_core", "-1"),
        "duplicates=frist": ("invalid-setting", "duplicates", "'first'"),
    }.items():
        with refused(*said):
            Prepare().override(setting)
    with refused("unknown-setting", "kcore", "'k_core'"):
        Prepare().override("kcore=3")
    with refused("setting-without-effect", "time_unit"):
        Prepare.parse({"columns": {"time": None, "time_unit": "ms"}})
    spec = Prepare().override("columns.type=what", "event_types=buy", "k_core=[5, 2]", "columns.time=null")
    assert spec.event_types == ("buy",) and spec.per_user_and_item == (5, 2)
    assert Prepare.from_text(spec.to_yaml()) == spec == Prepare.from_text(spec.to_json())


def test_a_folder_of_many_other_files_is_not_searched_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.data.frames.MOST_OTHERS", 3)
    for name in "abc":
        (tmp_path / "in" / name).mkdir(parents=True)
    write(EVENTS, tmp_path / "in" / "a" / "events.parquet")
    prepare(tmp_path / "in", tmp_path / "store")
    (tmp_path / "in" / "b" / "c.txt").touch()
    with refused("folder-too-large", str(tmp_path / "in"), "3"):
        prepare(tmp_path / "in", tmp_path / "other")
