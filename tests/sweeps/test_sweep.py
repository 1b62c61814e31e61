"""Sweeps: rows, skipping, resuming, failing, the time limit, and what is refused before anything runs."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.api import evaluate
from fullrank.core.locks import folder_lock
from fullrank.data.events.store import Store
from fullrank.sweeps import work
from fullrank.sweeps.records import summarise_seeds
from fullrank.sweeps.sweep import Grid, sweep
from fullrank.training.fit import fit
from refusals import refused
from tests.training.conftest import Stop, Stopped, same_weights

from .conftest import Sweeps, tiny

pytestmark = pytest.mark.usefixtures("cheap")


def test_every_run_leaves_a_row_with_all_that_it_depends_on(store: Store, out: Path, swept: Sweeps) -> None:
    grid = tiny("[sasrec, {name: wide, recipe: sasrec, set: {model.dim: 16}}]", seeds=(0, 3))
    rows = swept(grid)
    assert [(row["cell"], row["seed"]) for row in rows] == [("sasrec", 0), ("sasrec", 3), ("wide", 0), ("wide", 3)]
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert lines == rows
    row = rows[2]
    assert row["metrics"]["test"].keys() == {"ndcg@10", "coverage@10"} == row["stderr"]["test"].keys()
    assert row["data_fingerprint"] == store.fingerprint and row["protocol"]["test"]["split"] == "test"
    assert row["set"]["model.dim"] == 16 and row["recipe"] == "sasrec" and row["epochs"] == 3
    assert row["validation_best"]["metric"] == "ndcg@10" and 1 <= row["validation_best"]["epoch"] <= 3
    assert row["parameters"] > rows[0]["parameters"] and row["seconds"]["train"] > 0
    assert row["machine"]["torch"] == torch.__version__ and row["machine"]["threads"] == torch.get_num_threads()
    assert {"fullrank", "commit", "edited"} <= row["code"].keys() and row["finished"].endswith("+00:00")
    assert len({r["spec_hash"] for r in rows}) == 4


def test_metrics_among_sampled_negatives_stand_beside_the_full_ones(swept: Sweeps) -> None:
    grid = tiny("[sasrec, {name: beside, recipe: sasrec, set: {evaluation.sampled: 20}}]")
    plain, beside = swept(grid)
    assert "sampled" not in plain
    found = beside["sampled"]["test"]["ndcg@10"]
    assert found["full"] == beside["metrics"]["test"]["ndcg@10"] and found["gap"] == found["sampled"] - found["full"]


def test_the_same_call_again_repeats_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], swept: Sweeps
) -> None:
    first = swept("[sasrec, popularity]")
    monkeypatch.setattr(work, "fit", None)
    assert swept("[sasrec, popularity]", progress=True) == first
    assert "2 of 2 runs are finished already" in capsys.readouterr().err
    longer = swept.outcome("[sasrec, gru4rec, popularity]", out / "..", dry_run=True)
    assert len(longer.estimate) == 3, "another folder knows nothing of it"


def test_another_split_is_evaluated_without_training_again(swept: Sweeps) -> None:
    first = swept("[sasrec]")[0]
    row = swept(tiny("[sasrec]", evaluate=("test", "validation")))[0]
    assert row["metrics"]["test"] == first["metrics"]["test"]
    assert row["metrics"]["validation"]["ndcg@10"] == pytest.approx(row["validation_best"]["value"])


BOTH = ({"seen": "keep"},)


def test_the_history_is_ranked_beside_the_history_excluded(store: Store, out: Path, swept: Sweeps) -> None:
    plain = swept("[sasrec]", out / "plain")[0]
    row = swept(tiny("[sasrec]", evaluate_also=BOTH))[0]
    assert list(row["metrics"]) == ["test", "test_seen_keep"] == list(row["stderr"]) == list(row["protocol"])
    assert row["metrics"]["test"] == plain["metrics"]["test"] != row["metrics"]["test_seen_keep"]
    assert [p["seen"] for p in row["protocol"].values()] == ["exclude", "keep"]
    assert {p["split"] for p in row["protocol"].values()} == {"test"}
    found = evaluate(out / "cells" / "sasrec-seed0", data=store, set=["seen=keep"])
    assert row["metrics"]["test_seen_keep"] == pytest.approx(found.metrics)
    summary = summarise_seeds([row])["sasrec"]
    assert summary["test_seen_keep"]["ndcg@10"]["mean"] == row["metrics"]["test_seen_keep"]["ndcg@10"]


def test_a_further_evaluation_of_a_finished_run_trains_nothing(
    out: Path, capsys: pytest.CaptureFixture[str], swept: Sweeps
) -> None:
    """Its row is there and of the same hash, and lacks the figures: the run is evaluated again from its folder."""
    first = swept("[sasrec]")[0]
    log = (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text()
    outcome = swept.outcome(tiny("[sasrec]", evaluate_also=BOTH), progress=True)
    row = outcome.newest[0]
    assert outcome.estimate == [{"cell": "sasrec", "seed": 0, "hours": round(1 / 3600, 5)}], "evaluation alone"
    assert row["spec_hash"] == first["spec_hash"] and row["metrics"]["test"] == first["metrics"]["test"]
    assert "test_seen_keep" in row["metrics"] and "test_seen_keep ndcg@10 0." in capsys.readouterr().err
    assert (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text() == log
    again = swept.outcome(tiny("[sasrec]", evaluate_also=BOTH))
    assert again.newest == [row] and again.estimate == [], "and nothing is left to do"
    assert swept("[sasrec]") == [row], "more than is asked for is finished, too"


def test_an_evaluation_that_is_the_first_one_again_is_not_computed_twice(
    monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    asked, real = [], work.EVALUATE["retrieval"]

    def counted(model: Any, data: Any, split: str, spec: Any, **named: Any) -> Any:
        asked.append((split, spec.seen))
        return real(model, data, split, spec, **named)

    monkeypatch.setitem(work.EVALUATE, "retrieval", counted)
    cells = "[popularity, {name: kept, recipe: popularity, set: {evaluation.seen: keep}}]"
    rows = swept(tiny(cells, evaluate_also=BOTH))
    assert asked == [("test", "exclude"), ("test", "keep"), ("test", "keep")]
    assert rows[1]["metrics"]["test"] == rows[1]["metrics"]["test_seen_keep"] == rows[0]["metrics"]["test_seen_keep"]


@pytest.mark.parametrize("minutes", [0, 5])
def test_a_run_that_was_cut_off_goes_on_to_the_weights_of_an_unbroken_one(
    swept: Sweeps, out: Path, tmp_path: Path, minutes: int
) -> None:
    grid = tiny("[sasrec]", settings={"training.checkpoint_minutes": minutes, "training.batch_size": 128})
    with pytest.raises(Stopped):
        run = out / "cells/sasrec-seed0"
        fit(grid.jobs()[0].experiment, swept.store, run, callbacks=(Stop(1),), progress=False)
    row, whole = swept(grid)[0], swept(grid, tmp_path / "whole")[0]
    assert (row["resumed_at_step"] > 0) == (minutes == 0) and whole["resumed_at_step"] is None
    assert row["metrics"] == whole["metrics"] and row["epochs"] == whole["epochs"] == 3
    assert same_weights(out / "cells/sasrec-seed0", tmp_path / "whole/cells/sasrec-seed0")


def test_a_sweep_cut_off_between_training_and_its_row_only_evaluates(
    out: Path, monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    def cut(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    grid = tiny("[sasrec, gru4rec]")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setitem(work.EVALUATE, "retrieval", cut)
        swept(grid)
    assert not (out / "rows.jsonl").exists(), "an interrupt is no failure"
    before = (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text()
    rows = swept(grid)
    assert [row.get("error") for row in rows] == [None, None] and rows[0]["resumed_at_step"] > 0
    assert (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text() == before
    assert rows[0]["seconds"]["train"] > 0


def test_a_folder_left_before_its_manifest_was_written_is_begun_anew(out: Path, swept: Sweeps) -> None:
    folder = out / "cells" / "sasrec-seed0"
    folder.mkdir(parents=True)
    (folder / "items.parquet").write_bytes(b"half")
    assert "error" not in swept("[sasrec]")[0]


def test_a_failed_run_has_a_row_and_stops_nothing_and_is_tried_again(
    out: Path, monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    def sometimes(experiment: Any, *rest: Any, **named: Any) -> Any:
        if experiment.recipe == "gru4rec":
            raise RuntimeError("no memory")
        return fit(experiment, *rest, **named)

    grid = tiny("[gru4rec, sasrec]")
    with monkeypatch.context() as patched:
        patched.setattr(work, "fit", sometimes)
        outcome = swept.outcome(grid)
    failed, well = outcome.newest
    assert failed["error"] == "RuntimeError: no memory" and failed["metrics"] == {} and outcome.failed == [failed]
    assert well["metrics"]["test"]["ndcg@10"] >= 0
    assert "no memory" in (out / "cells" / "gru4rec-seed0.error.txt").read_text()
    again = swept.outcome(grid)
    assert not again.failed and again.newest[1] == well and len(again.rows.all) == 3
    assert not (out / "cells" / "gru4rec-seed0.error.txt").exists()


def test_runs_beyond_the_time_limit_are_not_started_and_listed_with_their_cost(
    out: Path, capsys: pytest.CaptureFixture[str], swept: Sweeps
) -> None:
    """At a second a step and one for the evaluation: 4 s, 3601 s, 3 s."""
    cells = "[sasrec, {name: long, recipe: sasrec, set: {training.max_epochs: 3600}}, {name: short, recipe: gru4rec}]"
    grid = tiny(cells, settings={"training.patience": 1})
    outcome = swept.outcome(grid, max_hours=0.9, progress=True)
    assert [row["cell"] for row in outcome.newest] == ["sasrec", "short"]
    assert outcome.not_run == [{"cell": "long", "seed": 0, "hours": round(3601 / 3600, 5)}]
    assert "long-seed0: not run" in capsys.readouterr().err
    assert not (out / "cells" / "long-seed0").exists()
    nothing = swept.outcome(grid, out / "other", max_hours=1e-6)
    assert nothing.newest == [] and len(nothing.not_run) == 3
    with refused("hours-not-positive"):
        swept.outcome(grid, max_hours=0.0, progress=True)


def test_another_seed_that_is_done_corrects_the_estimate(swept: Sweeps) -> None:
    """Claimed: a second a step (one step an epoch), so 4 s. Really: milliseconds."""
    swept("[sasrec]")
    outcome = swept.outcome(tiny("[sasrec]", seeds=(0, 1)), dry_run=True)
    assert [entry["seed"] for entry in outcome.estimate] == [1]
    assert 1 / 3600 < outcome.estimate[0]["hours"] < 3.5 / 3600


def test_a_dry_run_prices_everything_and_runs_nothing(
    out: Path, capsys: pytest.CaptureFixture[str], swept: Sweeps
) -> None:
    results = out / "results.json"
    outcome = swept.outcome(
        tiny("[sasrec, gru4rec]", seeds=(0, 1)), dry_run=True, max_hours=10 / 3600, results=results, progress=True
    )
    assert [round(3600 * entry["hours"]) for entry in outcome.estimate] == [4, 4, 4, 4]
    assert [(entry["cell"], entry["seed"]) for entry in outcome.not_run] == [("gru4rec", 0), ("gru4rec", 1)]
    assert not (out / "cells").exists() and not (out / "rows.jsonl").exists() and not results.exists()
    shown = capsys.readouterr()
    assert "cost at most" in shown.err and "total" in shown.err and shown.out == ""


def test_results_hold_the_grid_the_rows_and_means_over_seeds_after_every_row(
    store: Store, out: Path, monkeypatch: pytest.MonkeyPatch, swept: Sweeps
) -> None:
    place, seen = out / "results" / "x.json", []

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(len(json.loads(place.read_text())["rows"]) if place.exists() else 0)
        return fit(*given, **named)

    monkeypatch.setattr(work, "fit", watched)
    grid = tiny("[sasrec, popularity]", seeds=(0, 1))
    rows = swept(grid, results=place, command="fullrank sweep x")
    assert seen == [0, 1, 2]
    tree = json.loads(place.read_text())
    assert tree["rows"] == rows and Grid.parse(tree["grid"]) == grid and tree["command"] == "fullrank sweep x"
    values = [row["metrics"]["test"]["ndcg@10"] for row in rows[:2]]
    summary = tree["summary"]["sasrec"]["test"]["ndcg@10"]
    assert summary["n"] == 2 and summary["mean"] == pytest.approx(sum(values) / 2)
    assert summary["sd"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert tree["summary"]["popularity"]["test"]["ndcg@10"]["sd"] is None
    assert str(store.path.parent) not in place.read_text(), "a record says which data, not where they lie"


def test_a_bad_cell_is_found_before_the_first_one_runs(out: Path, swept: Sweeps) -> None:
    with refused("unknown-setting", "cell 'bad'", "'dims'"):
        swept("[sasrec, {name: bad, recipe: sasrec, set: {model.dims: 9}}]")
    assert not out.exists()


def test_a_run_of_another_spec_is_not_overwritten(out: Path, swept: Sweeps) -> None:
    swept("[sasrec]")
    changed = tiny("[gru4rec, {name: sasrec, recipe: sasrec, set: {model.dim: 16}}]")
    with refused("other-spec", "model.dim", 8, 16):
        swept(changed)
    assert not (out / "cells" / "gru4rec-seed0").exists(), "found before anything ran"


def test_a_folder_in_use_and_a_damaged_record_are_refused(store: Store, out: Path, swept: Sweeps) -> None:
    out.mkdir()
    with ThreadPoolExecutor(1) as other, folder_lock(out, "sweep"), refused("folder-locked", out):
        other.submit(sweep, tiny("[popularity]"), store, out, progress=False).result()
    (out / "rows.jsonl").write_text('{"cell": "x"}\n')
    with refused("file-damaged", "line 1", out / "rows.jsonl"):
        swept("[popularity]")
    with refused("folder-of-others"):
        swept("[popularity]", store.path)


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": -1}, {"seconds": {"train": "1"}}, {"metrics": {"test": 1}}, {"seed": "0"}, {"cell": None},
     {"error": 5}, {"metrics": {"test": {"ndcg@10": True}}}, {"epochs": -1}, {"seconds": {}}, {"metrics": None},
     {"error": "x", "seconds": None}],
)  # fmt: skip
def test_a_row_with_a_value_of_another_type_is_refused(wrong: dict[str, Any], out: Path, swept: Sweeps) -> None:
    swept("[popularity]")
    rows = out / "rows.jsonl"
    rows.write_text(json.dumps(json.loads(rows.read_text()) | wrong) + "\n")
    with refused("file-damaged", "line 1", rows):
        swept("[popularity]")


def test_the_live_table_shows_a_row_per_run_and_fits_the_screen(out: Path, swept: Sweeps) -> None:
    from rich.console import Console

    from fullrank.sweeps.display import Display

    outcome = swept.outcome("[sasrec]")
    jobs = tiny("[sasrec]", seeds=tuple(range(60))).jobs()
    display = Display(jobs, out, outcome, enabled=False)
    display.begin(jobs[1:])
    display.started(jobs[40])
    display.refused(jobs[1:39], [4000.0] * 38)
    console = Console(width=100, height=30, record=True, file=io.StringIO())
    display.console = console
    console.print(display.table())
    text = console.export_text()
    assert "running" in text and text.count("sasrec") == 22, "a screen has room for so many"
    display.shown = {job.folder: display.shown[jobs[0].folder] for job in jobs}
    console.print(display.table())
    assert f"{outcome.newest[0]['metrics']['test']['ndcg@10']:.4f}" in console.export_text()
