"""Items that nobody had yet: does a model of their text recommend them to the right users, and does a table of ids?

    python -m examples.cold_start ../shared/data/s3rec-beauty --out runs/cold --results results/scaling/cold.json

A tenth of the items lose their training events (`fr.subset`, `hide_items`); users whose validation or test item is one
of them are the slice `cold`. SRT reads title and attributes. SASRec has a vector for every item id: as trained, where
those of hidden items have only been pushed down as negatives, and with the two fallbacks of `fr.fill_unseen`: the mean
of all trained items, and the mean of the trained items with the same attributes.

DATA holds events.parquet and items.parquet with `title` and the list `attributes`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl

import fullrank as fr
from benchmarks import machine

HIDDEN = 0.1
"""Share of the items without training events."""
METRICS = ("recall@10", "ndcg@10", "ndcg@5")
SETTINGS = ("evaluation.selection=ndcg@5", "evaluation.ks=[5, 10]")
"""So that both models stop by the same figure."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of stores and runs")
    parser.add_argument("--results", type=Path, required=True, help="the JSON file to write")
    given = parser.parse_args()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    store = prepared(given.data, given.out)
    text = trained("fullrank.recipes.srt:srt_300", store, given.out / "runs" / "srt")
    ids = trained("sasrec", store, given.out / "runs" / "sasrec")
    runs = {"text": text, "ids": ids}
    for name, how in (("mean", {}), ("neighbours", {"like": "kind"})):
        folder = given.out / "runs" / f"sasrec-{name}"
        whole = (folder / "manifest.json").exists()
        runs[f"ids, {name}"] = fr.Run.open(folder) if whole else fr.fill_unseen(ids, folder, start=name, **how)  # type: ignore[arg-type]
    rows = {name: evaluated(run) for name, run in runs.items()}
    found = {
        "command": " ".join(["python -m examples.cold_start", *sys.argv[1:]]),
        "data": {"fingerprint": store.fingerprint, **store.manifest["subset"]},
        "filled": {name: run.manifest["filled"] for name, run in runs.items() if "filled" in run.manifest},
        "rows": rows,
        "machine": machine.record(Path(__file__).resolve().parent.parent),
    }
    given.results.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(rows, indent=1))


def prepared(data: Path, out: Path) -> fr.Store:
    """The store with hidden items; a column `kind` holds an item's attributes as one value."""
    if (out / "hidden").exists():
        return fr.Store.open(out / "hidden")
    shutil.rmtree(out / "whole", ignore_errors=True)  # left by a call that was cut off
    items = pl.read_parquet(data / "items.parquet").with_columns(kind=pl.col("attributes").list.join(", "))
    whole = fr.prepare(data / "events.parquet", out / "whole", items=items, overwrite=True)
    return fr.subset(whole, out / "hidden", hide_items=HIDDEN, overwrite=True)


def trained(recipe: str, store: fr.Store, out: Path) -> fr.Run:
    """A run with seed 0; one that is there is gone on with."""
    return fr.train(recipe, store, out, set=SETTINGS, resume=(out / "manifest.json").exists())


def evaluated(run: fr.Run) -> dict[str, Any]:
    """Validation and test, over all users and for those of trained and of hidden targets."""
    found: dict[str, Any] = {"recipe": run.spec.recipe, "seed": run.spec.seed}
    for split in ("validation", "test"):
        one = fr.evaluate(run, split)  # type: ignore[arg-type]
        slices = one.slices["cold"]
        found[split] = {
            "all": {name: one.metrics[name] for name in METRICS},
            **{label: {key: slices[label][key] for key in ("count", *METRICS)} for label in ("trained", "cold")},
        }
    return found


if __name__ == "__main__":
    main()
