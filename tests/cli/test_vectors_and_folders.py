"""`recommend --users --filter`, `similar`, `vectors`, `grow` and `export --to folder` on one tiny market."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from fullrank import api
from fullrank.cli.column_filters import parse_filters
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.verification import verify
from refusals import refused

if TYPE_CHECKING:
    from conftest import Call, Refuses

COLUMNS = {
    "genre": pl.Series("genre", ["x"]), "year": pl.Series("year", [1]), "price": pl.Series("price", [0.5]),
    "in stock": pl.Series("in stock", [True]), "tags": pl.Series("tags", [["a"]]),
}  # fmt: skip


def test_filters_are_read_by_the_type_of_their_column() -> None:
    given = ["genre=a", "genre=b=c", "year>=2000", "year <= 2010", "price=0.5", "in stock=true", "tags=x"]
    assert parse_filters(given, COLUMNS) == {
        "genre": ["a", "b=c"], "year": {"min": 2000, "max": 2010}, "price": [0.5], "in stock": [True], "tags": ["x"],
    }  # fmt: skip
    assert parse_filters([], COLUMNS) is None


@pytest.mark.parametrize(
    ("given", "code"),
    [(["genre"], "not-a-filter"), (["gene=a"], "unknown-column"), (["year=new"], "filter-wrong-type"),
     (["in stock=yes"], "filter-wrong-type"), (["year=3", "year>=2"], "given-twice"),
     (["year>=3", "year>=2"], "given-twice")],
)  # fmt: skip
def test_a_filter_that_cannot_be_read(given: list[str], code: str) -> None:
    with refused(code, given[-1].split("=")[0].rstrip(">")):
        parse_filters(given, COLUMNS)


def test_users_and_filters(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    users, items = store.user_ids.head(2).to_list(), store.catalog.ids
    pl.DataFrame({"item_id": items, "price": range(len(items))}).write_csv(tmp_path / "prices.csv")
    asked = ("recommend", shop / "sasrec", "--users", f"{users[0]},{users[1]}", "--k", "4", "--json")
    more = ("--filters", "price>=3", "--filters", "price<=30", "--items", tmp_path / "prices.csv")
    found = call(*asked, *more).json
    own = api.recommend(
        shop / "sasrec", users=users, k=4, filters={"price": {"min": 3, "max": 30}},
        item_table=tmp_path / "prices.csv", titles=True,
    )  # fmt: skip
    assert found["recommendations"] == own.to_dicts() and {row["source"] for row in own.to_dicts()} == {"model"}
    assert found["filters"] == {"price": {"min": 3, "max": 30}} and found["unknown_users"] == "error"
    pl.DataFrame({"who": [users[0]]}).write_csv(tmp_path / "who.csv")
    one = call(*asked[:2], "--users", tmp_path / "who.csv", "--user-col", "who", "--data", shop / "data", "--json").json
    assert {row["user"] for row in one["recommendations"]} == {users[0]}
    words = asked[:-1]
    refuses("unknown-user", [*words[:2], "--users", f"{users[0]},987654"], "987654")
    refuses("options-exclude-each", [*words, "--history", "1"], "--users")
    refuses("option-without-effect", [*words, "--items", tmp_path / "prices.csv"], "--items")
    refuses("option-without-effect", [*words[:2], "--history", items[0], "--data", shop / "data"], "--data")
    refuses("unknown-column", [*words, "--filters", "prise=3"], "prise")
    refuses("option-without-effect", ["recommend", "--url", "http://127.0.0.1:1", "--filters", "a=b"], "--filters")


def test_similar_items(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    first, second = Store.open(shop / "data").catalog.ids.head(2).to_list()
    words = ("similar", shop / "sasrec", "--item", first, "--item", second, "-k", "3")
    own = api.similar_items(shop / "sasrec", [first, second], 3, titles=True)
    assert call(*words, "--json").json["similar"] == own.to_dicts()
    assert f"item {second}" in call(*words).out
    assert call(*words, "--out", tmp_path / "near.csv", "--json").json["rows"] == 6
    refuses("unknown-item", ["similar", shop / "sasrec", "--item", "987654"], "987654")
    refuses("no-item-similarity", ["similar", shop / "popularity", "--item", first])


def test_vectors(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    found = call("vectors", shop / "sasrec", "--out", tmp_path / "items.parquet", "--json").json
    items = pl.read_parquet(tmp_path / "items.parquet")
    assert items.equals(api.item_vectors(shop / "sasrec")) and (found["rows"], found["of"]) == (len(items), "items")
    user = store.user_ids[0]
    assert call("vectors", shop / "sasrec", "--users", user, "--out", tmp_path / "users.parquet").code == 0
    assert pl.read_parquet(tmp_path / "users.parquet").equals(api.user_vectors(shop / "sasrec", users=[user]))
    refuses("unknown-suffix", ["vectors", shop / "sasrec", "--out", tmp_path / "v.csv"], ".parquet")
    refuses("option-without-effect", ["vectors", shop / "sasrec", "--data", shop, "--out", tmp_path / "v.parquet"])
    refuses("no-vectors", ["vectors", shop / "item_to_item", "--out", tmp_path / "v.parquet"])


def test_grow(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("sku\n900001\n900002\n")
    words = ("grow", shop / "sasrec", "--items", tmp_path / "new.csv", "--item-col", "sku", "--out", tmp_path / "grown")
    refuses("no-item-features", words)
    found = call(*words, "--start", "mean", "--json").json
    assert found["new"] == 2 and found["items"] == Run.open(tmp_path / "grown").catalog.size
    assert len(api.recommend(tmp_path / "grown", [[900001]], k=2, unknown="error")) == 2
    refuses("unknown-value", [*words, "--start", "meen"], "mean")


def test_the_folder_to_ship_answers_alone(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    item = Store.open(shop / "data").catalog.ids[0]
    own = api.recommend(shop / "sasrec", [[item]], k=5, titles=True)
    out = tmp_path / "ship"
    found = call("export", shop / "sasrec", "--to", "folder", "--out", out, "--json").json
    names = {"items.parquet", "manifest.json", "spec.json", "weights.safetensors"}
    assert {path.name for path in out.iterdir()} == names and set(found["files"]) == names - {"manifest.json"}
    assert verify(out).ok and (shop / "sasrec" / "checkpoints").exists()
    moved = Path(shutil.move(out, tmp_path / "elsewhere"))
    assert api.recommend(moved, [[item]], k=5, titles=True).equals(own)
    api.export(shop / "sasrec", tmp_path / "logs", to="folder", logs=True)
    assert Run.open(tmp_path / "logs").rows() == Run.open(shop / "sasrec").rows() != []
    words = ["export", shop / "sasrec", "--to", "folder", "--out"]
    refuses("folder-not-empty", [*words, moved])
    refuses("option-without-effect", [*words, out, "--k", 5], "k")
    refuses("option-without-effect", ["export", shop / "sasrec", "--to", "faiss", "--logs", "--out", out], "logs")
    (moved / "weights.safetensors").write_bytes((moved / "weights.safetensors").read_bytes()[:-1] + b"x")
    refuses("file-damaged", ["export", moved, "--to", "folder", "--out", out])
    assert not out.exists()
