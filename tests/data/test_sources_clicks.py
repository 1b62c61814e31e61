"""Sources of impressions: the publisher's format parsed to the fields of the literature, from tiny generated files."""

import datetime
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.sources import ImpressionTables
from fullrank.data.sources.frappe import FIELDS, Frappe
from fullrank.data.sources.movielens import MovieLensCTR
from fullrank.data.sources.planted_clicks import PlantedClicks
from fullrank.data.sources.reczoo import Avazu, Criteo
from refusals import refused
from tests.data.test_archives import packed

Folder = Callable[[str], Path]


def prepared(found: ImpressionTables, out: Path) -> fr.ImpressionStore:
    return fr.prepare_impressions(found.table, out, schema=found.schema, notes=found.notes)


def sizes(store: fr.ImpressionStore) -> list:
    return [len(store.split(part)) for part in ("train", "validation", "test")]


def frame(found: ImpressionTables) -> pl.DataFrame:
    return found.table.collect() if isinstance(found.table, pl.LazyFrame) else found.table


def criteo_part(rows: int, seed: int) -> str:
    draw = np.random.default_rng(seed)
    lines = [",".join(("label", *Criteo.numbers, *Criteo.categories))]
    for row in range(rows):
        numbers = [f"{x:.4f}" if x > 0.2 else "" for x in draw.random(13)]
        lines.append(",".join([f"{row % 2}.0", *numbers, *(f"{code:08x}" for code in draw.integers(0, 5, 26))]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("archived", [True, False])
def test_criteo(tmp_path: Path, archived: bool) -> None:
    parts = {"train.csv": 40, "valid.csv": 10, "test.csv": 6}
    texts = {name: criteo_part(rows, rows) for name, rows in parts.items()}
    if archived:
        members = {f"Criteo_x1/{name}": text.encode() for name, text in texts.items()}
        (tmp_path / "Criteo_x1.zip").write_bytes(packed("zip", members))
    else:
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
    found = Criteo().impressions(tmp_path)
    assert isinstance(found.table, pl.LazyFrame), "33 million rows are not read at once"
    store = prepared(found, tmp_path / "store")
    assert sizes(store) == [40, 10, 6]
    assert [field.kind for field in store.fields] == ["numeric"] * 13 + ["categorical"] * 26
    batch, first = store.batch(range(40, 50)), texts["valid.csv"].splitlines()[1].split(",")
    assert batch.missing[0].tolist() == [cell == "" for cell in first[1:14]]
    assert np.allclose(batch.numeric[0], [float(cell or 0) for cell in first[1:14]])
    assert [
        store.vocabulary(name)[int(batch.categorical[0, at]) - 2] for at, name in enumerate(Criteo.categories)
    ] == first[14:]


def test_criteo_of_another_version(tmp_path: Path) -> None:
    for name in ("train.csv", "valid.csv", "test.csv"):
        (tmp_path / name).write_text(criteo_part(4, 0).replace("I13", "J13"))
    with refused("missing-column", "I13", "train.csv"):
        Criteo().impressions(tmp_path)


def avazu_text(hours: list) -> str:
    header = ["id", "click", "hour", *Avazu.categories]
    lines = [",".join(header)]
    for row, hour in enumerate(hours):
        lines.append(
            ",".join([f"1000{row}", str(row % 2), hour, *(f"v{row % 3}" for _ in Avazu.categories[:-1]), f"only{row}"])
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["train.csv", "train.gz"])
def test_avazu(tmp_path: Path, name: str) -> None:
    days = [datetime.date(2014, 10, 21 + row % 9) for row in range(300)]
    text = avazu_text([f"{day:%y%m%d}{row % 24:02d}" for row, day in enumerate(days)])
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    found = Avazu(seed=3).impressions(tmp_path)
    table = frame(found)
    assert "id" not in table.columns and len(found.schema.fields) == 24
    assert table["weekday"].to_list() == [int(day.strftime("%w")) for day in days]
    assert table["weekend"].to_list() == [int(day.strftime("%w") in "06") for day in days]
    assert table["hour"].to_list() == [row % 24 for row in range(300)]
    store = prepared(found, tmp_path / "store")
    assert sum(sizes(store)) == 300 and abs(sizes(store)[0] - 240) < 25
    by_name = {field.name: field for field in store.fields}
    assert by_name["C21"].size == 2, "what is seen once is unknown"
    assert by_name["weekend"].size == 4 and by_name["site_id"].size == 5


def test_avazu_given(tmp_path: Path) -> None:
    for name, rows in (("train.csv", 20), ("valid.csv", 6), ("test.csv", 4)):
        (tmp_path / name).write_text(avazu_text(["14102100"] * rows))
    store = prepared(Avazu(split="given").impressions(tmp_path), tmp_path / "store")
    assert sizes(store) == [20, 6, 4]
    with refused("setting-without-effect", "seed"):
        Avazu.parse({"split": "given", "seed": 1})


def frappe_text(rows: int) -> str:
    lines = ["\t".join((*FIELDS[:2], "cnt", *FIELDS[2:]))]
    for row in range(rows):
        context = ["morning", "sunday", "weekend", "home", "free", "sunny", "Spain", "0"]
        lines.append("\t".join([str(row % 5), str(row % 9), "3", *context]))
    return "\n".join(lines) + "\n"


def test_frappe_records(tmp_path: Path) -> None:
    (tmp_path / "frappe.csv").write_text(frappe_text(30))
    found = Frappe(negatives=2, seed=1).impressions(tmp_path)
    table = frame(found)
    assert table["label"].to_list() == [1, 0, 0] * 30
    used = {(row % 5, row % 9) for row in range(30)}
    pairs = list(zip(table["user"], table["item"], strict=True))
    assert [pair in used for pair in pairs] == [True, False, False] * 30
    assert frame(Frappe(seed=1).impressions(tmp_path)).equals(table)
    assert not frame(Frappe(seed=2).impressions(tmp_path)).equals(table)
    assert len(prepared(found, tmp_path / "store").fields) == 10
    (tmp_path / "frappe.csv").write_text(frappe_text(45))
    with refused("no-negatives-left", "frappe.csv"):
        Frappe().impressions(tmp_path)


def test_movielens_from_the_publisher(tmp_path: Path) -> None:
    files = {
        "ratings": [f"{row % 4 + 1}::{row % 6 + 1}::{row % 5 + 1}::{978_300_000 + 3_600 * row}" for row in range(100)],
        "movies": [f"{at}::Film {at} (19{90 + at})::Drama|Comedy" for at in range(1, 6)] + ["6::Café::War"],
        "users": [f"{at}::F::25::{at}::0{at}" for at in range(1, 5)],
    }
    members = {f"ml-1m/{name}.dat": "\n".join(rows).encode("latin-1") for name, rows in files.items()}
    (tmp_path / "ml-1m.zip").write_bytes(packed("zip", members))
    found = MovieLensCTR().impressions(tmp_path)
    assert frame(found).row(0, named=True) == {
        "rating": 1.0, "timestamp": 978_300_000, "user": 1, "item": 1, "gender": "F", "age": 25, "occupation": 1,
        "zip": "01", "year": 1991, "genre": "Drama", "hour": 22, "weekday": 7, "genres": "Drama|Comedy",
    }  # fmt: skip
    store = prepared(found, tmp_path / "store")
    assert store.labels("train").tolist() == [int(row % 5 + 1 >= 4) for row in range(80)]
    assert store.manifest["counts"]["missing"]["year"] == 16
    assert store.encode(frame(found)).groups is not None


def test_real_movielens(real_data: Folder, tmp_path: Path) -> None:
    folder = real_data("ml-1m")
    found = MovieLensCTR().impressions(folder)
    store = prepared(found, tmp_path / "store")
    assert sizes(store) == [799_688, 99_961, 99_962]
    assert [field.name for field in store.fields] == [
        "user", "item", "gender", "age", "occupation", "zip", "year", "genre", "genres", "hour", "weekday"
    ]  # fmt: skip
    raw = pl.read_parquet(folder / "ratings.parquet").with_row_index("row").sort("timestamp", maintain_order=True)
    train = store.external(store.split("train"))
    assert train["input_row"].to_list() == sorted(raw["row"][:799_688])
    later = store.external(store.split("test"))
    assert train["time"].max() <= later["time"].min()
    assert int(store.labels("test").sum()) == int((raw["rating"][899_649:] >= 4).sum())


def test_real_frappe(real_data: Folder, tmp_path: Path) -> None:
    store = prepared(Frappe().impressions(real_data("frappe")), tmp_path / "store")
    assert len(store) == 288_609 and store.num_groups == 957
    assert sizes(store) == [202_252, 57_645, 28_712]
    assert store.manifest["counts"]["parts"]["test"]["positive"] == 9_521
    with refused("setting-without-effect", "negatives", "seed"):
        Frappe(seed=2).impressions(real_data("frappe"))


def test_planted_clicks_are_what_the_law_says(tmp_path: Path) -> None:
    spec = PlantedClicks(rows=60_000, seed=4)
    table = frame(spec.impressions())
    assert table.equals(frame(spec.impressions())) and not table.equals(frame(PlantedClicks(rows=60_000).impressions()))
    user, item = spec.signs("user"), spec.signs("item")
    assert user.sum() == item.sum() == spec.signs("device").sum() == spec.signs("hour").sum() == 0
    pair = user[table["user"] - 1] * item[table["item"] - 1001]
    other = spec.signs("hour")[table["hour"]]
    device = spec.signs("device")[pl.Series(["phone", "tablet", "laptop", "tv"]).to_frame("d").with_row_index().join(
        table.select(d="device"), on="d", how="right", maintain_order="right")["index"]]  # fmt: skip
    logit = spec.bias + spec.strength * pair + spec.context * device * other
    assert np.allclose(table["probability"], 1 / (1 + np.exp(-logit)))
    assert abs(table["click"].mean() - table["probability"].mean()) < 0.01
    for low in (0.0, 0.25, 0.5, 0.75):
        near = table.filter(pl.col("probability").is_between(low, low + 0.25))
        assert len(near) == 0 or abs(near["click"].mean() - near["probability"].mean()) < 0.02, "calibrated"
    for name in ("user", "item", "device", "hour"):
        means = table.group_by(name).agg(pl.col("probability").mean(), pl.len()).filter(pl.col("len") > 200)
        assert means["probability"].std() < 0.02, f"{name} alone says nothing"
    store = prepared(spec.impressions(), tmp_path / "store")
    assert {field.name: field.shares for field in store.fields}["history"] == "item"
    assert "probability" not in store.schema.columns
