"""A grid on several stores: each resumable by itself, the rows of all in one file that laws are fitted to."""

import json
from pathlib import Path
from typing import Any

import pytest

from fullrank.analysis.scaling.read import read_rows
from fullrank.data.events.store import Store
from fullrank.data.events.subset import subset
from fullrank.parallel import Local
from fullrank.sweeps.records import summarise_seeds
from fullrank.sweeps.sweep import by_store, ladder_rows, run_ladder
from refusals import refused

from .conftest import tiny
from .test_cli import SETTINGS, call, last

pytestmark = pytest.mark.usefixtures("cheap")


@pytest.fixture(scope="module")
def half(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return subset(store, tmp_path_factory.mktemp("ladder") / "half", share=0.5)


def test_a_ladder_is_a_sweep_on_each_store(store: Store, half: Store, out: Path, tmp_path: Path) -> None:
    grid = tiny("[{name: small, recipe: sasrec}, {name: wide, recipe: sasrec, set: {model.dim: 16}}]")
    file = tmp_path / "r.json"
    rungs = run_ladder(grid, [half, store], out, results=file, command="me", progress=False)
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [(row["data"], row["cell"]) for row in rows] == [
        ("half", "small"), ("half", "wide"), ("shop", "small"), ("shop", "wide")
    ]  # fmt: skip
    assert (out / "half" / "cells" / "wide-seed0" / "manifest.json").is_file()
    kept = json.loads(file.read_text())
    assert kept["rows"] == rows and [one["data"]["name"] for one in kept["stores"]] == ["half", "shop"]
    assert kept["command"] == "me" and set(kept["summary"]) == {"half/small", "half/wide", "shop/small", "shop/wide"}
    again = run_ladder(grid, [half, store], out, progress=False)
    assert ladder_rows(again) == ladder_rows(rungs)
    assert by_store(again, summarise_seeds) == by_store(rungs, summarise_seeds)


def test_the_common_files_follow_every_row(store: Store, half: Store, out: Path, tmp_path: Path) -> None:
    """Also of a second call: what it has not come to yet stays, a cell that is new appears with its row."""
    file, seen = tmp_path / "r.json", list[list[tuple[str, str]]]()

    class Watching(Local):
        def map(self, task: Any, items: Any) -> Any:
            for one in items:
                rows = (out / "rows.jsonl").read_text().splitlines() if (out / "rows.jsonl").exists() else []
                kept = json.loads(file.read_text())["rows"] if file.exists() else []
                assert [json.loads(row) for row in rows] == kept
                seen.append([(row["data"], row["cell"]) for row in kept])
                yield one, one.run()

    def call_with(cells: str) -> None:
        run_ladder(tiny(cells), [half, store], out, results=file, progress=False, engine=Watching())

    call_with("[popularity, {name: again, recipe: popularity}]")
    ended = [("half", "popularity"), ("half", "again"), ("shop", "popularity"), ("shop", "again")]
    assert seen == [ended[:n] for n in range(4)]
    seen.clear()
    call_with("[popularity, {name: again, recipe: popularity}, {name: third, recipe: popularity}]")
    assert seen == [ended, [*ended[:2], ("half", "third"), *ended[2:]]]


def test_its_rows_are_what_laws_are_fitted_to(store: Store, half: Store, out: Path) -> None:
    run_ladder(tiny("[sasrec]"), [half, store], out, progress=False)
    ladder = read_rows(out / "rows.jsonl", None)
    assert [trace.group for trace in ladder.traces] == ["half", "shop"]
    assert ladder.traces[0].data < ladder.traces[1].data and all(t.flops is not None for t in ladder.traces)


def test_the_time_is_for_all_of_it(store: Store, half: Store, out: Path) -> None:
    rungs = run_ladder(tiny("[sasrec]"), [half, store], out, max_hours=1e-6, progress=False)
    assert ladder_rows(rungs) == [] and [len(rung.outcome.not_run) for rung in rungs] == [1, 1]


def test_stores_of_one_name_are_refused(store: Store, out: Path) -> None:
    with refused("same-store-name", "shop"):
        run_ladder(tiny("[sasrec]"), [store, store], out, progress=False)
    assert not out.exists()


def test_from_the_command_line(store: Store, half: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("{name: small, cells: [sasrec]}")
    both = ("--data", half.path, "--data", store.path)
    assert call("sweep", grid, *both, "--out", tmp_path / "out", *SETTINGS, "--json") == 0
    tree = last(capsys)
    assert set(tree["summary"]) == {"half/sasrec", "shop/sasrec"} and len(tree["rows"]) == 2
