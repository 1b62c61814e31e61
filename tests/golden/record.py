"""What one version of the library computes, to the last bit: one recipe of every family on generated data, as JSON.

`make golden` (compare.py) runs this file in two trees, as ``python -m tests.golden.record OUT.json`` with another
``src`` on the path. So it uses only what stays while modules move: names of `fullrank.__all__`, recipes by name,
dotted settings, and the files of a run folder. Floats are written in hexadecimal; a recipe that fails writes why.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fullrank as fr
from tests.golden import tables

STEPS = 50
"""Optimizer steps that every trained recipe takes at least."""
USERS, ITEMS, IMPRESSIONS = 150, 60, 1600
TIMES = ("seconds", "validation_seconds", "tokens_per_s", "rows_per_s")
"""Figures of metrics.jsonl that no two runs share."""

NARROW = ("model.dim=16", "model.max_length=12")
BLOCKS = (*NARROW, "model.encoder.layers=2", "model.encoder.attention.heads=2")
SEQUENCES = (
    "training.max_epochs=5", "training.batch_by=tokens", "training.batch_size=128", "training.patience=null",
    "training.evaluate_every=2", "evaluation.bootstrap=20",
)  # fmt: skip
SIZED = "model.embedding.dim=6"
DEEP = (SIZED, "model.ranker.deep.hidden=[12]")
CLICKS = ("training.max_epochs=5", "training.batch_size=140", "training.patience=null", "evaluation.bootstrap=20")
CODED = (*BLOCKS, "model.items.codes=codes")
REASONING = (*BLOCKS, "training.batch_size=280")
"""Each prefix is a row of its own, of which there are more."""
TEXT = ("model.items.fields=[{column: title}]", "model.items.vocabulary=60")


@dataclass(frozen=True)
class Family:
    """One recipe at a small size, and which of the public calls are made on its run."""

    recipe: str
    settings: tuple[str, ...] = ()
    clicks: bool = False
    """Trained on impressions, which has probabilities where the others have lists."""
    evaluations: tuple[tuple[str, ...], ...] = ((),)
    """Settings of each evaluation on the test split, beside the recipe's own."""
    diagnose: bool = False


RETRIEVAL: dict[str, Family] = {
    "sasrec": Family("sasrec", BLOCKS, evaluations=((), ("seen=keep",), ("sampled=20",)), diagnose=True),
    "sasrec_2018": Family("sasrec_2018", (*NARROW, "model.encoder.inner=16")),
    "sasrec_plus": Family("sasrec_plus", BLOCKS),
    "sprint": Family("sprint", BLOCKS, diagnose=True),
    "sprint:dros": Family("fullrank.recipes.sprint:dros", BLOCKS),
    "sprint:logdet": Family("fullrank.recipes.sprint:logdet", BLOCKS),
    "sprint:resn": Family("fullrank.recipes.sprint:resn", BLOCKS),
    "sprint:r2rec": Family("fullrank.recipes.sprint:r2rec", BLOCKS),
    "sprint:d2lr": Family("fullrank.recipes.sprint:d2lr", BLOCKS),
    "gru4rec": Family("gru4rec", NARROW),
    "bert4rec": Family("bert4rec", BLOCKS),
    "hstu": Family("hstu", BLOCKS),
    "hstu_plus": Family("hstu_plus", BLOCKS),
    "srt": Family("srt", (*BLOCKS, *TEXT, "model.encoder.inner=16")),
    "srt:srt_10": Family("fullrank.recipes.srt:srt_10", (*BLOCKS, *TEXT)),
    "rpg": Family(
        "rpg", CODED, evaluations=((), ("decoding.kind=graph",), ("decoding.kind=pruned",), ("decoding.kind=beam",))
    ),
    "fair": Family("fair", CODED, diagnose=True),
    "plr": Family("plr", REASONING, evaluations=((), ("reasoning.steps=1",)), diagnose=True),
    "plr:features": Family("fullrank.recipes.plr:features", (*REASONING, "model.items.categorical=[category]")),
    "plr:erl": Family("fullrank.recipes.plr:erl", REASONING),
    "plr:prl": Family(
        "fullrank.recipes.plr:prl", (*REASONING, "model.penalties=[{kind: progressive, after_steps: 20}]")
    ),
    "popularity": Family("popularity"),
    "recency": Family("recency"),
    "item_to_item": Family("item_to_item"),
}
RANKING: dict[str, Family] = {
    "lr": Family("lr", clicks=True),
    "fm": Family("fm", (SIZED,), clicks=True),
    "dnn": Family("dnn", DEEP, clicks=True),
    "dcnv2": Family("dcnv2", DEEP, clicks=True, diagnose=True),
    "dcnv2, sparse": Family("dcnv2", (*DEEP, "model.embedding.update=rowwise_adagrad"), clicks=True),
    "xdeepfm": Family("xdeepfm", (*DEEP, "model.ranker.cin=[4,5]"), clicks=True),
    "autoint": Family("autoint", (SIZED, "model.ranker.layers=2", "model.ranker.width=8"), clicks=True),
    "rankmixer": Family("rankmixer", (SIZED, "model.ranker.tokens=4", "model.ranker.width=8"), clicks=True),
    "rankelastor": Family(
        "rankelastor", (SIZED, "model.ranker.tokens=4", "model.ranker.width=6"), clicks=True, diagnose=True
    ),
}
FAMILIES = RETRIEVAL | RANKING
BASELINES = ("popularity", "recency", "item_to_item")


@dataclass
class EveryStep:
    """A training callback that notes the terms of the loss and a hash of the weights at every optimizer step.

    The rows of metrics.jsonl tell a loss once in fifty steps, which a later step could have made up for.
    """

    every: int = 1
    losses: list[Any] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    model: nn.Module | None = None

    def check(self, model: nn.Module, store: Any) -> None:
        """Called with the model before the first step: its forward gives the named terms of the loss."""
        self.model = model
        model.register_forward_hook(self._note)

    def _note(self, model: nn.Module, given: Any, terms: Mapping[str, Tensor]) -> None:
        if model.training:
            self.losses.append({name: exact(value.item()) for name, value in terms.items()})

    def on_epoch(self, moment: Any) -> dict[str, Any]:
        """Called after every step, of which each epoch's last is one; adds nothing to the run's rows."""
        assert self.model is not None
        self.weights.append(digest(self.model.state_dict()))
        return {}


def record(place: Path, names: Sequence[str] = tuple(FAMILIES)) -> dict[str, Any]:
    """Every family's numbers by name, and the stores that they were trained on. Changes into the folder `place`."""
    torch.set_num_threads(1)
    os.chdir(place)  # specs name the codes and the vectors by relative paths, which are equal in both trees
    stores, found = prepared(place), {}
    for name in names:
        try:
            found[name] = of_family(FAMILIES[name], stores, place / name.replace(":", "-").replace(", ", "-"))
        except Exception as error:  # a recipe that broke is a difference like any other, and the rest is still told
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        print(name, file=sys.stderr, flush=True)
    return {
        "library": str(Path(str(fr.__file__)).parent),
        "stores": {"events": store_of(stores[0]), "impressions": store_of(stores[1]), "codes": codes_of(place)},
        "families": found,
    }


def prepared(place: Path) -> tuple[Any, Any]:
    """A store of events, one of impressions, and codes of the items in the folder `codes`."""
    events = tables.events(USERS, ITEMS)
    store = fr.prepare(events, place / "events", items=tables.catalogue(ITEMS))
    shown = fr.prepare_impressions(tables.impressions(IMPRESSIONS), place / "impressions", schema=tables.SCHEMA)
    tables.vectors(ITEMS).write_parquet(place / "vectors.parquet")
    how = [
        "vectors={kind: file, path: vectors.parquet}", "learner.levels=4", "learner.size=8", "limits.collisions=1",
    ]  # fmt: skip
    fr.encode(store, place / "codes", set=how, cache=place / "cache")
    return store, shown


def of_family(family: Family, stores: tuple[Any, Any], out: Path) -> dict[str, Any]:
    """One recipe trained and asked everything that its kind can be asked."""
    store = stores[family.clicks]
    trained = family.recipe not in BASELINES
    settings = [*(CLICKS if family.clicks else SEQUENCES if trained else SEQUENCES[-1:]), *family.settings]
    steps = EveryStep()
    run = fr.train(family.recipe, store, out, set=settings, callbacks=[steps] if trained else [], progress=False)
    if trained and len(steps.losses) < STEPS:
        raise RuntimeError(f"{len(steps.losses)} steps were taken; the sizes above are meant to give {STEPS}")
    found = {
        "spec": json.loads((out / "spec.json").read_text()),
        "losses": steps.losses,
        "weights by step": steps.weights,
        "rows": rows_of(out),
        "weights": digest(load_file(out / "weights.safetensors")),
    }
    asked = [("validation", ()), *(("test", some) for some in family.evaluations)]
    found["evaluations"] = [evaluated(run, store, split, some) for split, some in asked]
    if family.clicks:
        found["probabilities"] = exact(fr.predict(run, unseen_impressions(), data=store)["probability"].to_list())
    else:
        found["lists"] = exact(fr.recommend(run, unseen_histories(), k=7).to_dicts())
    if family.diagnose:
        sample = {"impressions": 200} if family.clicks else {"users": 40}
        rows = fr.diagnose(run, data=store, **sample).rows
        found["diagnosis"] = [exact(row) for row in rows if row["name"] != "seconds"]
    return found


def evaluated(run: Any, store: Any, split: Any, settings: tuple[str, ...]) -> dict[str, Any]:
    result = fr.evaluate(run, split, data=store, set=settings)
    parts = {"metrics": result.metrics, "stderr": result.stderr, "interval": result.interval}
    return {"asked": [split, *settings], **exact(parts)}


def unseen_histories() -> pl.DataFrame:
    """People who are not in the store, one of them with nothing but items that it has not."""
    more = tables.events(12, ITEMS, seed=1)
    strange = pl.DataFrame({"user_id": ["none"], "item_id": ["elsewhere"], "timestamp": [tables.START]})
    return pl.concat([more, strange.with_columns(pl.col("timestamp").cast(more["timestamp"].dtype))])


def unseen_impressions() -> pl.DataFrame:
    """Impressions without labels, with a user that the store has not."""
    more = tables.impressions(60, seed=1).drop("label")
    return more.with_columns(user=pl.when(pl.int_range(pl.len()) == 5).then(pl.lit("new")).otherwise("user"))


def rows_of(run: Path) -> list[Any]:
    """The rows of metrics.jsonl, without times and without those that `EveryStep` asked for."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [exact({k: v for k, v in row.items() if k not in TIMES}) for row in rows if row["event"] != "watch"]


def store_of(store: Any) -> dict[str, Any]:
    """The split, and every file but the manifest, which says when and by what it was written."""
    files = sorted(path for path in store.path.rglob("*") if path.is_file() and path.name != "manifest.json")
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {"fingerprint": store.fingerprint, "files": hashes}


def codes_of(place: Path) -> dict[str, Any]:
    codes = fr.Codes.open(place / "codes", verify=True)
    return {"items": codes.item_ids.to_list(), "codes": codes.codes.tolist()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors, in the order of their names."""
    whole = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.detach().contiguous().cpu().numpy().tobytes())
    return whole.hexdigest()[:16]


def exact(value: Any) -> Any:
    """Plain data whose floats are hexadecimal text, so that equal text is equal bits (and NaN is equal to NaN)."""
    if isinstance(value, Mapping):
        return {str(key): exact(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return exact(value.tolist())
    return value if isinstance(value, str | int | bool | None) else str(value)


def main() -> None:
    out, names = Path(sys.argv[1]).resolve(), tuple(sys.argv[2:]) or tuple(FAMILIES)
    with tempfile.TemporaryDirectory() as folder:
        out.write_text(json.dumps(record(Path(folder), names), indent=1) + "\n")


if __name__ == "__main__":
    main()
