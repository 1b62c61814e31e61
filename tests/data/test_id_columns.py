"""Ids and times as files of every day have them: one rule in every format, at every reader, in one and in parts."""

import gzip
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest

from fullrank.data.events.prepare import prepare
from fullrank.data.frames import InputTable
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.evaluation.later_events import later_events
from refusals import refused

N, SECONDS = 40, 1_500_000_000
EVENTS = pl.DataFrame(
    {
        "user_id": [n % 5 for n in range(N)],
        "item_id": [n * 7 % 11 for n in range(N)],
        "timestamp": [SECONDS + n for n in range(N)],
    }
)


def write(frame: pl.DataFrame, path: Path) -> Path:
    if path.name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    else:
        {".parquet": frame.write_parquet, ".csv": frame.write_csv, ".jsonl": frame.write_ndjson}[path.suffix](path)
    return path


def with_text(row: int, text: str) -> str:
    """The events as CSV with another text for the item of a row, which is item 7."""
    frame = EVENTS.with_columns(pl.col("item_id").cast(pl.String))
    assert frame["item_id"][row] == "7"
    return frame.with_columns(pl.when(pl.int_range(N) == row).then(pl.lit(text)).otherwise("item_id").alias("item_id")
                              ).write_csv()  # fmt: skip


def test_whole_floats_are_the_integers_they_were(tmp_path: Path) -> None:
    """What pandas makes of integers with a gap: the same store from every format, and at every reader of ids."""
    floats = EVENTS.cast({"user_id": pl.Float64, "item_id": pl.Float64})
    print_of = {parts: prepare(EVENTS, tmp_path / f"s{parts}", parts=parts).fingerprint for parts in (None, 3)}
    tables = {"polars": floats, "pandas": floats.to_pandas()}
    tables |= {name: write(floats, tmp_path / f"e.{name}") for name in ("parquet", "csv", "jsonl", "csv.gz")}
    for name, table in tables.items():
        for parts, expected in print_of.items():
            store = prepare(table, tmp_path / "f", parts=parts, overwrite=True)
            assert store.fingerprint == expected, (name, parts)
    for row, text in ((1, "7.0"), (1, "+7"), (1, " 7"), (1, "7.")):
        (tmp_path / "odd.csv").write_text(with_text(row, text))
        for parts, expected in print_of.items():
            store = prepare(tmp_path / "odd.csv", tmp_path / "f", parts=parts, overwrite=True)
            assert store.fingerprint == expected, (text, parts)
    (tmp_path / "zeros.csv").write_text(with_text(1, "07"))
    assert "07" in prepare(tmp_path / "zeros.csv", tmp_path / "f", overwrite=True).catalog.ids.to_list()
    items = pl.DataFrame({"item_id": [0.0, 7.0], "title": ["zero", "seven"]})
    store = prepare(EVENTS, tmp_path / "f", items=items, overwrite=True)
    assert store.catalog.frame["title"].drop_nulls().to_list() == ["zero", "seven"]
    catalog = store.catalog
    assert catalog.lookup(pl.Series([7.0, float("nan"), 99.0])).tolist() == [catalog.lookup([7])[0], -1, -1]
    assert catalog.parse(["7.0", "+7"]).to_list() == [7, 7]
    for name in ("csv", "parquet"):
        table = write(pl.DataFrame({"item_id": [100.0, 101.0], "title": ["a", None]}), tmp_path / f"new.{name}")
        assert catalog.extended(table).ids.to_list()[-2:] == [100, 101], name
        later = write(floats.with_columns(pl.col("timestamp") + 1000), tmp_path / f"later.{name}")
        assert later_events(later, catalog, store).facts["of_unknown_items"] == 0, name


def test_numbers_beside_text_in_json_lines_are_not_one_item(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    line = '{"user_id": 1, "item_id": %s, "text": "\\"item_id\\": 3", "in": {"item_id": 3}, "timestamp": 1500000000}'
    rows = [line % value for value in ('"7"', '"x"')]
    path.write_text("\n".join(rows))
    assert InputTable(path, "events").ids(InputTable(path, "events").read(["item_id"]), "item_id").to_list() == [
        "7",
        "x",
    ]
    path.write_text("\n".join([*rows, line % 7]))
    for parts in (None, 2):
        with refused("mixed-ids", "'item_id'", "line 3", "7"):
            prepare(path, tmp_path / "s", parts=parts)


FOLDERS = {
    "Int32": ({"user_id": pl.Int32, "item_id": pl.Int32, "timestamp": pl.Int32}, None),
    "UInt64": ({"user_id": pl.UInt64, "item_id": pl.UInt64}, None),
    "Float64": ({"user_id": pl.Float64, "item_id": pl.Float64, "timestamp": pl.Float64}, None),
    "Datetime": ({"timestamp": pl.Datetime("ms")}, "Datetime"),
    "String": ({"item_id": pl.String}, "String"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_files_of_a_folder_with_other_types(kind: str, tmp_path: Path) -> None:
    types, said = FOLDERS[kind]
    (tmp_path / "e").mkdir()
    write(EVENTS[: N // 2].with_columns(shop=pl.lit(1)), tmp_path / "e" / "a.parquet")
    write(EVENTS[N // 2 :].cast(types), tmp_path / "e" / "b.parquet")
    for parts in (None, 3):
        if said is None:
            expected = prepare(EVENTS, tmp_path / "one", parts=parts, overwrite=True)
            assert (
                prepare(tmp_path / "e", tmp_path / "s", parts=parts, overwrite=True).fingerprint == expected.fingerprint
            )
        else:
            with refused("files-differ", "'a.parquet'", "'b.parquet'", said):
                prepare(tmp_path / "e", tmp_path / "s", parts=parts)
    with refused("files-differ", "'shop'", "'b.parquet'"):
        prepare(tmp_path / "e", tmp_path / "t", user_col="shop")


def test_a_cast_of_files_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    for one, other, fits in (
        (pl.Series("user_id", [1], pl.Int64), pl.Series("user_id", [2**63 + 1], pl.UInt64), False),
        (pl.Series("user_id", [2**53 + 1], pl.Int64), pl.Series("user_id", [1.5]), False),
        (pl.Series("user_id", [2**53 + 1], pl.Int64), pl.Series("user_id", [2.0, None]), True),
        (pl.Series("user_id", ["a"], pl.Categorical), pl.Series("user_id", ["b"]), True),
        (pl.Series("user_id", [None], pl.Null), pl.Series("user_id", ["b"]), True),
    ):
        write(pl.DataFrame(one), tmp_path / "e" / "a.parquet")
        write(pl.DataFrame(other), tmp_path / "e" / "b.parquet")
        source = InputTable(tmp_path / "e", "events")
        assert ("user_id" in source.columns) == fits
        if fits:
            assert source.read(["user_id"])["user_id"].to_list() == [*one.to_list(), *other.to_list()]


def milliseconds(path: Path, where: slice) -> Path:
    """The events with the times of some rows in milliseconds."""
    row = pl.int_range(N)
    late = (row >= (where.start or 0)) & (row < (where.stop or N))
    return write(EVENTS.with_columns(pl.when(late).then(pl.col("timestamp") * 1000).otherwise("timestamp")), path)


def test_milliseconds_are_refused_by_every_reader_of_times(tmp_path: Path) -> None:
    """One definition: all rows, one row, one file of a folder; in one, in parts, of impressions and of later events."""
    store = prepare(EVENTS, tmp_path / "store")
    (tmp_path / "folder").mkdir()
    write(EVENTS, tmp_path / "folder" / "a.parquet")
    milliseconds(tmp_path / "folder" / "b.parquet", slice(0, N))
    tables = {"a folder": tmp_path / "folder"}
    for name in ("parquet", "csv", "jsonl"):
        tables |= {f"{name}, all": milliseconds(tmp_path / f"all.{name}", slice(0, N))}
        tables |= {f"{name}, one": milliseconds(tmp_path / f"one.{name}", slice(3, 4))}
    schema = {"label": "label", "time": "timestamp", "fields": [{"name": "item_id", "kind": "categorical"}],
              "split": {"kind": "temporal"}}  # fmt: skip
    readers = {
        "prepare": lambda table: prepare(table, tmp_path / "s"),
        "parts": lambda table: prepare(table, tmp_path / "s", parts=2),
        "later events": lambda table: later_events(table, store.catalog, store),
        "histories": lambda table: later_events(EVENTS, store.catalog, table),
    }
    for table in tables.values():
        for read in readers.values():
            with refused("wrong-time-unit", "milliseconds", "first in row", "time_unit="):
                read(table)
    clicks = pl.read_parquet(tables["parquet, one"]).with_columns(label=pl.int_range(N) % 2)
    for parts in (None, 2):
        with refused("wrong-time-unit", "row 3", "milliseconds"):
            prepare_impressions(clicks, tmp_path / "i", schema=schema, parts=parts)
    micro = EVENTS.with_columns(pl.col("timestamp") * 10**6)
    with refused("wrong-time-unit", "microseconds", "time_unit='us'"):
        prepare(micro, tmp_path / "s", time_unit="ms")
    assert prepare(micro, tmp_path / "s", time_unit="us").fingerprint == store.fingerprint


def test_text_files_that_need_a_word(tmp_path: Path) -> None:
    path, out = tmp_path / "e.csv", tmp_path / "s"
    path.write_text("user_id,item_id,user_id\n1,2,3\n")
    with refused("repeated-column", "'user_id' twice"):
        prepare(path, out, time_col=None)
    path.write_bytes("user_id,item_id\n1,a\n2,caf\xe9\n".encode("latin-1"))
    with refused("not-utf-8", "line 3", "0xe9", "caf\xe9", "iconv"):
        prepare(path, out, time_col=None)
    zones = ["2014-01-01T10:00:00Z", "2014-01-01T11:00:00", "2014-01-01T13:00:00+02:00", "2014-01-02"]
    mixed = pl.DataFrame({"user_id": [1] * 4, "item_id": [1, 2, 3, 4], "timestamp": zones})
    for parts in (None, 1):
        notes = prepare(mixed, out, parts=parts, overwrite=True).manifest["notes"]
        assert any("offset from UTC in some rows" in note for note in notes)
        notes = prepare(mixed[1::2], out, parts=parts, overwrite=True).manifest["notes"]
        assert not any("offset" in note for note in notes)


def test_dropping_is_advised_where_it_works(tmp_path: Path) -> None:
    gap = EVENTS.with_columns(user_id=pl.Series([None, *range(N - 1)]))
    with refused("missing-ids", "missing='drop' drops those"):
        prepare(gap, tmp_path / "s")
    prepare(gap, tmp_path / "s", missing="drop")
    for column, values, code in (
        ("timestamp", ["31/12/2014"] * N, "unreadable-times"), ("user_id", [None, *[1.5] * (N - 1)], "missing-ids"),
    ):  # fmt: skip
        with refused(code) as refusal:
            prepare(EVENTS.with_columns(pl.Series(column, values)), tmp_path / "t")
        assert "drop'" not in str(refusal)


def test_the_table_of_items_names_its_id_column(tmp_path: Path) -> None:
    items = pl.DataFrame({"sku": [0, 7, 99], "title": ["zero", "seven", "new"]})
    for parts in (None, 2):
        store = prepare(EVENTS, tmp_path / "s", items=items, items_id="sku", parts=parts, overwrite=True)
        assert store.catalog.frame["title"].drop_nulls().to_list() == ["zero", "seven"]
        notes = " ".join(store.manifest["notes"])
        assert "9 of 11 items have no row in the table of items" in notes and "1 of 3 items of the table" in notes
    with refused("missing-column", "'skv'", "sku"):
        prepare(EVENTS, tmp_path / "t", items=items, items_id="skv")
    with refused("missing-column", "items_id="):
        prepare(EVENTS, tmp_path / "t", items=items)
    with refused("setting-without-effect", "items_id"):
        prepare(EVENTS, tmp_path / "t", items_id="sku")


def test_what_does_not_fit_into_memory_is_prepared_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fullrank.data.events import prepare as preparing

    path = write(EVENTS, tmp_path / "e.csv.gz")
    expected = prepare(EVENTS, tmp_path / "two", parts=2).fingerprint
    monkeypatch.setattr(preparing, "SAID", 2000)
    said = []
    monkeypatch.setattr(preparing.log, "info", said.append)
    assert prepare(path, tmp_path / "s").manifest["format"] == "fullrank.store"
    assert f"{N} rows" in said[-1]
    monkeypatch.setattr(preparing, "available_bytes", lambda: 3000)
    store = prepare(path, tmp_path / "s", overwrite=True)
    assert len(store.folders) == 2 and store.fingerprint == expected and "in pieces" in said[-1]
    people = EVENTS.select("user_id").unique().with_columns(twice=2 * pl.col("user_id"))
    known = prepare(path, tmp_path / "known", users=people).users
    assert len(store.folders) == 2 and (known["twice"] == 2 * known["user_id"]).all() and len(known) == len(people)
    with pytest.raises(RuntimeError), monkeypatch.context() as broken:
        broken.setattr("fullrank.data.events.write.write_store", Mock(side_effect=RuntimeError))
        prepare(path, tmp_path / "again")
    assert prepare(path, tmp_path / "again").fingerprint == expected, "what was read by the broken one is taken up"
    write(EVENTS.with_columns(user_id=pl.lit(1)), path)
    monkeypatch.setattr(preparing, "available_bytes", lambda: 2500)
    with refused("too-large-for-memory", "40 events lie in one"):
        prepare(path, tmp_path / "u")
