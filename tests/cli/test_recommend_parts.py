"""`fullrank recommend-parts`, and `evaluate` in parts."""

from pathlib import Path

import polars as pl

from tests.cli.conftest import Ask, Call, Refuses


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
