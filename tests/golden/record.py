"""What one version of the library computes, to the last bit: one recipe of every family on generated data, as JSON.

`make golden` (compare.py) runs this file in two trees, as ``python -m tests.golden.record OUT.json`` with another
``src`` on the path. So it uses only what stays while modules move: names of `fullrank.__all__`, recipes by name,
dotted settings, and the files of a run folder. Floats are written in hexadecimal; a recipe that fails writes why.
"""

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fullrank as fr
from tests.golden import tables
from tests.golden.families import BASELINES, BLOCKS, CLICKS, FAMILIES, SEQUENCES, Family

STEPS = 50
"""Optimizer steps that every trained recipe takes at least."""
CUT = 34
"""Step in which the run that is resumed was cut off; ten make an epoch."""
USERS, ITEMS, IMPRESSIONS = 150, 60, 1600
BY_SEEN = "evaluation.selection_seen=exclude"
TRAINED = (*([BY_SEEN] if "selection_seen" in fr.recipe("sasrec").dump()["evaluation"] else []), *SEQUENCES)
"""Users of the tables buy the same items again, so a version that knows the setting would choose its epoch by lists
with the history; the baseline has no such setting."""
TIMES = ("seconds", "validation_seconds", "tokens_per_s", "rows_per_s")
"""Figures of metrics.jsonl that no two runs share."""


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


class CutOff(Exception):
    """What ends a run in the middle."""


class Cut:
    """A training callback that ends training in a step, before that step's checkpoint is written."""

    every = 1

    def __init__(self, step: int = CUT) -> None:
        self.left = step

    def on_epoch(self, moment: Any) -> dict[str, Any]:
        self.left -= 1
        if not self.left:
            raise CutOff
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
    for name, then in AFTERWARDS.items() if set(names) == set(FAMILIES) else ():
        try:
            found[name] = then(place, stores)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return {
        "library": str(Path(str(fr.__file__)).parent),
        "stores": {"events": store_of(stores[0]), "impressions": store_of(stores[1]), "codes": codes_of(place)},
        "families": found,
    }


def resumed(place: Path, stores: tuple[Any, Any]) -> dict[str, Any]:
    """A run that was cut off inside its fourth epoch, with a checkpoint after every step, and resumed."""
    settings = [*TRAINED, *BLOCKS, "training.checkpoint_minutes=0"]
    with suppress(CutOff):
        fr.train("sasrec", stores[0], place / "cut", set=settings, callbacks=[Cut()], progress=False)
    fr.train("sasrec", stores[0], place / "cut", set=settings, resume=True, progress=False)
    return weights_and_rows(place / "cut")


def warm_started(place: Path, stores: tuple[Any, Any]) -> dict[str, Any]:
    """A recommender and a ranking model that go on from a run's weights."""
    found = {}
    for name, store in (("sasrec", stores[0]), ("dcnv2", stores[1])):
        out = place / f"{name}-warm"
        fr.train(
            "same", store, out, set=["training.max_epochs=2", "seed=1"], init_from=place / name, progress=False
        )  # fmt: skip
        found[name] = weights_and_rows(out)
    return found


def grown(place: Path, stores: tuple[Any, Any]) -> dict[str, Any]:
    """A run with new items, and one whose items without training events are filled in; codes of more items."""
    new = pl.DataFrame({"item_id": ["n1", "n2"], "title": ["a", "b"], "category": ["red goods", None]})
    run = fr.grow_catalog(fr.Run.open(place / "sasrec"), new, place / "grown", start="neighbours", like="category")
    part = fr.subset(stores[0], place / "subset", share=0.7, hide_items=0.2)
    fr.train("sasrec", part, place / "hidden", set=[*TRAINED, *BLOCKS], progress=False)
    filled = fr.fill_unseen(place / "hidden", place / "filled", like="category")
    return {
        "grown": exact(answers_of(run)),
        "subset": store_of(part),
        "filled": evaluated(filled, part, "test", ()),
        "growth": exact({k: v for k, v in fr.catalogue_growth(stores[0]).dump().items() if k != "source"}),
    }


def cascaded(place: Path, stores: tuple[Any, Any]) -> dict[str, Any]:
    """A ranker's order of a retriever's candidates."""
    both = fr.Cascade(
        place / "sasrec", place / "dcnv2", users=tables.people(), items=tables.goods(ITEMS), store=stores[0],
        impressions=stores[1],
    )  # fmt: skip
    asked: dict[str, Any] = {"k": 5, "candidates": 20, "context": {"hour": 20}}
    found = {blend: both.recommend(unseen_histories(), blend=blend, **asked) for blend in (0.0, 0.3)}
    return {f"blend {blend}": exact(lists.drop("source", strict=False).to_dicts()) for blend, lists in found.items()}


AFTERWARDS: dict[str, Callable[[Path, tuple[Any, Any]], dict[str, Any]]] = {
    "resume": resumed, "warm start": warm_started, "new items": grown, "cascade": cascaded,
}  # fmt: skip
"""What is done with trained runs, some of which are those of `FAMILIES` in the folder."""


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
    settings = [*(CLICKS if family.clicks else TRAINED if trained else SEQUENCES[-1:]), *family.settings]
    steps = EveryStep()
    run = fr.train(family.recipe, store, out, set=settings, callbacks=[steps] if trained else [], progress=False)
    if trained and len(steps.losses) < STEPS:
        raise RuntimeError(f"{len(steps.losses)} steps were taken; the sizes above are meant to give {STEPS}")
    found = {
        "spec": json.loads((out / "spec.json").read_text()),
        "losses": steps.losses,
        "weights by step": steps.weights,
        **weights_and_rows(out),
    }
    asked = [("validation", ()), *(("test", some) for some in family.evaluations)]
    found["evaluations"] = [evaluated(run, store, split, some) for split, some in asked]
    if family.clicks:
        found["probabilities"] = exact(fr.predict(run, unseen_impressions(), data=store)["probability"].to_list())
    else:
        found["lists"] = exact(answers_of(run))
    if family.diagnose:
        sample: dict[str, Any] = {"impressions": 200} if family.clicks else {"users": 40}
        rows = fr.diagnose(run, data=store, **sample).rows
        found["diagnosis"] = [exact(row) for row in rows if row["name"] != "seconds"]
    return found


def evaluated(run: Any, store: Any, split: Any, settings: tuple[str, ...]) -> dict[str, Any]:
    result = fr.evaluate(run, split, data=store, set=settings)
    parts = {"metrics": result.metrics, "stderr": result.stderr, "interval": result.interval}
    return {"asked": [split, *settings], **exact(parts)}


def answers_of(run: fr.Run) -> list[dict[str, Any]]:
    """Lists for users of nobody's store, without the column `source`, which the baseline does not have."""
    found: pl.DataFrame = fr.recommend(run, unseen_histories(), k=7)
    return found.drop("source", strict=False).to_dicts()


def unseen_histories() -> pl.DataFrame:
    """People who are not in the store, one of them with nothing but items that it has not."""
    more = tables.events(12, ITEMS, seed=1)
    strange = pl.DataFrame({"user_id": ["none"], "item_id": ["elsewhere"], "timestamp": [tables.START]})
    return pl.concat([more, strange.with_columns(pl.col("timestamp").cast(more["timestamp"].dtype))])


def unseen_impressions() -> pl.DataFrame:
    """Impressions without labels, with a user that the store has not."""
    more = tables.impressions(60, seed=1).drop("label")
    return more.with_columns(user=pl.when(pl.int_range(pl.len()) == 5).then(pl.lit("new")).otherwise("user"))


def weights_and_rows(run: Path) -> dict[str, Any]:
    return {"weights": digest(load_file(run / "weights.safetensors")), "rows": rows_of(run)}


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
