"""`recommend`: external ids in, ranked external ids with titles out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from fullrank import api
from fullrank.data.events.store import Store

if TYPE_CHECKING:
    from conftest import Call, Refuses


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
            "unknown": "skip", "empty": "error", "untimed": "auto", "seen": "keep",
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


def test_a_model_that_reads_times(call: Call, refuses: Refuses, shop: Path, ids: list[int], tmp_path: Path) -> None:
    """It takes them from the file in the unit named, or has events a day apart and says so, or refuses them."""
    tiny = ["--set", "model.dim=8", "--set", "model.encoder.layers=1", "--set", "training.max_epochs=1"]
    assert call("train", "hstu", "--data", shop / "data", "--out", tmp_path / "hstu", *tiny).code == 0
    words = ("recommend", tmp_path / "hstu", "--k", "3", "--json")
    bare = ("--history", f"{ids[0]},{ids[1]}")
    refuses("missing-times", [*words[:-1], *bare, "--untimed", "error"], "--untimed even")
    noted, even = call(*words, *bare), call(*words, *bare, "--untimed", "even")
    assert noted.code == 0 and "as of now" in noted.err and "--untimed even" in noted.err
    assert noted.json["recommendations"] == even.json["recommendations"]
    assert "as of now" not in even.err
    even = even.json
    assert even["policies"]["untimed"] == "even"
    found = []
    for unit, day in (("s", 86_400), ("ms", 86_400_000)):
        (tmp_path / "h.csv").write_text(f"user_id,item_id,timestamp\n1,{ids[1]},{day}\n1,{ids[0]},0\n")
        found.append(call(*words, "--histories", tmp_path / "h.csv", "--time-unit", unit).json["recommendations"])
    assert found[0] == found[1]
    assert [row["item"] for row in found[0]] == [row["item"] for row in even["recommendations"]]
    refuses("option-without-effect", [*words[:-1], "--history", ids[0], "--time-unit", "ms"], "--time-unit")
    refuses("unknown-value", [*words[:-1], "--history", ids[0], "--untimed", "evn"], "'even'")


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
    ("words", "code", "name"),
    [
        ([], "missing-option", "--history"),
        (["--history", "1", "--histories", "x.csv"], "options-exclude-each", "--histories"),
        (["--history", "a,b"], "not-an-item-id", "'a'"),
        (["--history", "1", "--k", "0"], "invalid-list-length", "k must be at least 1"),
        (["--history", "1", "--seen", "keeep"], "unknown-value", "did you mean 'keep'"),
        (["--history", "1", "--out", "x.xls"], "unknown-suffix", "allowed: .parquet, .csv, .jsonl"),
        (["--history", "1", "--user-col", "u"], "option-without-effect", "--user-col"),
        (["--history", "1", "--exclude", "99999"], "unknown-item", "--exclude"),
        (["--histories", "nothing.csv"], "missing-file", "nothing.csv"),
    ],
)
def test_mistakes(words: list[str], code: str, name: str, refuses: Refuses, shop: Path) -> None:
    refuses(code, ["recommend", shop / "popularity", *words], name)


def test_wrong_columns_of_a_file(refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    pl.DataFrame({"user": [1], "item_id": [1001]}).write_csv(tmp_path / "h.csv")
    words = ("recommend", shop / "popularity", "--histories", tmp_path / "h.csv")
    refuses("missing-column", words, "did you mean 'user'", "--user-col")
    refuses("missing-column", [*words, "--user-col", "user", "--time-col", "when"], "'when'", "--time-col")


def test_a_file_without_rows(refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "h.csv").write_text("user_id,item_id\n")
    refuses("empty-table", ["recommend", shop / "popularity", "--histories", tmp_path / "h.csv"], "h.csv")


def test_events_without_a_user_are_refused(refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [1, None], "item_id": [1001, 1002]}).write_parquet(tmp_path / "h.parquet")
    refuses(
        "missing-users",
        ["recommend", shop / "popularity", "--histories", tmp_path / "h.parquet"],
        "1 of 2",
        "'user_id'",
    )


def test_a_service_is_not_asked_by_options_of_a_run(refuses: Refuses) -> None:
    for option in (("--unknown", "error"), ("--device", "cpu"), ("--user-col", "u")):
        words = ("recommend", "--url", "http://127.0.0.1:1", "--history", "i1", *option)
        refuses("option-without-effect", words, option[0])
