"""Sweeps: rows, skipping, resuming, failing, the time limit, and what is refused before anything runs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fullrank.api import evaluate
from fullrank.core.locks import folder_lock
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.sweeps import engine, runner
from fullrank.sweeps.cost import JobCost
from fullrank.sweeps.grid import Grid
from fullrank.sweeps.records import summarise_seeds
from fullrank.sweeps.sweep import run_sweep, sweep
from fullrank.training.fit import fit
from refusals import refused

Tiny = Callable[..., Grid]


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are taken for granted here: a second a step, a second an evaluation."""
    monkeypatch.setattr(runner, "measure_costs", priced)


def priced(jobs: Any, store: Any, **_: Any) -> dict[str, JobCost]:
    return {job.cost_key: JobCost(0.0, 1.0, 1, job.experiment.training.max_epochs, 0.0, 0, 1.0, 1) for job in jobs}


def weights(out: Path, run: str) -> dict[str, torch.Tensor]:
    return read_tensors(out / "cells" / run / "weights.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_every_run_leaves_a_row_with_all_that_it_depends_on(store: Store, tiny: Tiny, out: Path) -> None:
    grid = tiny("[sasrec, {name: wide, recipe: sasrec, set: {model.dim: 16}}]", seeds=(0, 3))
    rows = sweep(grid, store, out, progress=False)
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


def test_metrics_among_sampled_negatives_stand_beside_the_full_ones(store: Store, tiny: Tiny, out: Path) -> None:
    grid = tiny("[sasrec, {name: beside, recipe: sasrec, set: {evaluation.sampled: 20}}]")
    plain, beside = sweep(grid, store, out, progress=False)
    assert "sampled" not in plain
    found = beside["sampled"]["test"]["ndcg@10"]
    assert found["full"] == beside["metrics"]["test"]["ndcg@10"] and found["gap"] == found["sampled"] - found["full"]


def test_the_same_call_again_repeats_nothing(
    store: Store, tiny: Tiny, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = sweep(tiny("[sasrec, popularity]"), store, out, progress=False)
    monkeypatch.setattr(engine, "fit", None)
    assert sweep(tiny("[sasrec, popularity]"), store, out) == first
    assert "2 of 2 runs are finished already" in capsys.readouterr().err
    longer = run_sweep(tiny("[sasrec, gru4rec, popularity]"), store, out / "..", dry_run=True, progress=False)
    assert len(longer.estimate) == 3, "another folder knows nothing of it"


def test_another_split_is_evaluated_without_training_again(store: Store, tiny: Tiny, out: Path) -> None:
    first = sweep(tiny("[sasrec]"), store, out, progress=False)[0]
    row = sweep(tiny("[sasrec]", evaluate=("test", "validation")), store, out, progress=False)[0]
    assert row["metrics"]["test"] == first["metrics"]["test"]
    assert row["metrics"]["validation"]["ndcg@10"] == pytest.approx(row["validation_best"]["value"])


BOTH = ({"seen": "keep"},)


def test_the_history_is_ranked_beside_the_history_excluded(store: Store, tiny: Tiny, out: Path) -> None:
    plain = sweep(tiny("[sasrec]"), store, out / "plain", progress=False)[0]
    row = sweep(tiny("[sasrec]", evaluate_also=BOTH), store, out, progress=False)[0]
    assert list(row["metrics"]) == ["test", "test_seen_keep"] == list(row["stderr"]) == list(row["protocol"])
    assert row["metrics"]["test"] == plain["metrics"]["test"] != row["metrics"]["test_seen_keep"]
    assert [p["seen"] for p in row["protocol"].values()] == ["exclude", "keep"]
    assert {p["split"] for p in row["protocol"].values()} == {"test"}
    found = evaluate(out / "cells" / "sasrec-seed0", data=store, set=["seen=keep"])
    assert row["metrics"]["test_seen_keep"] == pytest.approx(found.metrics)
    summary = summarise_seeds([row])["sasrec"]
    assert summary["test_seen_keep"]["ndcg@10"]["mean"] == row["metrics"]["test_seen_keep"]["ndcg@10"]


def test_a_further_evaluation_of_a_finished_run_trains_nothing(
    store: Store, tiny: Tiny, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row is there and of the same hash, and lacks the figures: the run is evaluated again from its folder."""
    first = sweep(tiny("[sasrec]"), store, out, progress=False)[0]
    log = (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text()
    outcome = run_sweep(tiny("[sasrec]", evaluate_also=BOTH), store, out)
    row = outcome.newest[0]
    assert outcome.estimate == [{"cell": "sasrec", "seed": 0, "hours": round(1 / 3600, 5)}], "evaluation alone"
    assert row["spec_hash"] == first["spec_hash"] and row["metrics"]["test"] == first["metrics"]["test"]
    assert "test_seen_keep" in row["metrics"] and "test_seen_keep ndcg@10 0." in capsys.readouterr().err
    assert (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text() == log
    again = run_sweep(tiny("[sasrec]", evaluate_also=BOTH), store, out, progress=False)
    assert again.newest == [row] and again.estimate == [], "and nothing is left to do"
    assert sweep(tiny("[sasrec]"), store, out, progress=False) == [row], "more than is asked for is finished, too"


def test_an_evaluation_that_is_the_first_one_again_is_not_computed_twice(
    store: Store, tiny: Tiny, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = [], engine.EVALUATE["retrieval"]

    def counted(model: Any, data: Any, split: str, spec: Any, **named: Any) -> Any:
        asked.append((split, spec.seen))
        return real(model, data, split, spec, **named)

    monkeypatch.setitem(engine.EVALUATE, "retrieval", counted)
    cells = "[popularity, {name: kept, recipe: popularity, set: {evaluation.seen: keep}}]"
    rows = sweep(tiny(cells, evaluate_also=BOTH), store, out, progress=False)
    assert asked == [("test", "exclude"), ("test", "keep"), ("test", "keep")]
    assert rows[1]["metrics"]["test"] == rows[1]["metrics"]["test_seen_keep"] == rows[0]["metrics"]["test_seen_keep"]


class Stop:
    """Cuts training off at the end of its first epoch."""

    def on_epoch(self, state: Any) -> dict[str, Any]:
        raise KeyboardInterrupt


@pytest.mark.parametrize("minutes", [0, 5])
def test_a_run_that_was_cut_off_goes_on_to_the_weights_of_an_unbroken_one(
    store: Store, tiny: Tiny, out: Path, tmp_path: Path, minutes: int
) -> None:
    settings = {"training.checkpoint_minutes": minutes, "training.batch_size": 128}
    grid = tiny("[sasrec]", settings=settings)
    with pytest.raises(BaseException):  # noqa: B017 (Lightning makes an exit of an interrupt)
        fit(grid.jobs()[0].experiment, store, out / "cells" / "sasrec-seed0", callbacks=(Stop(),), progress=False)
    row = sweep(grid, store, out, progress=False)[0]
    whole = sweep(grid, store, tmp_path / "whole", progress=False)[0]
    assert (row["resumed_at_step"] > 0) == (minutes == 0) and whole["resumed_at_step"] is None
    assert row["metrics"] == whole["metrics"] and row["epochs"] == whole["epochs"] == 3
    assert same(weights(out, "sasrec-seed0"), weights(tmp_path / "whole", "sasrec-seed0"))


def test_a_sweep_cut_off_between_training_and_its_row_only_evaluates(
    store: Store, tiny: Tiny, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    grid = tiny("[sasrec, gru4rec]")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setitem(engine.EVALUATE, "retrieval", cut)
        sweep(grid, store, out, progress=False)
    assert not (out / "rows.jsonl").exists(), "an interrupt is no failure"
    before = (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text()
    rows = sweep(grid, store, out, progress=False)
    assert [row.get("error") for row in rows] == [None, None] and rows[0]["resumed_at_step"] > 0
    assert (out / "cells" / "sasrec-seed0" / "metrics.jsonl").read_text() == before
    assert rows[0]["seconds"]["train"] > 0


def test_a_folder_left_before_its_manifest_was_written_is_begun_anew(store: Store, tiny: Tiny, out: Path) -> None:
    folder = out / "cells" / "sasrec-seed0"
    folder.mkdir(parents=True)
    (folder / "items.parquet").write_bytes(b"half")
    assert "error" not in sweep(tiny("[sasrec]"), store, out, progress=False)[0]


def test_a_failed_run_has_a_row_and_stops_nothing_and_is_tried_again(
    store: Store, tiny: Tiny, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(experiment: Any, *rest: Any, **named: Any) -> Any:
        if experiment.recipe == "gru4rec":
            raise RuntimeError("no memory")
        return fit(experiment, *rest, **named)

    grid = tiny("[gru4rec, sasrec]")
    with monkeypatch.context() as patched:
        patched.setattr(engine, "fit", sometimes)
        outcome = run_sweep(grid, store, out, progress=False)
    failed, well = outcome.newest
    assert failed["error"] == "RuntimeError: no memory" and failed["metrics"] == {} and outcome.failed == [failed]
    assert well["metrics"]["test"]["ndcg@10"] >= 0
    assert "no memory" in (out / "cells" / "gru4rec-seed0.error.txt").read_text()
    again = run_sweep(grid, store, out, progress=False)
    assert not again.failed and again.newest[1] == well and len(again.rows.all) == 3
    assert not (out / "cells" / "gru4rec-seed0.error.txt").exists()


def test_runs_beyond_the_time_limit_are_not_started_and_listed_with_their_cost(
    store: Store, tiny: Tiny, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a second a step and one for the evaluation: 4 s, 3601 s, 3 s."""
    cells = "[sasrec, {name: long, recipe: sasrec, set: {training.max_epochs: 3600}}, {name: short, recipe: gru4rec}]"
    grid = tiny(cells, settings={"training.patience": 1})
    outcome = run_sweep(grid, store, out, max_hours=0.9)
    assert [row["cell"] for row in outcome.newest] == ["sasrec", "short"]
    assert outcome.not_run == [{"cell": "long", "seed": 0, "hours": round(3601 / 3600, 5)}]
    assert "long-seed0: not run" in capsys.readouterr().err
    assert not (out / "cells" / "long-seed0").exists()
    nothing = run_sweep(grid, store, out / "other", max_hours=1e-6, progress=False)
    assert nothing.newest == [] and len(nothing.not_run) == 3
    with refused("hours-not-positive"):
        run_sweep(grid, store, out, max_hours=0.0)


def test_another_seed_that_is_done_corrects_the_estimate(store: Store, tiny: Tiny, out: Path) -> None:
    """Claimed: a second a step (one step an epoch), so 4 s. Really: milliseconds."""
    sweep(tiny("[sasrec]"), store, out, progress=False)
    outcome = run_sweep(tiny("[sasrec]", seeds=(0, 1)), store, out, dry_run=True, progress=False)
    assert [entry["seed"] for entry in outcome.estimate] == [1]
    assert 1 / 3600 < outcome.estimate[0]["hours"] < 3.5 / 3600


def test_a_dry_run_prices_everything_and_runs_nothing(
    store: Store, tiny: Tiny, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = out / "results.json"
    outcome = run_sweep(
        tiny("[sasrec, gru4rec]", seeds=(0, 1)), store, out, dry_run=True, max_hours=10 / 3600, results=results
    )
    assert [round(3600 * entry["hours"]) for entry in outcome.estimate] == [4, 4, 4, 4]
    assert [(entry["cell"], entry["seed"]) for entry in outcome.not_run] == [("gru4rec", 0), ("gru4rec", 1)]
    assert not (out / "cells").exists() and not (out / "rows.jsonl").exists() and not results.exists()
    shown = capsys.readouterr()
    assert "cost at most" in shown.err and "total" in shown.err and shown.out == ""


def test_results_hold_the_grid_the_rows_and_means_over_seeds_after_every_row(
    store: Store, tiny: Tiny, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, seen = out / "results" / "x.json", []

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(len(json.loads(place.read_text())["rows"]) if place.exists() else 0)
        return fit(*given, **named)

    monkeypatch.setattr(engine, "fit", watched)
    grid = tiny("[sasrec, popularity]", seeds=(0, 1))
    rows = sweep(grid, store, out, results=place, command="fullrank sweep x", progress=False)
    assert seen == [0, 1, 2]
    tree = json.loads(place.read_text())
    assert tree["rows"] == rows and Grid.parse(tree["grid"]) == grid and tree["command"] == "fullrank sweep x"
    values = [row["metrics"]["test"]["ndcg@10"] for row in rows[:2]]
    summary = tree["summary"]["sasrec"]["test"]["ndcg@10"]
    assert summary["n"] == 2 and summary["mean"] == pytest.approx(sum(values) / 2)
    assert summary["sd"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert tree["summary"]["popularity"]["test"]["ndcg@10"]["sd"] is None
    assert str(store.path.parent) not in place.read_text(), "a record says which data, not where they lie"


def test_a_bad_cell_is_found_before_the_first_one_runs(store: Store, tiny: Tiny, out: Path) -> None:
    with refused("unknown-setting", "cell 'bad'", "'dims'"):
        sweep(tiny("[sasrec, {name: bad, recipe: sasrec, set: {model.dims: 9}}]"), store, out, progress=False)
    assert not out.exists()


def test_a_run_of_another_spec_is_not_overwritten(store: Store, tiny: Tiny, out: Path) -> None:
    sweep(tiny("[sasrec]"), store, out, progress=False)
    changed = tiny("[gru4rec, {name: sasrec, recipe: sasrec, set: {model.dim: 16}}]")
    with refused("other-spec", "model.dim", 8, 16):
        sweep(changed, store, out, progress=False)
    assert not (out / "cells" / "gru4rec-seed0").exists(), "found before anything ran"


def test_a_folder_in_use_and_a_damaged_record_are_refused(store: Store, tiny: Tiny, out: Path) -> None:
    out.mkdir()
    with ThreadPoolExecutor(1) as other, folder_lock(out, "sweep"), refused("folder-locked", out):
        other.submit(sweep, tiny("[popularity]"), store, out, progress=False).result()
    (out / "rows.jsonl").write_text('{"cell": "x"}\n')
    with refused("file-damaged", "line 1", out / "rows.jsonl"):
        sweep(tiny("[popularity]"), store, out, progress=False)
    with refused("folder-of-others"):
        sweep(tiny("[popularity]"), store, store.path, progress=False)


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": -1}, {"seconds": {"train": "1"}}, {"metrics": {"test": 1}}, {"seed": "0"}, {"cell": None},
     {"error": 5}, {"metrics": {"test": {"ndcg@10": True}}}, {"epochs": -1}, {"seconds": {}}, {"metrics": None},
     {"error": "x", "seconds": None}],
)  # fmt: skip
def test_a_row_with_a_value_of_another_type_is_refused(
    wrong: dict[str, Any], store: Store, tiny: Tiny, out: Path
) -> None:
    sweep(tiny("[popularity]"), store, out, progress=False)
    rows = out / "rows.jsonl"
    rows.write_text(json.dumps(json.loads(rows.read_text()) | wrong) + "\n")
    with refused("file-damaged", "line 1", rows):
        sweep(tiny("[popularity]"), store, out, progress=False)


def test_the_live_table_shows_a_row_per_run_and_fits_the_screen(store: Store, tiny: Tiny, out: Path) -> None:
    from rich.console import Console

    from fullrank.sweeps.display import Display

    outcome = run_sweep(tiny("[sasrec]"), store, out, progress=False)
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
