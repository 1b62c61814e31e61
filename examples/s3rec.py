"""S3-Rec's two runs, and the same model without the first: what pre-training on attributes and segments is worth.

    python -m examples.s3rec data/s3rec-beauty --out runs/s3rec --results results/sequence/s3rec.json

A sweep has one run in a cell, so the pair has a script. Its rows have a sweep's fields; `seconds.pretrain` is the first
run's. The same call again goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import fullrank as fr
from benchmarks import machine

SEEN = {"test": "exclude", "test_seen_keep": "keep"}
"""Names of the two protocols: lists without the user's history, and with it."""
METRIC = "ndcg@10"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, help="a prepared store whose items have attributes")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--results", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--seeds", default="0", help="such as 0,1,2")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    store = fr.Store.open(given.store)
    rows, tested = [], dict[str, list[Any]]({"scratch": [], "s3rec": []})
    for seed in seeds:
        first = trained("s3rec_pretrain", store, given.out / f"pretrain-seed{seed}", seed)
        starts = {"s3rec": first, "scratch": None}
        for cell, start in starts.items():
            run = trained("s3rec", store, given.out / f"{cell}-seed{seed}", seed, start)
            found = {
                name: fr.evaluate(run, "test", set=[f"seen={seen}", "slices=false"]) for name, seen in SEEN.items()
            }
            spent = {"train": seconds(run), **({} if start is None else {"pretrain": seconds(start)})}
            row: dict[str, Any] = {"cell": cell, "recipe": "s3rec", "seed": seed, "data": store.path.name}
            for part in ("metrics", "stderr", "protocol"):
                row[part] = {name: one.dump()[part] for name, one in found.items()}
            rows.append(row | {"parameters": run.manifest["parameters"], "seconds": spent})
            tested[cell].append(found["test"])
            written(given.results, store, rows, tested)


def trained(recipe: str, store: fr.Store, folder: Path, seed: int, start: fr.Run | None = None) -> fr.Run:
    """The run in this folder; trained where it is not there, gone on with where it was cut off."""
    if (folder / "manifest.json").exists():
        return fr.train(out=folder, resume=True)
    return fr.train(recipe, store, folder, init_from=start, set=[f"seed={seed}", "evaluation.seen=exclude"])


def seconds(run: fr.Run) -> float:
    """Of its epochs, validation included."""
    epochs = [row for row in run.rows() if row["event"] == "epoch"]
    return round(sum(row["seconds"] + row.get("validation_seconds", 0.0) for row in epochs), 2)


def written(results: Path, store: fr.Store, rows: list[dict[str, Any]], tested: dict[str, list[Any]]) -> None:
    whole = len(tested["scratch"]) == len(tested["s3rec"])
    found = {
        "command": " ".join(["python -m examples.s3rec", *sys.argv[1:]]),
        "data": {"name": store.path.name, "fingerprint": store.fingerprint},
        "rows": rows,
        "paired": fr.compare(tested["scratch"], tested["s3rec"], METRIC).dump() if whole else None,
        "machine": machine.record(Path(__file__).resolve().parent.parent),
    }
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
