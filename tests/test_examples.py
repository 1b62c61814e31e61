"""The examples run as they stand: the first day that the guide shows, and the daily loop behind a service."""

import asyncio
import sys
from pathlib import Path

import polars as pl
import pytest

import fullrank as fr
from examples import first_day
from examples.daily_loop import ASKING, loop

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "first_day.md"


@pytest.mark.process
def test_first_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["first_day", str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", str(Path(fr.__file__).parents[1]))  # of the process that opens what is shipped
    first_day.main()
    said = capfd.readouterr().out
    assert all(f"\n{step}. " in f"\n{said}" for step in range(1, 8))
    assert "sku-" in said.split("7. ship")[1], "the folder answers from another directory"
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert not (tmp_path / "elsewhere" / "shipped" / "checkpoints").exists()
    lists = fr.recommend(tmp_path / "sasrec", users=["c-0001"], k=20, filters={"in_stock": True})
    stock = pl.read_csv(tmp_path / "things.csv").filter(pl.col("in_stock"))["sku"]
    assert len(lists) == 20 and lists["item"].is_in(stock.implode()).all()


def test_the_page_shows_the_script() -> None:
    """Its steps are those of the table, and what it includes are lines of the script."""
    page, script = PAGE.read_text(), Path(first_day.__file__).read_text()
    assert [word in page for word in ("prepare", "train", "evaluate", "recommend", "report", "ship")] == [True] * 6
    assert page.count('"COLUMNS ="') == 1 and "COLUMNS =" in script and "def write_tables" in script


@pytest.mark.slow
def test_a_new_model_answers_every_day(tmp_path: Path) -> None:
    found = asyncio.run(loop(tmp_path, days=2))
    assert [day["answered by"] for day in found["days"]] == [["day-0"], ["day-1"]]
    assert [day["check"]["state"] for day in found["days"]] == ["serving", "serving"]
    assert all(day["check"]["catalogue"] >= 0.9 and "loss of hit@20" in day["check"] for day in found["days"])
    assert {name: one["answers"] for name, one in found["versions"].items()} == {"day-0": ASKING, "day-1": ASKING}
    first, second = (fr.Run.open(tmp_path / "runs" / f"day-{day}") for day in (0, 2))
    known = set(first.catalog.ids.to_list())
    assert known <= set(second.catalog.ids.to_list()), "what a model knew, the next one knows"
    assert second.manifest["init_from"] == str(tmp_path / "runs" / "day-1")
