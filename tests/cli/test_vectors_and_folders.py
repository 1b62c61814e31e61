"""`recommend --users --filter`, `similar`, `vectors`, `grow` and `export --to folder` on one tiny market."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from fullrank import api
from fullrank.cli.list_options import parse_filters
from fullrank.data.events.store import Store
from fullrank.run import Run
from fullrank.verification import verify
from refusals import refused
from tests.cli.conftest import Ask, Call, Refuses

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


def test_users_and_filters(ask: Ask, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    users, items = store.user_ids.head(2).to_list(), store.catalog.ids
    pl.DataFrame({"item_id": items, "price": range(len(items))}).write_csv(tmp_path / "prices.csv")
    words = f"recommend @sasrec --users {users[0]},{users[1]} --k 4"
    found = ask(f"{words} --filters price>=3 --filters price<=30 --items prices.csv")
    own = api.recommend(
        shop / "sasrec", users=users, k=4, filters={"price": {"min": 3, "max": 30}},
        item_table=tmp_path / "prices.csv", titles=True,
    )  # fmt: skip
    assert found["recommendations"] == own.to_dicts() and {row["source"] for row in own.to_dicts()} == {"model"}
    assert found["filters"] == {"price": {"min": 3, "max": 30}} and found["unknown_users"] == "error"
    pl.DataFrame({"who": [users[0]]}).write_csv(tmp_path / "who.csv")
    one = ask("recommend @sasrec --users who.csv --user-col who --data @data")
    assert {row["user"] for row in one["recommendations"]} == {users[0]}
    refuses("option-without-effect", f"{words} --items prices.csv", "--items")
    refuses("option-without-effect", f"recommend @sasrec --history {items[0]} --data @data", "--data")
    refuses("unknown-option", "ask http://127.0.0.1:1 --filters a=b", "--filters")


def test_similar_items(ask: Ask, call: Call, refuses: Refuses, shop: Path) -> None:
    first, second = Store.open(shop / "data").catalog.ids.head(2).to_list()
    words = f"similar @sasrec --item {first} --item {second} -k 3"
    own = api.similar_items(shop / "sasrec", [first, second], 3, titles=True)
    assert ask(words)["similar"] == own.to_dicts()
    assert f"item {second}" in call(words).out
    assert ask(f"{words} --out near.csv")["rows"] == 6
    refuses("unknown-item", "similar @sasrec --item 987654", "987654")
    refuses("no-item-similarity", f"similar @popularity --item {first}")


def test_vectors(ask: Ask, call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    found = ask("vectors @sasrec --out items.parquet")
    items = pl.read_parquet(tmp_path / "items.parquet")
    assert items.equals(api.item_vectors(shop / "sasrec")) and (found["rows"], found["of"]) == (len(items), "items")
    user = store.user_ids[0]
    assert call(f"vectors @sasrec --users {user} --out users.parquet").code == 0
    assert pl.read_parquet(tmp_path / "users.parquet").equals(api.user_vectors(shop / "sasrec", users=[user]))
    refuses("unknown-suffix", "vectors @sasrec --out v.csv", ".parquet")
    refuses("option-without-effect", "vectors @sasrec --data @ --out v.parquet")
    refuses("no-vectors", "vectors @item_to_item --out v.parquet")


def test_grow(ask: Ask, refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("sku\n900001\n900002\n")
    words = "grow @sasrec --items new.csv --item-col sku --out grown"
    refuses("no-item-features", words)
    found = ask(f"{words} --start mean")
    assert found["new"] == 2 and found["items"] == Run.open(tmp_path / "grown").catalog.size
    assert len(api.recommend(tmp_path / "grown", [[900001]], k=2, unknown="error")) == 2
    refuses("unknown-value", f"{words} --start meen", "mean")


def test_the_folder_to_ship_answers_alone(ask: Ask, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    item = Store.open(shop / "data").catalog.ids[0]
    own = api.recommend(shop / "sasrec", [[item]], k=5, titles=True)
    out = tmp_path / "ship"
    found = ask("export @sasrec --to folder --out ship")
    names = {"items.parquet", "manifest.json", "spec.json", "weights.safetensors"}
    assert {path.name for path in out.iterdir()} == names and set(found["files"]) == names - {"manifest.json"}
    assert verify(out).ok and (shop / "sasrec" / "checkpoints").exists()
    moved = Path(shutil.move(out, tmp_path / "elsewhere"))
    assert api.recommend(moved, [[item]], k=5, titles=True).equals(own)
    api.export(shop / "sasrec", tmp_path / "logs", to="folder", logs=True)
    assert Run.open(tmp_path / "logs").rows() == Run.open(shop / "sasrec").rows() != []
    words = "export @sasrec --to folder --out"
    refuses("folder-not-empty", f"{words} elsewhere")
    refuses("option-without-effect", f"{words} ship --k 5", "k")
    refuses("option-without-effect", "export @sasrec --to faiss --logs --out ship", "logs")
    (moved / "weights.safetensors").write_bytes((moved / "weights.safetensors").read_bytes()[:-1] + b"x")
    refuses("file-damaged", "export elsewhere --to folder --out ship")
    assert not out.exists()
