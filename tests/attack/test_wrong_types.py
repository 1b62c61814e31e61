"""No wrong argument of a public function ends in anything but a sentence.

Each function is called in a child of the fork server, since the tests' run-time type checker would refuse these calls
before the library sees them.
"""

import contextlib
import inspect
import io
import shutil
import warnings
from collections import Counter
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

import fullrank as fr
from tests.attack.forks import Child
from tests.attack.frame import SENTENCE, SHARE, TALLY, Outcome, attack, every
from tests.attack.worlds import DIM, events, impressions, items, located, world

SECONDS = 600
UNSEEN = impressions(5).drop("label")
TAKEN = pl.DataFrame({"user_id": ["u1", "u2"], "item_id": [2, 9], "timestamp": [2_000_000_000, 2_000_000_001]})
RANKED = events(40).unique(["user_id", "item_id"]).rename({"timestamp": "rank"})
WRONG = st.sampled_from([
    None, True, 5, -1, 0, 10**40, 1.5, float("nan"), "text", "", "a\0b", b"bytes", Path("nowhere"), [], [5], [None],
    ["text"],
    [["text"]], (), {}, {"a": 1}, {5: None}, {"text"}, object(), len, int, np.array([1, 2]), np.float64("nan"),
    pl.Series([1]),
    pl.DataFrame(), pl.DataFrame({"a": [1]}), "a generator",
]) | st.text(st.characters(exclude_categories=["C", "Z"]), max_size=3) | st.lists(st.integers() | st.floats(),
max_size=2)  # fmt: skip
"""What a caller may put anywhere by mistake."""
VALID: dict[str, Any] = {"run": "@run", "out": "new", "histories": {"a": [1, 2]}, "device": "cpu"}
"""Argument -> what is valid in most functions; an `out` is a new path in each call."""
NEEDED: dict[str, Any] = {"data": "@shop", "impressions": UNSEEN, "store": "@shop", "items": 1, "folder": "@shop"}
"""The same of arguments that a function cannot do without."""
FEW, TINY = {"set": ["bootstrap=0"]}, {"set": [*DIM, "training.max_epochs=1"], "progress": False}
SEARCH = {"cells": [{"name": "a", "recipe": "sasrec"}], "space": {"training.lr": {"log": [0.001, 0.1]}}, "trials": 2}
CODES = ["vectors={kind: file, path: vectors.parquet}", "learner=rq_kmeans", "limits.collisions=1", "learner.levels=2",
         "learner.size=4"]  # fmt: skip
ALONE = ("Predictor.recommend", "Predictor.similar", "Predictor.user_vectors", "Predictor.predict", "load", "recommend",
         "similar_items", "item_vectors", "user_vectors", "explain", "verify", "check")  # fmt: skip
CALLS: dict[str, dict[str, Any]] = {name: {} for name in ALONE} | {
    "Predictor.recommend to users": {
        "histories": None, "users": ["u1"], "data": "@shop", "filters": {"title": items()["title"][1]},
        "item_table": items(),
    },
    "Predictor.score": {"candidates": [3]}, "Predictor.predict_file": {"out": "new.parquet"},
    "Cascade.recommend": {"histories": {"u1": [1, 2]}, "context": {"hour": 20}},
    "Cascade.evaluate": {"set": ["bootstrap=0", "ks=[5]"], "candidates": 5, "context": {"hour": 20}},
    "Cascade": {"retriever": "@run", "ranker": "@dcnv2"},
    "recommend_parts": {"histories": None, "data": "@shop", "parts": 2},
    "predict": {"run": "@lr"}, "predict_file": {"run": "@lr", "out": "new.csv"}, "evaluate": FEW,
    "evaluate on events": {"events": TAKEN, "before": events(), **FEW}, "evaluate_lists": {"lists": RANKED, **FEW},
    "evaluate_log": {"log": "~answers", "events": TAKEN.with_columns(timestamp=1500), "samples": 5},
    "diagnose": {"users": 10}, "compare": {"a": "an evaluation", "b": "an evaluation", "metric": "ndcg@10"},
    "prepare": {"events": events()}, "prepare_impressions": {"impressions": impressions(), "schema": "@schema.yaml"},
    "subset": {"share": 0.5}, "join_stores": {"stores": ["@shop", "@twin"]},
    "fisher_information": {"out": "new.safetensors", "batches": 2}, "finetune": {"stages": 0, **TINY},
    "recipe": {"name": "sasrec"}, "encode": {"items": "@shop", "set": CODES},
    "train": {"what": "sasrec", "data": "@shop", **TINY}, "oracle_step": {"run": "@plr", **FEW},
    "step_curve": {"run": "@plr", "rounds": 1, **FEW},
    "grow_codes": {"codes": "@codes", "items": "@more", "vectors": "@vectors.parquet"},
    "sweep": {"grid": fr.Grid(base="popularity"), "store": "a store", "progress": False},
    "tune": {"space": fr.Search.parse(SEARCH), "store": "a store", "dry_run": True, "progress": False},
    "grow_catalog": {"new_items": items(99), "start": "mean"}, "fill_unseen": {"run": "@run_cold", "start": "mean"},
    "export": {"to": "faiss"}, "catalogue_growth": {"store": "a store"}, "calibrate": {"run": "@lr"},
}  # fmt: skip
"""Function -> its own valid arguments."""
LEFT = {"auto", "blend", "download", "report"}
"""Not called: what needs a network, or some seconds a call."""
SKIPPED = {"progress", "tell", "callbacks", "loggers", "engine"}
"""Arguments that are called or handed on: objects of the caller's own, whose errors are the caller's."""


@every(CALLS, name="name", process=True)
def test_a_wrong_argument_is_one_sentence(name: str, home: Path) -> None:
    (home / "tmp").mkdir()
    child = Child([f"{__name__}:attacked", {"name": name}], home)
    done = child.wait(SECONDS)
    assert done.code == 0, done.err[-3000:]
    counts = Counter({tuple(key): count for key, count in done.json})
    TALLY.update(counts)
    assert counts["wrong types", name, "refused"] >= 20 * SHARE, (
        "hardly anything was refused: are the calls what they should be?"
    )


def test_every_public_function_is_called() -> None:
    functions = {name for name in fr.__all__ if inspect.isfunction(getattr(fr, name)) and name != "attended"}
    assert functions - CALLS.keys() == LEFT


def attacked(name: str) -> list[Any]:
    """A function with wrong values for each of its arguments; the counts."""
    warnings.simplefilter("ignore")
    function = function_of(name)
    parameters = inspect.signature(function).parameters
    needed = {
        key: value for key, value in NEEDED.items() if key in parameters and parameters[key].default is Parameter.empty
    }
    valid = {key: value for key, value in VALID.items() if key in parameters} | needed | CALLS[name]

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
    for argument, parameter in parameters.items():
        if argument not in SKIPPED and parameter.kind is not Parameter.VAR_POSITIONAL:
            values = WRONG.map(lambda value, argument=argument: {argument: value})
            attack("wrong types", name, values, call, 35, argument)
    return [*TALLY.items()]


def function_of(name: str) -> Any:
    owner, dot, method = name.split(" ", maxsplit=1)[0].partition(".")
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
    "an evaluation": cache(lambda: fr.evaluate(world("run"), device="cpu", **FEW)),
}  # fmt: skip
"""What only a call can make."""
