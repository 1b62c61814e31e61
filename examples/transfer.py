"""Titles of other shops for a shop with few events: what pre-training is worth at 1, 10 and 100 % of its users.

    python -m examples.transfer data/beauty --from data/toys --out runs/transfer --results results/scaling/transfer.json

`srt` on titles is pre-trained on the stores of `--from`, then meets the target: without a step of training (zero-shot),
fine-tuned all at once, fine-tuned in SRT's stages, and in stages with elastic weight consolidation; beside it the same
recipe from scratch, and models that are counted: popularity, items bought together, a graph of transitions that reads
titles too. A share's models are trained on some of the users and evaluated on all of them
(`fr.subset(..., keep_items=True)`). Differences are paired by user, of the mean over seeds. A row is written as it
ends; the same call again goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import fullrank as fr
from benchmarks import machine

METRICS = ("ndcg@5", "ndcg@10", "recall@10")
TITLES = "model.items.fields=[{column: title, tokens: 40}]"
EPOCHS = {0.01: 100, 0.1: 40, 1.0: 20}
"""Of each share: fewer users make fewer steps of an epoch. All ways have the same, and stop early alike."""
STAGE_EPOCHS = 5
FISHER_BATCHES = 1000
COUNTED = ("popularity", "item_to_item", "transition_graph")
PAIRS = (("scratch", "whole"), ("scratch", "staged"), ("scratch", "ewc"), ("whole", "staged"), ("staged", "ewc"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="the store that the model is for")
    parser.add_argument(
        "--from", dest="sources", type=Path, action="append", required=True, help="a store to start from"
    )
    parser.add_argument("--weights", default=None, help="how often the rows of each source count, such as 1,0.1")
    parser.add_argument("--start-epochs", type=int, default=10, help="epochs of pre-training")
    parser.add_argument("--out", type=Path, required=True, help="folder of stores and runs")
    parser.add_argument("--results", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--seeds", default="0.01=0,1,2;0.1=0,1,2;1=0", help="seeds of each share of users")
    parser.add_argument("--counted", action="store_true", help="only what is counted: seconds")
    given = parser.parse_args()
    if given.counted and given.results.exists():
        parser.error(f"--counted writes its rows alone, and {given.results} is there: name another file")
    seeds = {float(s): [int(x) for x in some.split(",")] for s, some in (p.split("=") for p in given.seeds.split(";"))}
    study = Study(given.target, given.sources, given.weights, given.start_epochs, given.out)
    if not given.counted:
        study.start_from_zero()
    for share, some in seeds.items():
        study.counted(share)
        if given.counted:  # nothing is pre-trained
            written(given.results, study)
            continue
        for seed in some:
            for way in ("scratch", "whole", "staged", "ewc"):
                study.row(way, share, seed)
                written(given.results, study)


class Study:
    """The runs and their evaluations on the test split of the whole target."""

    def __init__(self, target: Path, sources: list[Path], weights: str | None, epochs: int, out: Path):
        self.out, self.store = out, fr.Store.open(target)
        self.sources, self.weights, self.epochs = sources, weights, epochs
        self.found: dict[tuple[str, float, int], Any] = {}
        self.zero: Any = None
        """The evaluation of the pre-trained run before its first step, where it was made."""

    @cached_property
    def start(self) -> fr.Run:
        """The pre-trained run."""
        own = [TITLES, f"training.max_epochs={self.epochs}", "training.patience=null"]
        return self.once("start", lambda at: fr.train("srt", self.joined(), at, set=own))

    @cached_property
    def fisher(self) -> Path:
        folder = self.out / "fisher.safetensors"
        if not folder.exists():
            fr.fisher_information(self.start, folder, batches=FISHER_BATCHES)
        return folder

    def start_from_zero(self) -> None:
        """Evaluate the pre-trained run before the first step."""
        zero = ["training.max_epochs=0"]
        run = self.once("zero", lambda at: fr.train(data=self.store, out=at, init_from=self.start, set=zero))
        self.zero = self.tested(run)

    def joined(self) -> fr.Store:
        """One store of all sources."""
        folder = self.out / "sources"
        if len(self.sources) == 1 or folder.exists():
            return fr.Store.open(self.sources[0] if len(self.sources) == 1 else folder)
        numbers = None if self.weights is None else [float(x) for x in self.weights.split(",")]
        return fr.join_stores(self.sources, folder, weights=numbers)

    def counted(self, share: float) -> None:
        """Count the models that are not trained, on a share of the users."""
        for recipe in COUNTED:
            run = self.once(f"{recipe}-{share:g}", lambda at, recipe=recipe: fr.train(recipe, self.subset(share), at))  # type: ignore[misc]
            self.found[recipe, share, 0] = self.tested(run)

    def row(self, way: str, share: float, seed: int) -> None:
        """Train one model on a share of the users, and evaluate it on all."""
        store, folder = self.subset(share), f"{way}-{share:g}-{seed}"
        own = [f"training.max_epochs={EPOCHS[share]}", f"seed={seed}"]
        stages = {"stages": 0} if way == "whole" else {"stage_epochs": STAGE_EPOCHS}
        held = {"ewc": self.fisher} if way == "ewc" else {}
        made: Callable[[Path], fr.Run] = (
            (lambda at: fr.train("srt", store, at, set=[TITLES, *own]))
            if way == "scratch"
            else (lambda at: fr.finetune(self.start, store, at, set=own, **stages, **held))  # type: ignore[arg-type]
        )
        self.found[way, share, seed] = self.tested(self.once(folder, made))

    def subset(self, share: float) -> fr.Store:
        if share == 1:
            return self.store
        folder = self.out / f"share-{share:g}"
        return fr.Store.open(folder) if folder.exists() else fr.subset(self.store, folder, share=share, keep_items=True)

    def once(self, name: str, make: Callable[[Path], fr.Run]) -> fr.Run:
        """The run of this name; made where it is not there and finished, from the start where it was cut off."""
        folder = self.out / "runs" / name
        done = self.out / "runs" / f"{name}.done"
        if not done.exists():
            for left in (folder, folder.parent / f"{name}.stages"):
                shutil.rmtree(left, ignore_errors=True)
            make(folder)
            done.write_text("")
        return fr.Run.open(folder)

    def tested(self, run: fr.Run) -> Any:
        settings = ["seen=exclude", "ks=[5, 10]", "sampled=null"]
        return fr.evaluate(run, "test", data=self.store, set=settings)


def written(results: Path, study: Study) -> None:
    """All rows so far, and the paired differences of the shares whose ways have equally many seeds."""
    rows = [
        {"way": way, "share": share, "seed": seed, **figures(one)} for (way, share, seed), one in study.found.items()
    ]
    if study.zero is not None:
        rows.append({"way": "zero-shot", **figures(study.zero)})
    found = {
        "command": " ".join(["python -m examples.transfer", *sys.argv[1:]]),
        "data": {"name": study.store.path.name, "fingerprint": study.store.fingerprint},
        "protocol": "leave-one-out, test, history excluded, all users",
        "rows": rows,
        "paired": paired(study),
        "machine": machine.record(Path(__file__).resolve().parent.parent),
    }
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found, indent=1) + "\n")


def figures(one: Any) -> dict[str, Any]:
    return {
        "metrics": {name: round(one.metrics[name], 5) for name in METRICS},
        "stderr": {name: round(one.stderr[name], 5) for name in METRICS},
    }


def paired(study: Study) -> list[dict[str, Any]]:
    found = []
    for share in EPOCHS:
        for a, b in PAIRS:
            ours, theirs = (
                {seed: one for (way, part, seed), one in study.found.items() if (way, part) == (w, share)}
                for w in (a, b)
            )
            both = sorted(ours.keys() & theirs.keys())
            for metric in METRICS if both else ():
                told = fr.compare([ours[s] for s in both], [theirs[s] for s in both], metric)
                found.append({"share": share, "from": a, "to": b, "seeds": both, **told.dump()})
    zero, popular = study.zero, study.found.get(("popularity", 1.0, 0))
    for metric in METRICS if zero is not None and popular is not None else ():
        found.append({"from": "popularity", "to": "zero-shot", **fr.compare(popular, zero, metric).dump()})
    return found


if __name__ == "__main__":
    main()
