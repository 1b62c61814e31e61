"""A run stands beside the newest record of the same kind of processor, and beside no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.records import beside, newest, records
from docs import make_benchmark_table


def record(results: Path, name: str, day: int, cpu: str, figures: dict[str, Any], **settings: Any) -> None:
    folder = results / "sample"
    folder.mkdir(parents=True, exist_ok=True)
    tree = {"figures": figures, "machine": {"cpu": cpu}, "taken": f"2026-11-{day:02}T01:00:00+00:00"}
    (folder / f"{name}.json").write_text(json.dumps(tree | {"settings": settings}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    record(tmp_path, "z_old", 1, "A", {"speed": 1.0, "rare": 8})
    record(tmp_path, "a_new", 3, "A", {"speed": 2.0, "rows": [1], "zero": 0}, set=[])
    record(tmp_path, "other", 4, "B", {"speed": 4.0})
    record(tmp_path, "changed", 5, "A", {"speed": 16.0}, set=["model.dim=8"])
    return tmp_path


def test_a_figure_is_that_of_the_newest_record_that_has_it(results: Path) -> None:
    lines = beside({"speed": 3.0, "rare": 6, "rows": [2], "zero": 1, "new": 5.0}, "sample", "A", results).splitlines()
    assert [line.split() for line in lines[1:6]] == [
        ["speed", "3", "2", "1.50"], ["rare", "6", "8", "0.75"], ["rows", "[2]"], ["zero", "1", "0"], ["new", "5"],
    ]  # fmt: skip
    assert lines[6] == "then: results/sample/a_new.json (2026-11-03), results/sample/z_old.json (2026-11-01), on A"


def test_another_processor_is_no_record(results: Path) -> None:
    shown = beside({"speed": 3.0}, "sample", "C", results)
    assert shown.splitlines()[-1] == "then: results/sample has no record of C yet"
    assert "no record of A" in beside({"speed": 3.0}, "nothing", "A", results)
    assert newest(records("sample", results), "B", "rare") is None


def test_a_benchmark_prints_it(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the records that were there: not beside what it writes itself."""
    monkeypatch.setattr("benchmarks.records.RESULTS", results)
    monkeypatch.setattr("benchmarks.machine._cpu", lambda: "A")
    one = harness.Benchmark("sample", "A sample.", lambda _: None, lambda: None, lambda *_: {"speed": 3.0})
    assert harness.main(one, ["--out", str(results / "sample")], lock=results / "lock") == 0
    assert "a_new.json" in capsys.readouterr().out
    assert records("sample", results)[0].figures == {"speed": 3.0}


def test_the_table_leaves_a_cell_empty_where_there_is_no_record(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_benchmark_table, "FIGURES", {"sample": ("speed", "rare")})
    monkeypatch.setattr(make_benchmark_table, "PROCESSORS", {"A": "one", "B": "two"})
    assert make_benchmark_table.table(results).splitlines() == [
        "| benchmark | figure | one | two |",
        "| --- | --- | --- | --- |",
        "| `sample` | `speed` | 2 (2026-11-03) | 4 (2026-11-04) |",
        "| `sample` | `rare` | 8 (2026-11-01) |  |",
    ]
