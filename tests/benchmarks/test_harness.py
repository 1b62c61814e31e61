"""One timed run at a time, no figures behind a red check, one form of answer, beside records of the same processor."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, machine
from benchmarks.harness import Benchmark, Wrong, locked, main
from benchmarks.records import beside, newest, records
from docs import make_benchmark_table
from refusals import refused


def benchmark(
    check: Any = lambda: None, measure: Any = lambda options, say: {"speed": 2.5, "rows": 12345}
) -> Benchmark:
    return Benchmark("sample", "A sample.", lambda parser: None, check, measure)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / ".benchmark.lock"


def test_the_last_line_is_one_json_object(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(benchmark(), ["--json", "--threads", "1"], lock=lock) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    answer = json.loads(lines[-1])
    assert answer["name"] == "sample" and answer["figures"] == {"speed": 2.5, "rows": 12345}
    assert answer["machine"]["torch_threads"] == 1 == answer["settings"]["threads"]
    assert answer["machine"]["cores"] >= 1 and answer["machine"]["cpu"]
    assert answer["quiet"]["load_before"] is not None
    assert "12,345" in "\n".join(lines[:-1])


def test_a_red_check_gives_no_figures(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        raise Wrong("the sum is 3, not 4")

    assert main(benchmark(check=wrong), ["--json"], lock=lock) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "the sum is 3, not 4" in shown.err


def test_a_second_run_is_refused_and_named(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked("first", lock):
        assert main(benchmark(), [], lock=lock) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "benchmarks.first" in shown.err
    assert main(benchmark(), [], lock=lock) == 0


def test_the_lock_is_free_after_a_failure(lock: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        main(benchmark(measure=lambda options, say: 1 / 0), [], lock=lock)
    with locked("next", lock):
        pass


@pytest.mark.process
def test_the_lock_of_a_killed_process_does_not_bind(lock: Path) -> None:
    code = f"""if True:
        import sys
        from pathlib import Path
        from benchmarks.harness import locked
        with locked("killed", Path({str(lock)!r})):
            print("held", flush=True)
            sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=harness.ROOT,
        env={"PYTHONPATH": f"{harness.ROOT}/src"},
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with refused("benchmark-running", "benchmarks.killed", process.pid), locked("second", lock):
        pass
    process.kill()
    process.wait()
    with locked("third", lock):
        pass


def test_out_names_a_file_or_a_folder(lock: Path, tmp_path: Path) -> None:
    assert main(benchmark(), ["--out", str(tmp_path / "one.json")], lock=lock) == 0
    assert json.loads((tmp_path / "one.json").read_text())["figures"]["speed"] == 2.5
    assert main(benchmark(), ["--out", str(tmp_path / "results")], lock=lock) == 0
    (file,) = (tmp_path / "results").iterdir()
    taken, _, hardware = file.stem.partition("_")
    assert len(taken) == len("2026-01-31") and hardware == machine.slug(machine.record(tmp_path))


def test_the_watch_sees_what_others_do() -> None:
    watch = machine.Watch()
    if watch.busy is None:
        pytest.skip("this system does not tell how busy it is (/proc/stat)")
    watch.own += 10.0  # as if this process had used less: the rest counts as others'
    record = watch.record()
    assert record["others_share"] > machine.BUSY_SHARE and record["quiet"] is False


def test_arguments_of_a_benchmark_reach_it(lock: Path) -> None:
    found: list[argparse.Namespace] = []
    made = benchmark(measure=lambda options, say: found.append(options) or {})
    made = replace(made, arguments=lambda parser: parser.add_argument("--rounds", type=int, default=3) and None)
    main(made, ["--rounds", "5"], lock=lock)
    assert found[0].rounds == 5


def test_figures_are_rounded_to_what_is_known() -> None:
    assert harness.rounded({"a": 12345.678, "b": 3, "c": True, "d": "x"}) == {"a": 12350.0, "b": 3, "c": True, "d": "x"}


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
