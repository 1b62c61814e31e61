"""Every grid and search under results/ is dry-run, its experiments keep their hashes, committed rows count as run."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fullrank as fr
from tests.golden import grids
from tests.golden.make import FOLDERS

RECORDED: dict[str, Any] = json.loads(grids.RECORDED.read_text())
LARGE = [grids.EXPERIMENTS / "sprint" / f"{name}.yaml" for name in ("paper", "tune")]
"""Some thirty jobs each: a sweep compares each with each row, which takes seconds here."""
ROOMS = sorted({path.parent.name for path in grids.GRIDS})
"""Folders of results that have grids: one test each goes through all of them."""
COMMITTED = {grids.label(path): rows for path, rows in grids.committed()}


def changed(path: Path) -> dict[str, tuple[str, str | None]]:
    """Run folder -> the hash that was recorded and the one of today, where they differ. New grids have none."""
    found = grids.hashes(path)
    recorded = RECORDED["jobs"].get(grids.label(path), {})
    return {name: (value, found.get(name)) for name, value in recorded.items() if found.get(name) != value}


def dry_run(path: Path, rows: list[dict[str, Any]], out: Path) -> list[str]:
    """Dry-run a grid or search in a folder that has these rows; the run folders of the jobs that have one.

    The store is a small one, and the rows say that they are of it: no cost is measured of what counts as run.
    """
    store = fr.Store.open(FOLDERS / "events")
    lines = [json.dumps({**row, "data_fingerprint": store.fingerprint}) for row in rows]
    (out / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
    asked = grids.read(path) if path.suffix == ".yaml" else grid_of(rows)
    if isinstance(asked, fr.Search):
        found = fr.tune(asked, store, out, dry_run=True, progress=False)
        assert found["estimate"] == found["not_run"] == []
        seeds = found["budget"]["seeds"]
        trials = [(cell, one) for cell, some in found["trials"].items() for one in some if one["ended"]]
        return [f"{cell}-trial{one['trial']}-seed{seed}" for cell, one in trials for seed in seeds]
    return [f"{row['cell']}-seed{row['seed']}" for row in fr.sweep(asked, store, out, dry_run=True, progress=False)]


def grid_of(rows: list[dict[str, Any]]) -> fr.Grid:
    """A grid of the very runs that these rows are of; a choice among trials has rows of the validation split alone."""
    named = set.intersection(*(set(row["metrics"]) for row in rows))
    splits = sorted(named & {"validation", "test"})  # the others are further evaluations
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        cells.setdefault(row["cell"], grids.cell_of(row) | {"seeds": []})["seeds"].append(row["seed"])
    return fr.Grid.parse({"cells": list(cells.values()), "evaluate": splits})


def row_of(job: Any, value: str) -> dict[str, Any]:
    """A row as a sweep writes it when a job has ended."""
    metrics = {name: {job.experiment.evaluation.selection: 0.5} for name in job.evaluations}
    ended = {"metrics": metrics, "seconds": {"train": 1.0, "evaluate": 1.0}, "epochs": 1}
    return {"cell": job.cell, "seed": job.seed, "spec_hash": value, **ended}


@pytest.mark.parametrize("room", ROOMS)
def test_the_jobs_of_grids_keep_their_hashes_in_memory_and_on_disk(room: str) -> None:
    """A sweep compares a run folder's spec with the job's, so writing and reading must not change it."""
    for path in (path for path in grids.GRIDS if path.parent.name == room):
        assert grids.hashes(path), f"{path} has no jobs"
        assert changed(path) == {}, path
        for job in {job.cell: job for job in grids.jobs(path)}.values():  # seeds differ in one number
            assert fr.Experiment.from_text(job.experiment.to_json()).dump() == job.experiment.dump(), job.folder


@pytest.mark.parametrize("room", ROOMS)
def test_grids_are_dry_run_and_find_what_was_run(room: str, tmp_path: Path) -> None:
    for path in (path for path in grids.GRIDS if path.parent.name == room and path not in LARGE):
        finds_what_was_run(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", LARGE, ids=grids.label)
def test_a_large_grid_is_dry_run_and_finds_what_was_run(path: Path, tmp_path: Path) -> None:
    finds_what_was_run(path, tmp_path)


def finds_what_was_run(path: Path, out: Path) -> None:
    """As it would if the baseline had run all of it: every job is found by the hash that the baseline gave it."""
    jobs = grids.jobs(path)
    recorded = RECORDED["jobs"].get(grids.label(path)) or grids.hashes(path)
    rows = [row_of(job, recorded[job.folder]) for job in jobs]
    with tempfile.TemporaryDirectory(dir=out) as folder:
        assert sorted(dry_run(path, rows, Path(folder))) == sorted(job.folder for job in jobs), path


def test_no_recorded_grid_is_gone() -> None:
    assert set(RECORDED["jobs"]) <= {grids.label(path) for path in grids.GRIDS}


@pytest.mark.parametrize("room", sorted({name.split("/")[0] for name in RECORDED["run"]}))
def test_committed_rows_still_count_as_run(room: str, tmp_path: Path) -> None:
    for name in (name for name in RECORDED["run"] if name.split("/")[0] == room):
        run = RECORDED["run"][name]
        assert set(run) <= set(grids.still_run(COMMITTED[name])), name
        rows = [row for row in COMMITTED[name] if f"{row['cell']}-seed{row['seed']}" in run]
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            assert sorted(dry_run(Path(name), rows, Path(folder))) == sorted(run), name


def test_the_grids_beside_the_rows_still_ask_for_them() -> None:
    for name, wanted in RECORDED["asked for"].items():
        grids_of = grids.in_grids(name.split("/")[0], COMMITTED[name])
        assert {key: grid for key, grid in wanted.items() if grid not in grids_of.get(key, ())} == {}, name


def test_another_default_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting of the root that stands elsewhere than it did changes the hash, and the job is not found as run."""
    path = grids.EXPERIMENTS / "sequence" / "beauty.yaml"
    other = fr.Grid.read(path).with_settings({"training.evaluate_every": 7})
    monkeypatch.setattr(grids, "hashes", lambda _: {job.folder: job.spec_hash for job in other.jobs()})
    assert set(changed(path)) >= {"sasrec-seed0", "sasrec-seed1"}
    rows = [row for row in COMMITTED["fair/2026-11-22_2cpu_pair.json"] if row["cell"] == "rpg"]
    assert grids.still_run(rows) and not grids.still_run([{**row, "spec_hash": "0" * 16} for row in rows])
