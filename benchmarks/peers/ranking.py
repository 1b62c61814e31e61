"""The ranking task: DCNv2 and FinalMLP of this library and of FuxiCTR on the same impressions, scored by one scorer.

Both train at BARS's settings for frappe (`fullrank.recipes.ranking_baselines`), which the runners read from one spec:
the same batches in size, a tenth of the rate at each epoch without gain in validation AUC, and a stop after two.

To a runner: ``train.parquet``, ``validation.parquet`` and ``test.parquet``, a column of ids per field (of lists padded
with 0 for a bag), `label` in the first two; and ``settings.json``. From it: ``probabilities.parquet`` (`row`,
`probability`) and ``timing.json``. Nobody but the scorer sees the labels of the test split.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.harness import CACHE, ROOT, Figures, Say, require, rounded
from benchmarks.peers.environments import ZOO, python_of
from benchmarks.peers.launch import launch, suffix, trainings
from fullrank.core.errors import UserError
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.sources.frappe import Frappe
from fullrank.data.sources.movielens import MovieLensCTR
from fullrank.metrics.ctr import auc, losses
from fullrank.run.experiment import find_experiment

LIBRARIES = ("ours", "fuxictr")
RUNNERS = {"ours": "ours_ranking", "fuxictr": "fuxictr"}
MODELS = ("dcnv2", "finalmlp")
SETS: dict[str, Callable[[], Any]] = {"frappe": Frappe, "ml-1m": MovieLensCTR}
PARTS = ("train", "validation", "test")
LIMIT = 3 * 3600
"""Seconds that one training may take; none is cut short before its own rule stops it."""


def compare(libraries: Sequence[str], models: Sequence[str], sets: Sequence[str], most: Figures, say: Say) -> Figures:
    """A row for each library, model and data set. `most`: epochs, threads, seed and precisions of ours."""
    pythons = {name: python_of(name, say) for name in libraries}
    rows = []
    for data in sets:
        store = impressions(data, say)
        for model in models:
            with tempfile.TemporaryDirectory() as folder:
                export(store, Path(folder), settings_of(model, store, most))
                for name, precision in trainings(libraries, most["precision"]):
                    say(f"{name}, {precision}: {model} on {data}")
                    found = run(name, pythons[name], Path(folder), store, most, precision)
                    rows.append({"data": data, "model": model} | found)
                    say(json.dumps(rows[-1]))
    print(shown(rows))
    return {"rankers": rows, **ratios(rows)}


def impressions(name: str, say: Say, *, cache: Path = CACHE) -> ImpressionStore:
    """The store of a data set, prepared once from the folder in FULLRANK_DATA (``../shared/data``) into the cache."""
    root = Path(os.environ.get("FULLRANK_DATA") or ROOT.parent / "shared" / "data") / name
    if not root.is_dir():
        raise UserError(f"{root} is absent: set FULLRANK_DATA to the folder of the data")
    place = cache / f"{name}-impressions"
    try:
        if place.stat().st_mtime >= max(file.stat().st_mtime for file in root.iterdir()):
            return ImpressionStore.open(place)
    except (OSError, UserError):
        pass  # not there yet, or written by another version
    say(f"prepare {root}")
    found = SETS[name]().impressions(root)
    return prepare_impressions(found.table, place, schema=found.schema, notes=found.notes)


def settings_of(model: str, store: ImpressionStore, most: Figures) -> Figures:
    """What a runner reads: the experiment, the fields with their sizes, and where things are."""
    spec = find_experiment(f"fullrank.recipes.ranking_baselines:{model}_frappe")
    epochs = min(most["epochs"], spec.training.max_epochs)
    spec = spec.override(f"training.max_epochs={epochs}", f"seed={most['seed']}")
    numbers = [field.name for field in store.fields if field.kind == "numeric"]
    if numbers:
        raise UserError(f"the ranking task takes categories and bags, not the numbers {', '.join(numbers)}")
    fields = [{"name": f.name, "kind": f.kind, "size": f.size} for f in store.fields]
    places = {"store": str(store.path.resolve()), "zoo": str(ZOO.resolve())}
    return {"experiment": spec.dump(), "fields": fields, "threads": most["threads"], **places}


def export(store: ImpressionStore, folder: Path, settings: Figures) -> None:
    """Writes what a runner reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        batch = store.batch(store.split(part))
        single, several = iter(batch.categorical.numpy().T), iter(batch.bags)
        columns: dict[str, Any] = {
            field.name: next(single) if field.kind == "categorical" else _padded(next(several).ids.numpy())
            for field in store.fields
        }
        if part != "test":
            columns["label"] = store.labels(part)
        pl.DataFrame(columns).write_parquet(folder / f"{part}.parquet")
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")


def _padded(ids: np.ndarray) -> pl.Series:
    return pl.Series(list(ids), dtype=pl.List(pl.Int64))


def read_probabilities(store: ImpressionStore, path: Path) -> np.ndarray:
    """One for each test impression, in their order. Refuses what is no such table."""
    frame = pl.read_parquet(path).cast({"row": pl.Int64, "probability": pl.Float64}).sort("row")
    count = len(store.split("test"))
    require(np.array_equal(frame["row"].to_numpy(), np.arange(count)), f"not one row for each of {count} impressions")
    found = frame["probability"].to_numpy()
    require(bool(((found >= 0) & (found <= 1)).all()), "a probability outside 0 to 1, or none")
    return found


def score(store: ImpressionStore, probabilities: np.ndarray) -> dict[str, float]:
    """AUC and LogLoss on the test split."""
    labels = store.labels("test").astype(np.float64)
    return {"auc": auc(probabilities, labels), "logloss": float(losses(probabilities, labels).mean())}


def run(
    name: str, python: Path, folder: Path, store: ImpressionStore, most: Figures, precision: str = "fp32"
) -> Figures:
    """One library's row; a library that fails gets a row that says how."""
    found = launch(name, RUNNERS[name], python, folder, precision=precision, threads=most["threads"], limit=LIMIT)
    if "failed" in found:
        return found
    scores = score(store, read_probabilities(store, folder / f"{name}-{precision}" / "probabilities.parquet"))
    # AUCs differ in the fourth digit
    return rounded(found) | rounded(scores, 6)


def ratios(rows: list[Figures]) -> Figures:
    """By data set, model and precision of ours: FuxiCTR's seconds per epoch over ours, and our AUC and LogLoss less
    FuxiCTR's."""
    found = {}
    whole = [row for row in rows if "failed" not in row]
    for row, ours in product(whole, whole):
        alike = all(row[key] == ours[key] for key in ("data", "model"))
        if alike and row["library"] == "fuxictr" and ours["library"] == "fullrank":
            tail = f"{row['model']}_{row['data']}{suffix(ours)}"
            found[f"fuxictr_epoch_over_ours_{tail}"] = row["seconds_per_epoch"] / ours["seconds_per_epoch"]
            found[f"auc_above_fuxictr_{tail}"] = ours["auc"] - row["auc"]
            found[f"logloss_below_fuxictr_{tail}"] = row["logloss"] - ours["logloss"]
    return rounded(found, 3)


def shown(rows: list[Figures]) -> str:
    """The table that people read."""
    columns = (
        "data", "model", "library", "precision", "version", "auc", "logloss", "seconds_per_epoch", "epochs",
        "train_seconds", "peak_rss_mb",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        given = (*columns[:4], "failed") if "failed" in row else columns
        lines.append("| " + " | ".join(f"{row[c]}" for c in given) + " |")
    return "\n".join(lines)
