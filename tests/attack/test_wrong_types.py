"""No wrong argument of a public function ends in anything but a sentence.

Each function is called in a child of the fork server, since the tests' run-time type checker would refuse these calls
before the library sees them.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import shutil
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

import fullrank as fr
from tests.attack.forks import forks
from tests.attack.frame import SENTENCE, TALLY, Outcome, attack, every
from tests.attack.worlds import DIM, events, impressions, items, located, world

SECONDS = 600
TINY = {"set": [*DIM, "training.max_epochs=1"], "device": "cpu", "progress": False}
FEW = {"set": ["bootstrap=0"], "device": "cpu"}
ASKED: dict[str, Any] = {"histories": {"a": [1, 2]}}
SEARCH = {"cells": [{"name": "a", "recipe": "sasrec"}], "space": {"training.lr": {"log": [0.001, 0.1]}}, "trials": 2}
TAKEN = pl.DataFrame({"user_id": ["u1", "u2"], "item_id": [2, 9], "timestamp": [2_000_000_000, 2_000_000_001]})
UNSEEN = impressions(5).drop("label")
ON_RUN, STORE = {"run": "@run", "device": "cpu"}, {"data": "@shop"}
WRONG = st.sampled_from([
    None, True, 5, -1, 0, 10**40, 1.5, float("nan"), "text", "", "a\0b", b"bytes", Path("nowhere"), [], [5], [None],
    ["text"],
    [["text"]], (), {}, {"a": 1}, {5: None}, {"text"}, object(), len, int, np.array([1, 2]), np.float64("nan"),
    pl.Series([1]),
    pl.DataFrame(), pl.DataFrame({"a": [1]}), "a generator",
]) | st.text(st.characters(exclude_categories=["C", "Z"]), max_size=3) | st.lists(st.integers() | st.floats(),
max_size=2)  # fmt: skip
"""What a caller may put anywhere by mistake."""
CALLS: dict[str, dict[str, Any]] = {
    "Predictor.recommend": ASKED,
    "Predictor.recommend to users": {"users": ["u1"], **STORE, "filters": {"title": items()["title"][1]},
    "item_table": items()},
    "Predictor.score": {**ASKED, "candidates": [3]}, "Predictor.similar": {"items": 1}, "Predictor.user_vectors": ASKED,
    "Predictor.predict": {"impressions": UNSEEN}, "Predictor.predict_file": {"impressions": UNSEEN,
    "out": "new.parquet"},
    "Cascade.recommend": {"histories": {"u1": [1, 2]}, "context": {"hour": 20}},
    "Cascade.evaluate": {"set": ["bootstrap=0", "ks=[5]"], "candidates": 5, "context": {"hour": 20}},
    "Cascade": {"retriever": "@run", "ranker": "@dcnv2", "device": "cpu"},
    "load": ON_RUN, "recommend": {**ON_RUN, **ASKED},
    "recommend_parts": {**ON_RUN, **STORE, "out": "new", "parts": 2}, "similar_items": {**ON_RUN, "items": 1},
    "item_vectors": ON_RUN, "user_vectors": {**ON_RUN, **ASKED}, "predict": {**ON_RUN, "run": "@lr",
    "impressions": UNSEEN},
    "predict_file": {**ON_RUN, "run": "@lr", "impressions": UNSEEN, "out": "new.csv"},
    "evaluate": {"run": "@run", **STORE, **FEW},
    "evaluate on events": {"run": "@run", "events": TAKEN, "before": events(), **FEW},
    "evaluate_lists": {
        "lists": events(40).unique(["user_id", "item_id"]).rename({"timestamp": "rank"}), **STORE,
        "set": ["bootstrap=0"],
    },
    "evaluate_log": {"log": "~answers", "events": TAKEN.with_columns(timestamp=1500), "samples": 5},
    "diagnose": {**ON_RUN, **STORE, "users": 10},
    "explain": {**ON_RUN, **STORE}, "compare": {"a": "an evaluation", "b": "an evaluation", "metric": "ndcg@10"},
    "prepare": {"events": events(), "out": "new"},
    "prepare_impressions": {"impressions": impressions(), "out": "new", "schema": "@schema.yaml"},
    "subset": {"store": "@shop", "out": "new", "share": 0.5},
    "join_stores": {"stores": ["@shop", "@twin"], "out": "new"},
    "fisher_information": {**ON_RUN, "out": "new.safetensors", "batches": 2},
    "finetune": {"run": "@run", **STORE, "out": "new", "stages": 0, **TINY}, "verify": {"folder": "@shop"},
    "recipe": {"name": "sasrec"},
    "encode": {"items": "@shop", "out": "new", "set": [
        "vectors={kind: file, path: vectors.parquet}", "learner=rq_kmeans", "limits.collisions=1", "learner.levels=2",
        "learner.size=4"]},
    "train": {"what": "sasrec", **STORE, "out": "new", **TINY}, "oracle_step": {"run": "@plr", **STORE, **FEW},
    "step_curve": {"run": "@plr", **STORE, **FEW, "rounds": 1},
    "grow_codes": {"codes": "@codes", "items": "@more", "out": "new", "vectors": "@vectors.parquet"},
    "sweep": {"grid": fr.Grid(base="popularity"), "store": "a store", "out": "new", "progress": False},
    "tune": {"space": fr.Search.parse(SEARCH), "store": "a store", "out": "new", "dry_run": True, "progress": False},
    "grow_catalog": {"run": "@run", "new_items": items(99), "out": "new", "start": "mean"},
    "fill_unseen": {"run": "@run_cold", "out": "new", "start": "mean"}, "export": {"run": "@run", "out": "new",
    "to": "faiss"},
    "catalogue_growth": {"store": "a store"}, "calibrate": {"run": "@lr", "out": "new", "device": "cpu"},
}  # fmt: skip
"""Function -> valid arguments; an `out` is a new path in each call."""
LEFT = {"download", "report"}
"""Not called: what needs a network, or some seconds a call."""
SKIPPED = {"progress", "tell", "callbacks", "loggers", "engine"}
"""Arguments that are called or handed on: objects of the caller's own, whose errors are the caller's."""


@every(CALLS, name="name", process=True)
def test_a_wrong_argument_is_one_sentence(name: str, home: Path) -> None:
    (home / "tmp").mkdir()
    child = forks().start([f"{__name__}:attacked", {"name": name}], home)
    done = child.wait(SECONDS)
    assert done.code == 0, done.err[-3000:]
    counts = Counter({tuple(key): count for key, count in done.json})
    TALLY.update(counts)
    assert counts["wrong types", name, "refused"] >= 20, (
        "hardly anything was refused: are the calls what they should be?"
    )


def test_every_public_function_is_called() -> None:
    functions = {name for name in fr.__all__ if inspect.isfunction(getattr(fr, name)) and name != "attended"}
    assert functions - CALLS.keys() == LEFT


def attacked(name: str) -> None:
    """A function with wrong values for each of its arguments; prints the counts."""
    warnings.simplefilter("ignore")
    function, valid = function_of(name), CALLS[name]

    def call(changes: dict[str, Any], folder: Path) -> Outcome:
        shutil.copy(world("vectors.parquet"), folder)
        given = {key: value_of(value, folder) for key, value in {**valid, **changes}.items()}
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                function(**given)
            return Outcome("ok")
        except fr.UserError as error:
            short = "\n" not in str(error) and len(str(error)) <= SENTENCE
            return Outcome("refused" if short else "noise", str(error)[:300])

    attack("wrong types", name, st.just({}), call, 1)
    assert not TALLY["wrong types", name, "refused"], "the valid call is refused"
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument not in SKIPPED and parameter.kind is not parameter.VAR_POSITIONAL:
            values = WRONG.map(lambda value, argument=argument: {argument: value})
            attack("wrong types", name, values, call, 35, argument)
    print(json.dumps([*TALLY.items()]))


def function_of(name: str) -> Any:
    owner, dot, method = name.split(" ")[0].partition(".")
    if not dot:
        return getattr(fr, owner)
    if owner == "Cascade":
        goods, people = pl.read_parquet(world("goods.parquet")), pl.read_parquet(world("people.parquet"))
        return getattr(fr.Cascade(world("run"), world("dcnv2"), items=goods, users=people, device="cpu"), method)
    return getattr(fr.load(world("lr" if method.startswith("predict") else "run"), device="cpu"), method)


def value_of(value: Any, folder: Path) -> Any:
    """A value of `CALLS` or `WRONG` as an argument."""
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]()
    if isinstance(value, str) and value == "~answers":
        logged = {"time": [1000.0] * 4, "user": ["u1", "u2", "u3", None], "version": ["a", "b", "a", "b"],
                  "source": ["model"] * 4, "k": [2] * 4, "items": [[1, 2]] * 4}  # fmt: skip
        (folder / "answers").mkdir()
        pl.DataFrame(logged, schema_overrides={"k": pl.Int32}).write_parquet(folder / "answers" / "answers-1.parquet")
        return folder / "answers"
    return located(value) if isinstance(value, list) else located([value])[0] if isinstance(value, str) else value


NAMED: dict[str, Any] = {
    "a generator": lambda: (one for one in [1]), "a store": cache(lambda: fr.Store.open(world("shop"))),
    "an evaluation": cache(lambda: fr.evaluate(world("run"), **FEW)),
}  # fmt: skip
"""What only a call can make."""
