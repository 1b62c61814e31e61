"""Ladders from files: both kinds of tables and the rows of a sweep, and a sentence for what is wrong in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fullrank.analysis.scaling.read import ColumnNames, read_ladder
from refusals import refused

WIDE = """run,dataset,n_total_params,n_nonemb_params,interactions,epoch_flops,ndcg_ep5,ndcg_ep10
a,small,100,10,1000,1e9,0.1,0.2
b,large,200,20,4000,3e9,0.2,
"""
TIDY = """run,flops,metric,parameters,data
a,2e9,0.2,100,1000
a,1e9,0.1,100,1000
b,5e9,0.3,200,4000
"""


def write(folder: Path, text: str, name: str = "runs.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def row(**others: Any) -> dict[str, Any]:
    size = {"non_embedding_parameters": 30, "flops_per_epoch": 4e9, "interactions": 500}
    return {
        "cell": "tiny", "seed": 0, "data": "shop", "data_fingerprint": "f", "parameters": 90, "epochs": 4, "size": size,
        "validation_best": {"metric": "ndcg@10", "value": 0.2, "epoch": 3},
        "metrics": {"validation": {"ndcg@10": 0.21, "hit@10": 0.4}}, **others,
    }  # fmt: skip


def test_a_row_for_each_run(tmp_path: Path) -> None:
    found = read_ladder(write(tmp_path, WIDE))
    a, b = found.traces
    assert found.metric == "ndcg" and a.metric.tolist() == [0.1, 0.2] and a.epochs.tolist() == [5, 10]  # type: ignore[union-attr]
    assert a.flops is not None and a.flops.tolist() == [5e9, 1e10] and (a.parameters, a.size, a.data) == (100, 10, 1000)
    assert b.metric.tolist() == [0.2], "an empty cell was not measured"
    other = read_ladder(write(tmp_path, WIDE), columns=ColumnNames(parameters="n_nonemb_params", run="dataset"))
    assert other.traces[0].parameters == 10 and other.traces[1].run == "large"


def test_a_row_for_each_moment(tmp_path: Path) -> None:
    a, b = read_ladder(write(tmp_path, TIDY)).traces
    assert a.flops is not None and a.flops.tolist() == [1e9, 2e9] and a.metric.tolist() == [0.1, 0.2]
    assert (b.run, b.parameters, b.data) == ("b", 200, 4000)
    text = TIDY.replace("flops", "spent").replace("metric", "auc").replace("run", "who")
    named = read_ladder(write(tmp_path, text), columns=ColumnNames(flops="spent", metric="auc", run="who"))
    assert named.metric == "auc" and named.traces[0].flops is not None and len(named) == 2
    alone = read_ladder(write(tmp_path, TIDY.replace("run", "other")))
    assert [t.run for t in alone.traces] == ["row 1", "row 2", "row 3"]


def test_rows_of_a_sweep(tmp_path: Path) -> None:
    curve = row(seed=1, validation_curve=[[1, 0.1], [3, 0.2]])
    lines = "\n".join(
        json.dumps(r) for r in (row(epochs=9), row(), curve, row(seed=2, error="out of memory"), row(seed=3, epochs=0))
    )
    first, second = read_ladder(write(tmp_path, lines, "rows.jsonl")).traces
    assert first.metric.tolist() == [0.21] and first.flops is not None and first.flops.tolist() == [1.2e10]
    assert second.metric.tolist() == [0.1, 0.2] and second.flops is not None and second.flops.tolist() == [4e9, 1.2e10]
    assert (first.parameters, first.size, first.data, first.group) == (90, 30, 500, "shop")
    kept = write(tmp_path, json.dumps({"rows": [row()]}), "results.json")
    assert read_ladder(kept, metric="hit@10").traces[0].metric.tolist() == [0.4]


def test_rows_without_flops_say_what_to_do(tmp_path: Path) -> None:
    old = row()
    del old["size"]
    ladder = read_ladder(write(tmp_path, json.dumps({"rows": [old]}), "old.json"))
    with refused("missing-sizes", "flops", "fullrank sweep", "--flops-col"):
        ladder.require("flops")


def test_recorded_sweeps_are_read() -> None:
    """Those of before FLOPs were counted, as they are."""
    file = Path(__file__).resolve().parents[3] / "results" / "sequence" / "2026-11-21_2cpu_beauty.json"
    found = read_ladder(file)
    assert found.metric == "ndcg@10" and len(found) > 5
    with refused("missing-sizes", "flops"):
        found.require("flops")


@pytest.mark.parametrize(
    ("text", "asked", "code", "names"),
    [
        (WIDE.replace("0.2\nb", "NaN\nb"), {}, "not-finite", ["ndcg", "nan"]),
        (WIDE.replace("1e9", "-1e9"), {}, "not-positive", ["flops", "-5e+09"]),
        (WIDE.replace("0.1,", "x,"), {}, "unreadable-numbers", ["'x'"]),
        (WIDE, {"metric": "ndgc"}, "unknown-metric", ["'ndcg'"]),
        (WIDE.replace("ndcg_ep10", "hit_ep10"), {}, "several-metrics", ["--metric", "ndcg", "hit"]),
        (WIDE, {"columns": ColumnNames(parameters="n_params")}, "missing-column", ["n_params", "n_total_params"]),
        (TIDY.replace("metric", "ndcg"), {}, "missing-column", ["metric", "ndcg"]),
        (TIDY.replace("0.3", ""), {}, "unreadable-numbers", ["row 2 (from 0)", "metric"]),
        (TIDY.replace("1e9,0.1,100", "1e9,0.1,101"), {}, "size-changes-within-run", ["parameters"]),
        (TIDY.replace("b,", ","), {}, "missing-ids", ["row 2 (from 0)", "run"]),
        (TIDY.replace("a,", "  ,"), {}, "missing-ids", ["2 runs without a name", "run"]),
        ("run,metric\n" + ",0.1\n" * 12, {}, "missing-ids", [12, "--run-col"]),
        ("who,metric\na,0.1\n,0.2\n", {"columns": ColumnNames(run="who")}, "missing-ids", ["row 1 (from 0)", "who"]),
        ("run,metric\n", {}, "empty-table", []),
        (WIDE.replace("ndcg_ep10", "ndcg_ep05"), {}, "repeated-column", ["ndcg_ep5", "ndcg_ep05"]),
        (TIDY, {"metric": "metric", "columns": ColumnNames(metric="metric")}, "options-exclude-each", ["--metric-col"]),
    ],
)
def test_tables_that_are_wrong(text: str, asked: dict[str, Any], code: str, names: list[Any], tmp_path: Path) -> None:
    with refused(code, *names):
        read_ladder(write(tmp_path, text), **asked)


def test_missing_columns_are_named_where_they_are_needed(tmp_path: Path) -> None:
    ladder = read_ladder(write(tmp_path, WIDE.replace("epoch_flops", "other")))
    with refused("missing-sizes", "flops", "--flops-col", "epoch_flops"):
        ladder.require("flops")


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("runs.txt", "", "unknown-suffix"),
        ("runs.json", "{}", "not-sweep-rows"),
        ("runs.json", '{"rows": [3]}', "not-sweep-rows"),
        ("rows.jsonl", '{"cell": "a", "seed": 0, "error": "e"}', "no-runs"),
        ("rows.jsonl", "nonsense", "file-damaged"),
        ("rows.jsonl", json.dumps(row(metrics=5)), "file-damaged"),
        ("rows.jsonl", json.dumps(row(metrics={"validation": {"ndcg@10": "x"}})), "file-damaged"),
        ("rows.jsonl", json.dumps(row(seed=[0], size=3)), "file-damaged"),
    ],
)
def test_files_that_are_wrong(name: str, text: str, code: str, tmp_path: Path) -> None:
    with refused(code, name):
        read_ladder(write(tmp_path, text, name))
    with refused("missing-file", "absent.csv"):
        read_ladder(tmp_path / "absent.csv")
