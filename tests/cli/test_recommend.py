"""`recommend`: external ids in, ranked external ids with titles out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from fullrank import api
from fullrank.data.events.store import Store

if TYPE_CHECKING:
    from conftest import Call


@pytest.fixture
def ids(shop: Path) -> list[int]:
    return list(Store.open(shop / "data").catalog.ids.head(6))


def test_ids_titles_and_ranks(call: Call, shop: Path, ids: list[int]) -> None:
    said = call("recommend", shop / "sasrec", "--history", f"{ids[0]},{ids[1]}", "--k", "5", "--json")
    rows = said.json["recommendations"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert not {row["item"] for row in rows} & set(ids[:2]) and all(row["title"] for row in rows)
    expected = api.recommend(shop / "sasrec", [ids[:2]], k=5)
    assert [row["item"] for row in rows] == expected["item"].to_list()


def test_the_policies_are_with_the_result(call: Call, shop: Path, ids: list[int], tmp_path: Path) -> None:
    words = ("recommend", shop / "popularity", "--history", ids[0], "--seen", "keep", "--empty", "error", "--json")
    for more in ((), ("--out", tmp_path / "answers.csv")):
        assert call(*words, *more).json["policies"] == {
            "unknown": "skip", "empty": "error", "untimed": "error", "seen": "keep",
        }  # fmt: skip


def test_a_person_reads_titles(call: Call, shop: Path, ids: list[int]) -> None:
    out = call("recommend", shop / "popularity", "--history", ids[0], "--history", ids[1], "--k", "3").out
    assert out.count("rank") == 2 and "user 1" in out


def test_seen_items_may_be_kept(call: Call, shop: Path, ids: list[int]) -> None:
    words = ("recommend", shop / "popularity", "--history", ids[0], "--k", "60", "--json")
    known = [{row["item"] for row in call(*words, *more).json["recommendations"]} for more in ([], ["--seen", "keep"])]
    assert ids[0] not in known[0] and ids[0] in known[1]


def test_unknown_items_are_told(call: Call, shop: Path, ids: list[int]) -> None:
    words = ("recommend", shop / "sasrec", "--history", f"{ids[0]},99999", "--k", "2")
    said = call(*words, "--json")
    assert said.json["unknown_items"] == [99999] and "99999" in said.err
    assert call(*words, "--unknown", "error").code == 2


def test_a_model_that_reads_times(call: Call, shop: Path, ids: list[int], tmp_path: Path) -> None:
    """It takes them from the file in the unit named, refuses a history without, or has events a day apart."""
    tiny = ["--set", "model.dim=8", "--set", "model.encoder.layers=1", "--set", "training.max_epochs=1"]
    assert call("train", "hstu", "--data", shop / "data", "--out", tmp_path / "hstu", *tiny).code == 0
    words = ("recommend", tmp_path / "hstu", "--k", "3", "--json")
    bare = call(*words, "--history", f"{ids[0]},{ids[1]}")
    assert bare.code == 2 and "--untimed even" in bare.json["error"] and "Traceback" not in bare.err
    even = call(*words, "--history", f"{ids[0]},{ids[1]}", "--untimed", "even").json
    assert even["policies"]["untimed"] == "even"
    found = []
    for unit, day in (("s", 86_400), ("ms", 86_400_000)):
        (tmp_path / "h.csv").write_text(f"user_id,item_id,timestamp\n1,{ids[1]},{day}\n1,{ids[0]},0\n")
        found.append(call(*words, "--histories", tmp_path / "h.csv", "--time-unit", unit).json["recommendations"])
    assert found[0] == found[1]
    assert [row["item"] for row in found[0]] == [row["item"] for row in even["recommendations"]]
    assert call(*words, "--history", ids[0], "--time-unit", "ms").code == 2
    assert call(*words, "--history", ids[0], "--untimed", "evn").code == 2


def test_an_empty_history_gets_what_is_popular(call: Call, shop: Path) -> None:
    words = ("recommend", shop / "sasrec", "--history", "", "--k", "2", "--json")
    assert len(call(*words).json["recommendations"]) == 2
    assert call(*words, "--empty", "error").code == 2


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_file_of_histories_in_and_out(suffix: str, call: Call, shop: Path, ids: list[int], tmp_path: Path) -> None:
    frame = pl.DataFrame({"u": ["x", "x", "y"], "i": ids[:3], "t": [2, 1, 1]})
    writers = {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}
    writers[suffix](tmp_path / f"in{suffix}")
    columns = ("--user-col", "u", "--item-col", "i", "--time-col", "t")
    files = ("--histories", tmp_path / f"in{suffix}", "--out", tmp_path / f"out{suffix}")
    said = call("recommend", shop / "sasrec", *files, *columns, "--k", "4", "--json")
    assert said.code == 0, said.err
    readers = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".jsonl": pl.read_ndjson}
    found = readers[suffix](tmp_path / f"out{suffix}")
    expected = api.recommend(shop / "sasrec", {"x": [ids[1], ids[0]], "y": [ids[2]]}, k=4)
    assert said.json["rows"] == 8 and found["user"].to_list() == expected["user"].to_list()
    assert found["item"].to_list() == expected["item"].to_list()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "one of the two"),
        (["--history", "1", "--histories", "x.csv"], "one of the two"),
        (["--history", "a,b"], "whole numbers"),
        (["--history", "1", "--k", "0"], "k must be at least 1"),
        (["--history", "1", "--seen", "keeep"], "did you mean 'keep'"),
        (["--history", "1", "--out", "x.xls"], "allowed: .parquet, .csv, .jsonl"),
        (["--history", "1", "--user-col", "u"], "--histories FILE, which is not given"),
        (["--histories", "nothing.csv"], "does not exist"),
    ],
)
def test_mistakes(words: list[str], hint: str, call: Call, shop: Path) -> None:
    said = call("recommend", shop / "popularity", *words)
    assert said.code == 2 and hint in said.err and "Traceback" not in said.err


def test_wrong_columns_of_a_file(call: Call, shop: Path, tmp_path: Path) -> None:
    pl.DataFrame({"user": [1], "item_id": [1001]}).write_csv(tmp_path / "h.csv")
    said = call("recommend", shop / "popularity", "--histories", tmp_path / "h.csv")
    assert said.code == 2 and "did you mean 'user'" in said.err and "--user-col" in said.err
    named = ("--user-col", "user", "--time-col", "when")
    assert "--time-col" in call("recommend", shop / "popularity", "--histories", tmp_path / "h.csv", *named).err


def test_events_without_a_user_are_refused(call: Call, shop: Path, tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [1, None], "item_id": [1001, 1002]}).write_parquet(tmp_path / "h.parquet")
    said = call("recommend", shop / "popularity", "--histories", tmp_path / "h.parquet")
    assert said.code == 2 and "1 of 2 events have no user" in said.err
