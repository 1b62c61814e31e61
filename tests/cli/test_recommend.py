"""`recommend`, `recommend-parts`, `similar` and `vectors`: lists, filters in a shell, and what lists are made of."""

from pathlib import Path

import polars as pl
import pytest

from fullrank import api
from fullrank.cli.list_options import parse_filters
from fullrank.data.events.prepare import prepare as api_prepare
from fullrank.data.events.store import Store
from refusals import refused
from tests.cli.conftest import Ask, Call, Refuses
from tests.cli.mistakes import TINY
from tests.training.conftest import tiny


@pytest.fixture
def ids(shop: Path) -> list[int]:
    return list(Store.open(shop / "data").catalog.ids.head(6))


def test_ids_titles_and_ranks(shop: Path, ids: list[int], ask: Ask) -> None:
    rows = ask(f"recommend @sasrec --history {ids[0]},{ids[1]} --k 5")["recommendations"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert not {row["item"] for row in rows} & set(ids[:2]) and all(row["title"] for row in rows)
    expected = api.recommend(shop / "sasrec", [ids[:2]], k=5)
    assert [row["item"] for row in rows] == expected["item"].to_list()


def test_the_policies_are_with_the_result(ids: list[int], ask: Ask) -> None:
    words = f"recommend @popularity --history {ids[0]} --seen keep --empty error"
    policies = {"unknown": "skip", "empty": "error", "untimed": "auto", "seen": "keep"}
    for more in ("", "--out answers.csv"):
        assert ask(f"{words} {more}")["policies"] == policies


def test_a_person_reads_titles(call: Call, ids: list[int]) -> None:
    out = call(f"recommend @popularity --history {ids[0]} --history {ids[1]} --k 3").out
    assert out.count("rank") == 2 and "user 1" in out


def test_seen_items_may_be_kept(ids: list[int], ask: Ask) -> None:
    words = f"recommend @popularity --history {ids[0]} --k 60"
    known = [{row["item"] for row in ask(f"{words} {more}")["recommendations"]} for more in ("", "--seen keep")]
    assert ids[0] not in known[0] and ids[0] in known[1]


def test_lists_of_nothing_are_told(call: Call, ids: list[int]) -> None:
    words = f"recommend @popularity --history {ids[0]} --min-score 1e9"
    assert "no user has a list" in call(words).out and call(f"{words} --json").json["recommendations"] == []


def test_unknown_items_are_told(call: Call, ids: list[int]) -> None:
    words = f"recommend @sasrec --history {ids[0]},99999 --k 2"
    said = call(f"{words} --json")
    assert said.json["unknown_items"] == [99999] and "99999" in said.err
    assert call(f"{words} --unknown error").code == 2


def test_a_model_that_reads_times(ask: Ask, call: Call, refuses: Refuses, ids: list[int], tmp_path: Path) -> None:
    """It takes them from the file in the unit named, or has events a day apart and says so, or refuses them."""
    assert call(f"train hstu --data @data --out hstu {TINY}").code == 0
    words = "recommend hstu --k 3"
    bare = f"--history {ids[0]},{ids[1]}"
    refuses("missing-times", f"{words} {bare} --untimed error", "--untimed even")
    noted, even = call(f"{words} {bare} --json"), call(f"{words} {bare} --untimed even --json")
    assert noted.code == 0 and "as of now" in noted.err and "--untimed even" in noted.err
    assert noted.json["recommendations"] == even.json["recommendations"]
    assert "as of now" not in even.err
    even = even.json
    assert even["policies"]["untimed"] == "even"
    found = []
    for unit, day in (("s", 86_400), ("ms", 86_400_000)):
        (tmp_path / "h.csv").write_text(f"user_id,item_id,timestamp\n1,{ids[1]},{day}\n1,{ids[0]},0\n")
        found.append(ask(f"{words} --histories h.csv --time-unit {unit}")["recommendations"])
    assert found[0] == found[1]
    assert [row["item"] for row in found[0]] == [row["item"] for row in even["recommendations"]]
    refuses("option-without-effect", f"{words} --history {ids[0]} --time-unit ms", "--time-unit")
    refuses("unknown-value", f"{words} --history {ids[0]} --untimed evn", "--untimed", "'even'")


def test_an_empty_history_gets_what_is_popular(ask: Ask, call: Call) -> None:
    words = "recommend @sasrec --history '' --k 2"
    assert len(ask(words)["recommendations"]) == 2
    assert call(f"{words} --empty error").code == 2


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_file_of_histories_in_and_out(suffix: str, shop: Path, ids: list[int], tmp_path: Path, ask: Ask) -> None:
    frame = pl.DataFrame({"u": ["x", "x", "y"], "i": ids[:3], "t": [2, 1, 1]})
    writers = {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}
    writers[suffix](tmp_path / f"in{suffix}")
    columns = "--user-col u --item-col i --time-col t"
    files = f"--histories in{suffix} --out out{suffix}"
    said = ask(f"recommend @sasrec {files} {columns} --k 4")
    readers = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson}
    found = readers[suffix](tmp_path / f"out{suffix}")
    expected = api.recommend(shop / "sasrec", {"x": [ids[1], ids[0]], "y": [ids[2]]}, k=4)
    assert said["rows"] == 8 and found["user"].to_list() == expected["user"].to_list()
    assert found["item"].to_list() == expected["item"].to_list()


def test_wrong_columns_of_a_file(refuses: Refuses, tmp_path: Path) -> None:
    pl.DataFrame({"user": [1], "item_id": [1001]}).write_csv(tmp_path / "h.csv")
    words = "recommend @popularity --histories h.csv --user-col user --time-col when"
    refuses("missing-column", words, "'when'", "--time-col")


def test_a_file_without_rows(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("user_id,item_id\n")
    refuses("empty-table", "recommend @popularity --histories h.csv", "h.csv")


def test_an_old_spelling_names_the_new_one(refuses: Refuses) -> None:
    moved = {"--url http://x": "ask URL", "--user 1": "ask URL", "--workers 2": "recommend-parts RUN"}
    for option, verb in moved.items():
        refuses("unknown-option", f"recommend @popularity {option}", f"it is `fullrank {verb}")
    for option in ("--unknown error", "--device cpu", "--user-col u", "--filters a=b"):
        refuses("unknown-option", f"ask http://127.0.0.1:1 --history i1 {option}", option.split()[0])


def test_a_service_is_asked_for_one_kind_of_list(refuses: Refuses) -> None:
    refuses("missing-option", "ask http://127.0.0.1:1", "--user")
    refuses("options-exclude-each", "ask http://127.0.0.1:1 --user 1 --history 2", "--history")
    refuses("invalid-list-length", "ask http://127.0.0.1:1 --user 1 --k 0", "--k")
    refuses("not-a-key", "ask http://127.0.0.1:1 --user 1 --key schlüssel", "fullrank keys add")


def test_lists_of_all_users_of_a_store(ask: Ask, call: Call, tmp_path: Path) -> None:
    words = "recommend-parts @sasrec --data @data --k 3 --out lists"
    first = ask(f"{words} --parts 4")
    assert first["users"] == 150 and first["rows"] == 450 and first["resumed"] == 0
    whole = pl.read_parquet(tmp_path / "lists" / "lists")
    assert {"user", "item", "score", "rank", "source", "title"} == set(whole.columns)
    (tmp_path / "lists" / "lists" / "part-00002.parquet").unlink()
    again = call(f"{words} --parts 4 --json")
    assert again.json["resumed"] == 3 and "3 of them by an earlier call" in " ".join(again.err.split())
    assert pl.read_parquet(tmp_path / "lists" / "lists").equals(whole)


def test_a_least_score_in_parts(ask: Ask, tmp_path: Path) -> None:
    ask("recommend-parts @sasrec --k 3 --out whole")
    whole = pl.read_parquet(tmp_path / "whole" / "lists")
    least = float(whole["score"].median())
    assert ask(f"recommend-parts @sasrec --k 3 --min-score={least} --out some")["rows"] < len(whole)
    assert pl.read_parquet(tmp_path / "some" / "lists").equals(whole.filter(pl.col("score") >= least))


def test_lists_of_a_table(call: Call, shop: Path, tmp_path: Path) -> None:
    one, two = pl.read_parquet(shop / "sasrec" / "items.parquet")["item_id"].head(2)
    table = pl.DataFrame({"who": [1, 1, 2], "what": [one, two, 999_999], "at": [1, 2, 3]})
    table.write_parquet(tmp_path / "table.parquet")
    columns = "--user-col who --item-col what --time-col at"
    said = call(f"recommend-parts @sasrec --histories table.parquet {columns} --engine embedded --out lists --json")
    assert said.code == 0 and said.json["popular"] == 1 and said.json["parts"] == 1
    assert "note: 1 of 2 histories hold no item that the model knows" in said.err
    assert set(pl.read_parquet(tmp_path / "lists" / "lists")["user"]) == {1, 2}


def test_metrics_of_one_process(ask: Ask) -> None:
    one, parts = (ask(f"evaluate @sasrec {more}") for more in ("", "--parts 3"))
    assert one["metrics"] == parts["metrics"] and one["interval"] == parts["interval"]


def test_options_without_effect(refuses: Refuses, tmp_path: Path) -> None:
    words = "recommend-parts @sasrec --out lists"
    refuses("unknown-option", f"{words} --parts 2 --history 2,3", "--history")
    refuses("option-without-effect", f"{words} --parts 2 --time-col at", "--time-col")
    refuses("option-without-effect", f"{words} --master local[2]", "--master", "--engine spark")
    refuses("option-without-effect", f"{words} --engine spark --workers 2", "--workers")
    refuses("option-without-effect", "recommend @sasrec --history 2 --overwrite", "--overwrite")
    refuses("unknown-value", f"{words} --engine dask", "dask", "spark")
    refuses("usage", "recommend-parts @sasrec --parts 2", "--out")
    refuses("options-exclude-each", f"{words} --parts 2 --data a --histories b", "--data")
    refuses("unknown-option", "study step-curve @sasrec --parts 2", "--parts")
    refuses("unknown-option", "evaluate-lists x --data @data --parts 2", "--parts")
    assert not (tmp_path / "lists").exists()


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


def test_features_of_a_table_and_of_users(call: Call, ask: Ask, tmp_path: Path) -> None:
    """A file of features says what the library is told; a note says what is missing, in the words of a shell."""
    events = pl.DataFrame({
        "user_id": [n % 20 for n in range(200)], "item_id": [n * n % 17 for n in range(200)],
        "timestamp": range(200), "rating": [n % 5 for n in range(200)], "device": ["phone", "desk"] * 100,
    })  # fmt: skip
    people = pl.DataFrame({"user_id": range(20), "country": ["is", "no"] * 10, "device": ["desk"] * 20})
    people.write_csv(tmp_path / "people.csv")
    store = api_prepare(
        events, tmp_path / "store", users=people.drop("device"), event_features=["rating"], request_features=["device"],
        user_features=["country"],
    )  # fmt: skip
    events.write_parquet(tmp_path / "events.parquet")
    run = api.train(tiny("model.features=auto", "training.max_epochs=1"), store, tmp_path / "run", progress=False)
    words = f"recommend {run.path} --histories {tmp_path / 'events.parquet'} --k 3"
    rows = ask(f"{words} --features {tmp_path / 'people.csv'}")["recommendations"]
    expected = api.recommend(run.path, events, features=people, k=3, titles=True)
    assert pl.DataFrame(rows).equals(expected)
    said = call(f"recommend {run.path} --users 3,4 --features {tmp_path / 'people.csv'} --k 3 --json")
    found = [row["item"] for row in said.json["recommendations"]]
    assert found == [row["item"] for row in rows if row["user"] in (3, 4)] and "missing" not in said.err
    bare = call(f"{words} --json")
    assert "device of the request; country of users" in bare.err and "given by --features" in bare.err
    told = call(f"diagnose {run.path} --users 10").out
    assert "ndcg@10 lost" in told and all(name in told for name in ("event.rating", "request.device", "user.country"))
