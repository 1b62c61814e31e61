"""Every public function with a wrong value for each of its arguments, one at a time: what came of each call, as JSON.

    python -m tests.attack.wrong_types FOLDER [FUNCTION ...]

A process of its own, since the tests' run-time type checker would refuse these calls before the library sees them. A
line for each function: how many calls were answered, how many refused by `UserError`, and the calls that ended in
another exception, with where it was raised.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import fullrank as fr

TINY = ["model.dim=8", "model.encoder.layers=1", "training.max_epochs=1"]
SEARCH = {"cells": [{"name": "a", "recipe": "sasrec"}], "space": {"training.lr": {"log": [0.001, 0.1]}}, "trials": 2}
SCHEMA = {"label": "click", "fields": ["user", "item", "hour"], "split": "random"}


def wrong_values() -> Iterator[Any]:
    """What a caller may put anywhere by mistake."""
    yield from (None, True, 5, -1, 0, 10**40, 1.5, float("nan"), "text", "", "a\0b", b"bytes", Path("nowhere"))
    yield from ([], [5], [None], ["text"], [["text"]], (), {}, {"a": 1}, {5: None}, {"text"}, object(), len, int)
    yield from (np.array([1, 2]), np.float64("nan"), pl.Series([1]), pl.DataFrame(), pl.DataFrame({"a": [1]}))
    yield (one for one in [1])


def encoding(home: Path) -> list[str]:
    """Settings for codes of a few items."""
    return [f"vectors={{kind: file, path: {home / 'vectors.parquet'}}}", "learner=rq_kmeans", "limits.collisions=1",
            "learner.levels=2", "learner.size=4"]  # fmt: skip


def worlds(home: Path) -> dict[str, Any]:
    """A store, runs of both problems, codes, and the valid arguments of each public function."""
    rng = np.random.default_rng(0)
    rows = [(f"u{u}", f"i{(u * 3 + t) % 15}", 1000 * t) for u in range(40) for t in range(6)]
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    items = pl.DataFrame({"item_id": [f"i{n}" for n in range(15)], "title": [f"item {n % 4}" for n in range(15)]})
    n = 400
    clicks = pl.DataFrame({
        "user": [f"u{v}" for v in rng.integers(0, 40, n)], "item": [f"i{v}" for v in rng.integers(0, 15, n)],
        "hour": rng.integers(0, 24, n), "click": rng.integers(0, 2, n),
    })  # fmt: skip
    store = fr.prepare(events, home / "data", items=items)
    shown = fr.prepare_impressions(clicks, home / "clicks", schema=SCHEMA)
    part = fr.subset(store, home / "part", hide_items=0.3)
    cold = fr.train("sasrec", part, home / "cold", set=TINY, device="cpu", progress=False)
    run = fr.train("sasrec", store, home / "sasrec", set=TINY, device="cpu", progress=False)
    ranker = fr.train("fm", shown, home / "fm", set=["training.max_epochs=1"], device="cpu", progress=False)
    thinker = fr.train("plr", store, home / "plr", set=[*TINY, "model.reasoner.steps=1"], device="cpu", progress=False)
    more = pl.concat([items, pl.DataFrame({"item_id": ["new"], "title": ["new"]})])
    for name, some in (("vectors", items), ("more_vectors", more)):
        rows = rng.normal(size=(len(some), 8)).tolist()
        pl.DataFrame({"item_id": some["item_id"], "vector": rows}).write_parquet(home / f"{name}.parquet")
    codes = fr.encode(store, home / "codes", set=encoding(home))
    (home / "answers").mkdir()
    logged = {"time": [1000.0] * 4, "user": ["u1", "u2", "u3", None], "version": ["a", "b", "a", "b"],
              "source": ["model"] * 4, "k": [2] * 4, "items": [["i1", "i2"]] * 4}  # fmt: skip
    pl.DataFrame(logged, schema_overrides={"k": pl.Int32}).write_parquet(home / "answers" / "answers-1.parquet")
    taken = pl.DataFrame({"user_id": ["u1", "u2"], "item_id": ["i2", "i9"], "timestamp": [2000, 3000]})
    return {"answers": home / "answers", "taken": taken, "events": events,
            "items": items, "clicks": clicks, "store": store, "shown": shown, "run": run,
            "ranker": ranker, "home": home, "cold": cold, "part": part, "thinker": thinker, "codes": codes,
            "more": store.catalog.extended(more[-1:]), "more_vectors": home / "more_vectors.parquet"}  # fmt: skip


def calls(w: dict[str, Any]) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Name -> function and valid arguments; an `out` is a new place in each call."""
    predictor, ranking = fr.load(w["run"], device="cpu"), fr.load(w["ranker"], device="cpu")
    cascade = fr.Cascade(w["run"], w["ranker"], device="cpu")
    evaluation = fr.evaluate(w["run"], data=w["store"], set=["bootstrap=0"], device="cpu")
    asked = {"histories": {"a": ["i1", "i2"]}}
    scored = {**asked, "candidates": ["i3"]}
    quick = {"data": w["store"], "device": "cpu"}
    return {
        "Predictor.recommend": (predictor.recommend, asked),
        "Predictor.recommend to users": (
            predictor.recommend,
            {"users": ["u1"], "data": w["store"], "filters": {"title": "item 1"}, "item_table": w["items"]},
        ),
        "Predictor.score": (predictor.score, scored),
        "Predictor.similar": (predictor.similar, {"items": "i1"}),
        "Predictor.user_vectors": (predictor.user_vectors, asked),
        "Predictor.predict": (ranking.predict, {"impressions": w["clicks"][:5]}),
        "Predictor.predict_file": (ranking.predict_file, {"impressions": w["clicks"][:5], "out": "new.parquet"}),
        "Cascade.recommend": (cascade.recommend, {**asked, "context": {"hour": 20}}),
        "Cascade.evaluate": (
            cascade.evaluate, {"set": ["bootstrap=0", "ks=[5]"], "candidates": 5, "context": {"hour": 20}},
        ),
        "Cascade": (fr.Cascade, {"retriever": w["run"], "ranker": w["ranker"], "device": "cpu"}),
        "load": (fr.load, {"run": w["run"], "device": "cpu"}),
        "recommend": (fr.recommend, {"run": w["run"], **asked, "device": "cpu"}),
        "recommend_parts": (
            fr.recommend_parts, {"run": w["run"], "out": "new", "data": w["store"], "parts": 2, "device": "cpu"},
        ),
        "similar_items": (fr.similar_items, {"run": w["run"], "items": "i1", "device": "cpu"}),
        "item_vectors": (fr.item_vectors, {"run": w["run"], "device": "cpu"}),
        "user_vectors": (fr.user_vectors, {"run": w["run"], **asked, "device": "cpu"}),
        "predict": (fr.predict, {"run": w["ranker"], "impressions": w["clicks"][:5], "device": "cpu"}),
        "predict_file": (
            fr.predict_file, {"run": w["ranker"], "impressions": w["clicks"][:5], "out": "new.csv", "device": "cpu"},
        ),
        "evaluate": (fr.evaluate, {"run": w["run"], "set": ["bootstrap=0"], **quick}),
        "evaluate on events": (
            fr.evaluate, {"run": w["run"], "events": w["taken"], "before": w["events"], "set": ["bootstrap=0"],
                          "device": "cpu"},
        ),
        "evaluate_lists": (
            fr.evaluate_lists,
            {"lists": w["events"].rename({"timestamp": "rank"}).unique(["user_id", "item_id"]), "data": w["store"],
             "set": ["bootstrap=0"]},
        ),
        "evaluate_log": (fr.evaluate_log, {"log": w["answers"], "events": w["taken"], "samples": 5}),
        "diagnose": (fr.diagnose, {"run": w["run"], "users": 10, **quick}),
        "explain": (fr.explain, {"run": w["run"], **quick}),
        "compare": (fr.compare, {"a": evaluation, "b": evaluation, "metric": "ndcg@10"}),
        "prepare": (fr.prepare, {"events": w["events"], "out": "new"}),
        "prepare_impressions": (fr.prepare_impressions, {"impressions": w["clicks"], "out": "new", "schema": SCHEMA}),
        "subset": (fr.subset, {"store": w["store"], "out": "new", "share": 0.5}),
        "join_stores": (fr.join_stores, {"stores": [w["store"], w["part"]], "out": "new"}),
        "fisher_information": (
            fr.fisher_information, {"run": w["run"], "out": "new.safetensors", "batches": 2, "device": "cpu"},
        ),
        "finetune": (
            fr.finetune,
            {"run": w["run"], "data": w["store"], "out": "new", "stages": 0, "set": TINY, "device": "cpu",
             "progress": False},
        ),
        "verify": (fr.verify, {"folder": w["store"].path}),
        "recipe": (fr.recipe, {"name": "sasrec"}),
        "encode": ( fr.encode, {"items": w["store"], "out": "new", "set": encoding(w["home"])},
        ),
        "train": (
            fr.train,
            {"what": "sasrec", "data": w["store"], "out": "new", "set": TINY, "device": "cpu", "progress": False},
        ),
        "oracle_step": (fr.oracle_step, {"run": w["thinker"], "set": ["bootstrap=0"], **quick}),
        "step_curve": (fr.step_curve, {"run": w["thinker"], "set": ["bootstrap=0"], "rounds": 1, **quick}),
        "grow_codes": (
            fr.grow_codes, {"codes": w["codes"], "items": w["more"], "out": "new", "vectors": w["more_vectors"]},
        ),
        "sweep": (fr.sweep, {"grid": fr.Grid(base="popularity"), "store": w["store"], "out": "new", "progress": False}),
        "tune": (
            fr.tune,
            {"space": fr.Search.parse(SEARCH),
             "store": w["store"], "out": "new", "dry_run": True, "progress": False},
        ),
        "grow_catalog": (
            fr.grow_catalog,
            {"run": w["run"], "new_items": pl.DataFrame({"item_id": ["x"]}), "out": "new", "start": "mean"},
        ),
        "fill_unseen": (fr.fill_unseen, {"run": w["cold"], "out": "new", "start": "mean"}),
        "export": (fr.export, {"run": w["run"], "out": "new", "to": "faiss"}),
        "catalogue_growth": (fr.catalogue_growth, {"store": w["store"]}),
    }  # fmt: skip


SKIPPED = {"progress", "tell", "callbacks", "loggers", "engine"}
"""Arguments that are called or handed on: objects of the caller's own, whose errors are the caller's."""


LONGEST = 2000
"""Characters of a sentence."""


def shown(value: Any) -> str:
    """A value on one short line."""
    return " ".join(repr(value).split())[:60]


def attack(function: Callable[..., Any], valid: dict[str, Any]) -> dict[str, Any]:
    """One function with a wrong value for each argument."""
    answered = refused = 0
    escaped: list[str] = []
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            function(**valid)
    except Exception as error:  # the table of calls is wrong then, and nothing below would show anything
        escaped.append(f"the valid call: {type(error).__name__}: {error}")
    for name, given in inspect.signature(function).parameters.items():
        values = wrong_values() if given.kind is not given.VAR_POSITIONAL else iter(())
        for value in () if name in SKIPPED else values:
            shutil.rmtree("new", ignore_errors=True)
            try:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    function(**{**valid, name: value})
                answered += 1
            except fr.UserError as error:
                refused += 1
                if "\n" in str(error) or len(str(error)) > LONGEST:
                    escaped.append(f"{name}={shown(value)}: no short sentence: {str(error)[:200]!r}")
            except (Exception, SystemExit) as error:
                at = traceback.extract_tb(error.__traceback__)
                ours = [one for one in at if "/fullrank/" in one.filename] or at
                where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
                escaped.append(f"{name}={shown(value)}: {type(error).__name__} at {where}: {str(error)[:120]!r}")
    return {"answered": answered, "refused": refused, "escaped": escaped}


def main(folder: str, *names: str) -> None:
    home = Path(folder).resolve()
    warnings.simplefilter("ignore")
    work = home / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    with contextlib.redirect_stderr(io.StringIO()):
        table = calls(worlds(home))
    for name, (function, valid) in table.items():
        if not names or name in names:
            print(json.dumps({"function": name, **attack(function, valid)}), flush=True)


if __name__ == "__main__":
    main(*itertools.islice(sys.argv, 1, None))
