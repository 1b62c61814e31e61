"""Schemas and vocabularies: what is refused with which sentence, and what equals what."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data.frames import InputTable
from fullrank.data.impressions.encoding import bag_values
from fullrank.data.impressions.infer import infer, summary
from fullrank.data.impressions.numeric import Moments, Quantiles
from fullrank.data.impressions.schema import BagOf, FieldInfo, Schema, SequenceOf
from fullrank.data.impressions.vocabulary import Counts, Hashed, Vocabulary, canonical, hash_bucket
from refusals import refused

ROWS = 60
FRAME = pl.DataFrame(
    {
        "label": [row % 2 for row in range(ROWS)],
        "user": [row % 7 for row in range(ROWS)],
        "item": [f"i{row % 11}" for row in range(ROWS)],
        "price": [None if row % 9 == 0 else row / 3 for row in range(ROWS)],
        "tags": ["a|b", "b", "", "c|a|b"] * 15,
        "when": list(range(1_600_000_000, 1_600_000_000 + ROWS)),
        "split": ["train"] * 40 + ["valid"] * 10 + ["test"] * 10,
    }
)
FIELDS = ["user", "item", {"kind": "numeric", "name": "price"}]


def prepared(tmp_path: Path, frame: Any = FRAME, **schema: Any) -> fr.ImpressionStore:
    whole = {"fields": FIELDS, "split": "given"} | schema
    return fr.prepare_impressions(frame, tmp_path / "store", schema=whole, overwrite=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", ("invalid-setting", "fields")),
        ("fields: []", ("invalid-setting", "fields", "at least 1")),
        ("fields: [a, a]", ("repeated-field", "'a'")),
        ("fields: [label]", ("label-is-a-field", "'label'")),
        ("fields: [split]\nsplit: given", ("split-column-is-a-field", "'split'")),
        ("fields: [a]\nlabels: b", ("unknown-setting", "labels", "'label'")),
        ("fields: [{name: a, mincount: 2}]", ("unknown-setting", "mincount", "'min_count'")),
        ("fields: [{kind: numerical, name: a}]", ("unknown-kind-of-field", "numerical", "'numeric'")),
        ("fields: [{name: a, hash_buckets: 5, min_count: 2}]", ("setting-without-effect", "min_count", "hash_buckets")),
        ("fields: [{kind: numeric, name: a, buckets: 5}]", ("setting-without-effect", "buckets", "transform=standard")),
        ("fields: [{kind: bag, name: a, shares: itm}, item]", ("unknown-categorical-field", "itm", "'item'")),
        (
            "fields: [{kind: bag, name: a, shares: b, min_count: 3}, b]",
            ("setting-without-effect", "shares=b", "min_count"),
        ),
        ("fields: [{kind: bag, name: a, extends: true}]", ("setting-without-effect", "'a'", "extends", "shares")),
        (
            "fields: [{kind: bag, name: a, shares: b, extends: true}, {name: b, hash_buckets: 9}]",
            ("setting-without-effect", "'a'", "extends", "'b'"),
        ),
        ("fields: [a]\nsplit: temporal", ("split-needs-times", "temporal", "time")),
        ("fields: [a]\nsplit: tmporal", ("unknown-split", "tmporal", "'temporal'")),
        ("fields: [a]\ntime_unit: ms", ("setting-without-effect", "time_unit")),
        ("fields: [a]\nsplit: {kind: random, shares: [0.5, 0.1, 0.1]}", ("wrong-shares", "(0.5, 0.1, 0.1)")),
        ("fields: [a]\nsplit: {kind: random, shares: [0, 0.5, 0.5]}", ("wrong-shares", "(0.0, 0.5, 0.5)")),
    ],
)
def test_a_schema_that_cannot_be_meant(text: str, says: tuple) -> None:
    with refused(*says):
        Schema.from_text(text)


def test_a_schema_that_is_no_yaml() -> None:
    with refused("neither-yaml-nor-json"):
        Schema.from_text("fields: [a")


def test_schema_round_trip(tmp_path: Path) -> None:
    tree = {"fields": [*FIELDS, {"kind": "bag", "name": "tags", "separator": "|"}], "time": "when", "split": "temporal"}
    schema = Schema.parse(tree)
    assert Schema.from_text(schema.to_yaml()) == schema == Schema.from_text(schema.to_json())
    for name, text in (("s.yaml", schema.to_yaml()), ("s.json", schema.to_json())):
        (tmp_path / name).write_text(text)
        assert Schema.read(tmp_path / name) == schema
    with refused("file-unreadable"):
        Schema.read(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("change", "schema", "says"),
    [
        ({"label": pl.lit(3)}, {}, ("wrong-labels", "60 labels", "label_threshold")),
        ({"label": pl.lit(None)}, {}, ("wrong-column-type", "'label'", "Null")),
        ({"label": pl.when(pl.col("user") > 0).then("label")}, {}, ("unreadable-numbers", "'label'", "9 missing")),
        ({"label": pl.lit("yes")}, {}, ("unreadable-numbers", "'label'", "'yes'")),
        ({"label": pl.lit(1)}, {}, ("constant-labels", "40 train rows", "label 1")),
        ({"label": pl.when(pl.col("split") == "test").then(0).otherwise("label")}, {},
         ("constant-labels", "10 test rows", "label 0")),
        ({"split": pl.lit("later")}, {}, ("unknown-split", "'later'", "train, validation, test")),
        ({"split": pl.lit(1)}, {}, ("wrong-column-type", "'split'", "Int")),
        ({"split": pl.lit("valid")}, {}, ("empty-split", "given", "training")),
        ({"user": pl.col("user") + 0.5}, {}, ("not-whole-numbers", "'user'")),
        ({"user": pl.lit(None).cast(pl.Int64)}, {"group": "user"}, ("missing-groups", "'user'")),
        ({"user": pl.col("when").cast(pl.Datetime)}, {}, ("wrong-column-type", "'user'", "Datetime")),
        ({"price": pl.lit(float("inf"))}, {}, ("unreadable-numbers", "'price'")),
        ({"price": pl.lit(1e300)}, {"fields": [{"kind": "numeric", "name": "price", "transform": "linear"}]},
         ("numbers-too-large", "'price'", "3e38")),
        ({"price": pl.concat_list("price")}, {}, ("wrong-column-type", "'price'", "List")),
        ({"when": pl.lit("yesterday")}, {"time": "when", "split": "temporal"},
         ("unreadable-times", "'when'", "'yesterday'")),
        ({}, {"fields": [{"kind": "bag", "name": "tags"}]}, ("missing-separator", "'tags'")),
        ({"tags": pl.col("tags").str.split("|")}, {"fields": [{"kind": "bag", "name": "tags", "separator": "|"}]},
         ("setting-without-effect", "separator='|'")),
        ({}, {"fields": [{"kind": "bag", "name": "user"}]}, ("wrong-column-type", "'user'", "Int64", "bag")),
        ({}, {"fields": ["usr"]}, ("missing-column", "'usr'", "'user'")),
        ({}, {"label": "lable"}, ("missing-column", "lable", "'label'")),
        ({}, {"group": "session"}, ("missing-column", "'session'")),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_meant(tmp_path: Path, change: dict, schema: dict, says: tuple) -> None:
    with refused(*says):
        prepared(tmp_path, FRAME.with_columns(**change), **schema)
    assert list(tmp_path.iterdir()) == []


def test_a_column_of_splits_is_read_where_it_is_the_split(tmp_path: Path) -> None:
    random = {"kind": "random", "shares": [0.4, 0.3, 0.3]}
    assert len(prepared(tmp_path, FRAME.with_columns(split=pl.lit("x")), split=random)) == ROWS


def test_no_rows_and_no_table(tmp_path: Path) -> None:
    for table, *says in ((FRAME.head(0), "empty-table", "impressions"), (5, "not-a-table", ".parquet", "polars"),
                         (tmp_path / "none.parquet", "missing-file", "none.parquet")):  # fmt: skip
        with refused(*says):
            prepared(tmp_path, table)


def test_every_engine_gives_the_same_store(tmp_path: Path) -> None:
    schema = {"fields": [*FIELDS, {"kind": "bag", "name": "tags", "separator": "|"}], "group": "user", "time": "when"}
    FRAME.write_parquet(tmp_path / "t.parquet", row_group_size=7)
    FRAME.write_csv(tmp_path / "t.csv")
    FRAME.write_ndjson(tmp_path / "t.jsonl")
    pandas = FRAME.to_pandas()
    tables = [FRAME, FRAME.lazy(), pandas, FRAME.to_arrow(), duckdb.sql("select * from pandas")]
    tables += [tmp_path / "t.parquet", tmp_path / "t.csv", tmp_path / "t.jsonl"]
    prints = {prepared(tmp_path, table, **schema).fingerprint for table in tables}
    assert len(prints) == 1
    assert prepared(tmp_path, FRAME.reverse(), **schema).fingerprint not in prints


def test_groups_keep_their_type(tmp_path: Path) -> None:
    text = FRAME.with_columns(pl.col("user").cast(pl.String))
    text.write_csv(tmp_path / "t.csv")
    for table, kind in ((FRAME, pl.Int64), (text, pl.String), (tmp_path / "t.csv", pl.Int64)):
        assert prepared(tmp_path, table, group="user").external(range(1)).schema["group"] == kind


def test_the_order_of_rows_does_not_change_ids(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    vocabulary = [first.vocabulary(name).to_list() for name in ("user", "item")]
    shuffled = prepared(tmp_path, FRAME.sample(fraction=1.0, shuffle=True, seed=3))
    assert [shuffled.vocabulary(name).to_list() for name in ("user", "item")] == vocabulary


def test_permuting_the_schema_permutes_columns_alone(tmp_path: Path) -> None:
    one = prepared(tmp_path).batch(range(ROWS))
    store = prepared(tmp_path, fields=[FIELDS[2], FIELDS[1], FIELDS[0]])
    other = store.batch(range(ROWS))
    assert torch.equal(one.categorical[:, [1, 0]], other.categorical) and torch.equal(one.numeric, other.numeric)
    assert store.fields[0] == FieldInfo("price", "numeric", 0)


def test_new_impressions(tmp_path: Path) -> None:
    store = prepared(tmp_path, group="user")
    fresh = pl.DataFrame({"user": [3, 99, None], "item": ["i1", "", "new"], "price": [1.0, float("nan"), None]})
    batch = store.encode(fresh)
    assert (batch.categorical < 2).tolist() == [[False, False], [True, True], [True, True]]
    assert batch.categorical[1:].tolist() == [[1, 0], [0, 1]]
    assert batch.missing[:, 0].tolist() == [False, True, True] and batch.numeric[1:].abs().sum() == 0
    assert batch.labels is None and batch.groups is None
    known = store.encode(fresh.head(2).with_columns(label=pl.Series([0, 1])))
    assert known.labels.tolist() == [0, 1]
    assert known.groups.tolist() == [3, 7]
    text = store.encode(fresh.with_columns(pl.col("user").cast(pl.String)))
    assert torch.equal(text.categorical, batch.categorical)
    with refused("missing-column", "'item'"):
        store.encode(fresh.drop("item"))
    with refused("unreadable-numbers", "'price'", "dear"):
        store.encode(fresh.with_columns(price=pl.lit("dear")))
    assert len(store.encode(fresh.head(0))) == 0
    whole = store.encode(FRAME[store.external(range(ROWS))["input_row"].to_numpy()])
    assert torch.equal(whole.categorical, store.batch(range(ROWS)).categorical)


def test_vocabulary_of_other_fields(tmp_path: Path) -> None:
    store = prepared(tmp_path, fields=[{"name": "user", "hash_buckets": 4}, *FIELDS[1:]])
    assert store.fields[0].size == 6
    for field, says in (
        ("user", ("no-vocabulary", "'user'", "hashed")),
        ("price", ("no-vocabulary", "'price'", "number")),
        ("itm", ("unknown-field", "itm", "'item'")),
    ):
        with refused(*says):
            store.vocabulary(field)


def test_the_hash_is_the_same_everywhere() -> None:
    assert [hash_bucket(text, 1_000) for text in ("", "a", "42", "é")] == [756, 928, 983, 963], "stores hold them"
    values = pl.Series(["a", None, "42", "a"])
    ids = Hashed(10).ids(values)
    assert ids.tolist() == [2 + hash_bucket("a", 10), 0, 2 + hash_bucket("42", 10), 2 + hash_bucket("a", 10)]
    assert Hashed(10).ids(pl.Series([42])).tolist() == [2 + hash_bucket("42", 10)]


@pytest.mark.parametrize(
    ("known", "asked", "ids"),
    [
        (["42", "7", "-3", str(2**62)], [7, 42, 8, -3, 2**62, -(2**62), None], [3, 2, 1, 4, 5, 1, 0]),
        (["42", "7", "-3", str(2**62)], ["7", "07", "x", None], [3, 1, 1, 0]),
        (["5", "9", "6"], [4, 5, 6, 7, 9, 10, 2**63 - 1, -(2**63)], [1, 2, 4, 1, 3, 1, 1, 1]),
        (["042", "7"], [42, 7], [1, 3]),
        (["042", "7"], ["042"], [2]),
        ([], ["a", None], [1, 0]),
    ],
)
def test_lookup_compares_as_text(known: list[str], asked: list, ids: list[int]) -> None:
    assert Vocabulary(pl.Series(known, dtype=pl.String)).ids(pl.Series(asked)).tolist() == ids


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([1.0, float("nan"), None], pl.Float64, [1, None, None]),
        ([True, None], pl.Boolean, ["true", None]),
        (["a", ""], pl.Categorical, ["a", None]),
        ([2**64 - 1], pl.UInt64, [str(2**64 - 1)]),
    ],
)
def test_canonical(values: list, dtype: Any, wanted: list) -> None:
    assert canonical(pl.Series(values, dtype=dtype), "x").to_list() == wanted


@pytest.mark.parametrize("kind", ["bag", "sequence"])
def test_lists_that_repeat_are_those_that_do_not(kind: str) -> None:
    """Text of few different lists is cut once for each; behind a thousand rows of them it may be otherwise."""
    (field,) = Schema.parse({
        "label": "x", "fields": [{"kind": kind, "name": "tags", "separator": "|", "max_length": 3}]
    }).fields  # fmt: skip
    assert isinstance(field, BagOf | SequenceOf)
    few = ["b", None, "a| b|c|d", "", "|", "  ", "c||a", "b"] * 200
    for texts in (few, few[:1200] + [f"{row}|{row % 7}" for row in range(2000)], few[:9], [None] * 9, []):
        found, lengths = bag_values(pl.Series("tags", texts, dtype=pl.String), field, "x")
        cut = [[part.strip() for part in (text or "").split("|") if part.strip()] for text in texts]
        kept = [parts[:3] if kind == "bag" else parts[-3:] for parts in cut]
        assert found.to_list() == [part for parts in kept for part in parts] and found.dtype == pl.String
        assert lengths.tolist() == list(map(len, kept)) and lengths.dtype == np.int64


def test_counts_survive_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.data.impressions.vocabulary._MERGE", 3)
    draw = np.random.default_rng(0).integers(0, 30, 1000)
    counts = Counts()
    for part in np.array_split(draw, 41):
        counts.add(pl.Series(part))
    table = counts.table(least=25)
    found = dict(zip(table["value"].cast(pl.Int64), table["count"], strict=True))
    assert found == {v: int(c) for v, c in zip(*np.unique(draw, return_counts=True), strict=True) if c >= 25}
    assert table["count"].to_list() == sorted(found.values(), reverse=True)


def test_statistics_do_not_depend_on_the_cut() -> None:
    draw = np.random.default_rng(0).normal(5, 2, 5_000)
    draw[::7] = np.nan
    for pieces in (1, 3, 11):
        moments, quantiles, sample = Moments(), Quantiles(10), Quantiles(10, sample=500)
        for values, rows in zip(np.array_split(draw, pieces), np.array_split(np.arange(5_000), pieces), strict=True):
            for gatherer in (moments, quantiles, sample):
                gatherer.add(values, rows)
        found = moments.fitted()
        assert np.allclose([found["mean"], 1 / found["scale"]], [np.nanmean(draw), np.nanstd(draw)])
        exact = np.quantile(draw[~np.isnan(draw)], np.arange(1, 10) / 10, method="inverted_cdf")
        assert quantiles.fitted()["edges"] == exact.tolist()
        assert np.allclose(sample.fitted()["edges"], exact, atol=0.4)
        edges = sample.fitted()["edges"] if pieces == 1 else edges
        assert sample.fitted()["edges"] == edges, "the sample is chosen by row number"
    assert Moments().fitted()["scale"] == 0 and Quantiles(3).fitted() == {"edges": []}


def test_inference(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store = fr.prepare_impressions(FRAME, tmp_path / "store")
    said = capsys.readouterr().err
    assert "label: label" in said and "group: user" in said and "split: given" in said
    assert [(field.name, field.kind) for field in store.fields] == [
        ("user", "categorical"), ("item", "categorical"), ("price", "numeric"), ("tags", "bag"),
        ("when", "categorical"),
    ]  # fmt: skip
    FRAME.drop("split").rename({"label": "click", "when": "timestamp"}).write_csv(tmp_path / "t.csv")
    found = infer(InputTable(tmp_path / "t.csv", "impressions"))
    assert (found.label, found.time, found.split.kind, found.group) == ("click", "timestamp", "temporal", "user")
    assert "numeric: price" in summary(found)
    lists = FRAME.with_columns(pl.col("tags").str.split("|"), pl.col("user").cast(pl.Float64)).drop("split", "when")
    found = infer(InputTable(lists, "impressions"))
    assert [field.kind for field in found.fields] == ["categorical", "categorical", "numeric", "bag"]
    with refused("no-label-column", "label, click"):
        fr.prepare_impressions(FRAME.drop("label"), tmp_path / "none")
    with refused("no-field-columns", "'label'"):
        fr.prepare_impressions(FRAME.select("label"), tmp_path / "none")


def looked_at(**columns: Any) -> dict:
    """The fields that are inferred of a table with a label and these columns, by name."""
    rows = len(next(iter(columns.values())))
    frame = pl.DataFrame({"label": [0, 1] * (rows // 2), **columns}, strict=False)
    return {field.name: field for field in infer(InputTable(frame, "impressions")).fields}


def test_lists_are_inferred_from_evidence(capsys: pytest.CaptureFixture) -> None:
    """Text whose parts come back at other places is lists; prose, places, names and numbers with commas are not."""
    draw = np.random.default_rng(0)
    genres = ["Drama", "Comedy", "Romance", "War", "Film-Noir", "Musical"]
    sets = [[genres[g] for g in draw.choice(6, size=n, replace=False)] for n in draw.integers(1, 4, 400)]
    ids = [[str(i) for i in draw.integers(0, 300, size=n)] for n in draw.integers(1, 30, 400)]
    words = [f"w{n}" for n in range(900)]
    towns = [f"Town {n}, {'ABC'[n % 3]}land" for n in range(150)]
    lists = {
        "genres": ["|".join(one) for one in sets], "moods": [", ".join(one) for one in sets],
        "bought": [";".join(one) for one in ids], "hist_item": [" ".join(one) for one in ids],
    }  # fmt: skip
    other = {
        "review": [", ".join(" ".join(draw.choice(words, 3)) for _ in range(n)) for n in draw.integers(1, 5, 400)],
        "title": [f"Movie {n}, The ({1950 + n % 50})" for n in range(400)],
        "town": [towns[n] for n in draw.integers(0, 150, 400)],
        "people": [f"Doe{n % 97}, J{n % 61}" for n in range(400)],
        "price": [f"{n:,}" for n in draw.integers(1000, 2_000_000, 400)],
        "moment": [f"2024-01-{n % 30 + 1:02} {n % 24:02}:{n % 7}0" for n in range(400)],
        "size": ["S", "M", "L", "XL"] * 100,
    }  # fmt: skip
    found = looked_at(**lists, **other, item=[int(one[0]) for one in ids])
    kinds = {name: (field.kind, getattr(field, "separator", None)) for name, field in found.items()}
    assert [kinds[name] for name in lists] == [("bag", "|"), ("bag", ","), ("bag", ";"), ("sequence", " ")]
    assert {kinds[name] for name in other} <= {("categorical", None), ("numeric", None)}, kinds
    assert found["hist_item"].shares == "item"
    said = capsys.readouterr().err
    assert "{kind: bag, name: people, separator: ','}" in said, "it may be lists, so it is noted"
    assert not any(name in said for name in ("review", "title", "town", "size"))


def test_a_list_named_like_a_history_is_a_sequence_of_its_target() -> None:
    lists = [[1, 2], [3], [2, 5], []] * 10
    names = {"history": "sequence", "clicked_items": "sequence", "item_hist": "sequence",
             "category_history": "sequence",
             "historic_places": "bag", "tags": "bag", "chemistry": "bag"}  # fmt: skip
    found = looked_at(item_id=[1, 2, 3, 4] * 10, category=[7, 8] * 20, **dict.fromkeys(names, lists))
    assert {name: found[name].kind for name in names} == names
    shared = {name: found[name].shares for name, kind in names.items() if kind == "sequence"}
    assert shared == {"history": "item_id", "clicked_items": "item_id", "item_hist": "item_id", "category_history":
                      "item_id"}  # fmt: skip  # of its categories nothing is in the history
    schema = fr.Schema(label="l", fields=["item", {"kind": "sequence", "name": "seen", "separator": "|",
                                                   "shares": "item"}])  # fmt: skip
    assert "seen: text cut at '|', a sequence, oldest first, of the values of item" in summary(schema)


def test_fewer_buckets_than_asked_for_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """In one store and in parts: where it happens, with the number; as many as asked for, or not asked, say nothing."""
    frame = pl.DataFrame({"label": [0, 1] * 200, "few": [1, 2, 3, 3] * 100, "many": range(400)})
    bucket = {"kind": "numeric", "transform": "bucket"}
    fields = [{"name": "few", "buckets": 20, **bucket}, {"name": "many", "buckets": 20, **bucket}]
    for parts in (None, 2):
        store = fr.prepare_impressions(frame, tmp_path / f"s{parts}", schema={"fields": fields}, parts=parts)
        (note,) = store.encoder.notes
        made = len(store.encoder.fitted["few"]["edges"]) + 1
        assert f"'few' has {made} buckets of the 20 asked for" in note and note in capsys.readouterr().err
    plain = [{"name": "few", **bucket}]
    assert fr.prepare_impressions(frame, tmp_path / "p", schema={"fields": plain}).encoder.notes == []


@pytest.mark.parametrize("kind", [{"a": 1}, ["numeric"], 5])
def test_a_kind_that_is_no_name_is_refused(kind: Any) -> None:
    from fullrank.data.events.prepare import Prepare

    with refused("unknown-kind-of-field", kind):
        fr.Schema.parse({"label": "l", "fields": [{"name": "a", "kind": kind}]})
    with refused("unknown-split", kind):
        fr.Schema.parse({"label": "l", "fields": ["a"], "split": {"kind": kind}})
    with refused("unknown-split", kind):
        Prepare.parse({"split": {"kind": kind}})
