"""Writes tests/golden/folders and expected.json: what the baseline commit wrote to disk, and what it read from it.

Only ever run with the library of the baseline, since the folders stand for those that users have::

    git worktree add ../baseline 0addcbb
    PYTHONPATH=../baseline/src:. OMP_NUM_THREADS=1 python -m tests.golden.make

`test_golden.py` opens them with the library as it is now. The specs in them are whole, so no recipe may change them.
"""

import hashlib
import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import torch

import fullrank as fr
from tests.golden import tables
from tests.golden.compare import BASELINE
from tests.golden.record import Cut, CutOff

FOLDERS = Path(__file__).with_name("folders")
EXPECTED = Path(__file__).with_name("expected.json")
USERS, ITEMS, IMPRESSIONS = 80, 40, 500
CUT = 23
"""Step in which the cut-off run ends; its last checkpoint is that of the step before, inside the third epoch."""
K = 5
GAP = 1e-4
"""Least distance of neighbouring scores, so that the order of a list is the same on every processor."""

SHARED = (
    "model.dim=8", "model.max_length=8", "model.encoder.layers=1", "training.max_epochs=3", "training.batch_by=tokens",
    "training.batch_size=64", "training.patience=null", "evaluation.bootstrap=10",
)  # fmt: skip
SASREC = (
    *SHARED, "training.max_epochs=4", "training.lr=0.003", "training.checkpoint_minutes=0",
    # The gradient of a key's bias is zero but for rounding, which Adam would blow up to a step of full length: such a
    # run could not be repeated to 1e-5 on another processor.
    "model.encoder.attention.bias=false",
)  # fmt: skip
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sasrec": ("sasrec", SASREC),
    "rpg": ("rpg", (*SHARED, "model.items.codes=codes", "model.encoder.inner=16")),
    "plr": ("plr", (*SHARED, "training.batch_size=200", "model.encoder.inner=8")),
    "srt": (
        "srt", (*SHARED, "model.encoder.inner=8", "model.items.fields=[{column: title}]", "model.items.vocabulary=60"),
    ),
    "item_to_item": ("item_to_item", ("evaluation.bootstrap=10",)),
    "dcnv2": (
        "dcnv2",
        (
            "model.embedding.dim=4", "model.ranker.deep.hidden=[8]", "training.max_epochs=3", "training.batch_size=64",
            "training.patience=null", "evaluation.bootstrap=10",
        ),
    ),
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    _refuse_another_version()
    shutil.rmtree(FOLDERS, ignore_errors=True)
    FOLDERS.mkdir()
    os.chdir(FOLDERS)  # every path in a spec or a manifest is then relative, as the folders are wherever they lie
    _data()
    events, impressions = fr.Store.open("events"), fr.ImpressionStore.open("impressions")
    for name, (recipe, settings) in RUNS.items():
        fr.train(recipe, impressions if recipe == "dcnv2" else events, name, set=settings, progress=False)
    with suppress(CutOff):
        fr.train("sasrec", events, "cut_off", set=SASREC, callbacks=[Cut(CUT)], progress=False)
    for run in (*RUNS, "cut_off"):
        _forget_where(Path(run))
    fr.evaluate("sasrec", data=events).save("evaluation")
    fr.evaluate("dcnv2", data=impressions).save("evaluation_of_clicks")
    expected: dict[str, Any] = {
        "baseline": BASELINE,
        "fingerprints": {"events": events.fingerprint, "impressions": impressions.fingerprint},
        "runs": {name: answers(Path(name), impressions if name == "dcnv2" else events) for name in RUNS},
        "specs": {name: fr.Run.open(name).spec.dump() for name in (*RUNS, "cut_off")},
        "codes": fr.Codes.open("codes").codes.tolist(),
        "files": {str(path): hash_of(path) for path in files(Path())},
    }
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")
    _check_no_path_of_this_machine()
    _check_gaps(expected["runs"])


def _refuse_another_version() -> None:
    tree = Path(str(fr.__file__)).parents[2]
    found = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD:src"], capture_output=True, text=True, check=True
    )
    wanted = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", f"{BASELINE}:src"], capture_output=True, text=True, check=True
    )
    if found.stdout != wanted.stdout:
        raise SystemExit(f"{tree} is not the baseline {BASELINE[:12]}; only that one may write golden folders")


def _data() -> None:
    fr.prepare(tables.events(USERS, ITEMS, mean=9), "events", items=tables.catalogue(ITEMS))
    fr.prepare_impressions(tables.impressions(IMPRESSIONS), "impressions", schema=tables.SCHEMA)
    tables.vectors(ITEMS).write_parquet("vectors.parquet")
    how = ["vectors={kind: file, path: vectors.parquet}", "learner.levels=4", "learner.size=16"]
    fr.encode("events", "codes", set=how)
    # What is asked is kept as well: numpy promises no stream of random numbers beyond one version.
    tables.events(6, ITEMS, mean=7, seed=1).write_parquet("histories.parquet")
    tables.impressions(30, seed=1).drop("label").write_parquet("new_impressions.parquet")


def _forget_where(run: Path) -> None:
    """The store's path in a run's manifest is that of the machine it was trained on. The manifest carries no hash of
    itself and a reader that is given `data=` looks at the fingerprint alone, so a relative path stands for it."""
    place = run / "manifest.json"
    tree = json.loads(place.read_text())
    tree["data"]["path"] = Path(tree["data"]["path"]).name
    place.write_text(json.dumps(tree, indent=2) + "\n")


def answers(run: Path, store: Any) -> dict[str, Any]:
    """What a run is asked, here and in the tests: metrics, and lists or probabilities, as plain data."""
    metrics = {split: dict(fr.evaluate(run, split, data=store).metrics) for split in ("validation", "test")}
    if isinstance(store, fr.ImpressionStore):
        new = pl.read_parquet(FOLDERS / "new_impressions.parquet")
        return {"metrics": metrics, "probabilities": fr.predict(run, new, data=store)["probability"].to_list()}
    found = fr.recommend(run, pl.read_parquet(FOLDERS / "histories.parquet"), k=K + 1).to_dicts()
    return {"metrics": metrics, "lists": found}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_no_path_of_this_machine() -> None:
    for path in (*files(FOLDERS), EXPECTED):
        for start in (str(FOLDERS.parents[2]), str(Path.home()), str(Path(str(fr.__file__)).parents[2])):
            if len(start) > 1 and start.encode() in path.read_bytes():
                raise SystemExit(f"{path} holds the path {start}")


def _check_gaps(runs: dict[str, Any]) -> None:
    for name, found in runs.items():
        pairs = zip(found.get("lists", ()), found.get("lists", ())[1:], strict=False)
        least = min((a["score"] - b["score"] for a, b in pairs if a["user"] == b["user"]), default=1.0)
        print(f"{name}: least gap of scores {least:.2g}, {found['metrics']['test']}")
        if least < GAP and name in ("sasrec", "rpg", "plr", "srt"):
            raise SystemExit(f"{name}: scores {least:.1g} apart may change their order elsewhere; take another seed")


if __name__ == "__main__":
    main()
