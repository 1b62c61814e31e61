"""One history from Python: a call of `Predictor.recommend` against the bare parts that it cannot do without.

``p50_over_parts``: the median call with one history over the median of its parts, which are the model's forward pass on
a batch of one and the top-k of its scores, in the same process and in turn with the calls. What is between the two is
ours: reading ids, filters, batching, external ids, the frame that is given back. Also the 90th percentile, calls a
second of several threads on one Predictor, and `fr.recommend(run, ...)`, which opens the run for each call.

The model is the `sasrec` recipe's at 12 thousand items, untrained: speed does not depend on values of weights. Ids are
whole numbers; histories have 3 to 50 events.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import fullrank as fr
from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.inference.exact import top_k
from fullrank.inference.predictor import Predictor
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run, write_run, write_weights
from fullrank.run.manifest import seal_run

ITEMS, K, THREADS = 12_000, 10, 2
OPENED = 15
"""Calls of `fr.recommend`, each of which opens the run."""
Recommend = Callable[..., Any]


def catalog_of(items: int) -> Catalog:
    draw = np.random.default_rng(0)
    ids = draw.permutation(np.arange(items) * 7 + 1)
    counts = draw.integers(1, 50, items)
    return Catalog(pl.DataFrame({"item": np.arange(items), "item_id": ids, "train_count": counts}))


def model_of(catalog: Catalog) -> RecommenderModel:
    torch.manual_seed(0)
    model: RecommenderModel = fr.recipe("sasrec").model.build(catalog).eval()  # type: ignore[attr-defined]
    return model


def histories_of(catalog: Catalog, count: int) -> list[list[int]]:
    """External ids, as a request brings them."""
    draw = np.random.default_rng(1)
    ids = catalog.ids.to_numpy()
    return [ids[draw.integers(0, len(ids), n)].tolist() for n in draw.integers(3, 51, count)]


def parts(model: RecommenderModel, index: Any, batch: Batch, items: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The forward pass of one history, and the best of its scores."""
    with torch.inference_mode():
        return top_k(model.answer(batch, index=index), K, block=items)


def batches_of(catalog: Catalog, histories: list[list[int]]) -> list[Batch]:
    """What the parts are given: tensors, made before anything is timed."""
    rows = [torch.from_numpy(catalog.lookup(history)) for history in histories]
    return [Batch(row[None], torch.tensor([len(row)]), rows=torch.zeros(1, dtype=torch.long)) for row in rows]


def check(recommend: Recommend = Predictor.recommend) -> None:
    """A call gives the items and scores that the parts give, without the seen ones."""
    catalog = catalog_of(300)
    model = model_of(catalog)
    predictor, histories = Predictor(model, catalog, device="cpu"), histories_of(catalog, 20)
    for history, batch in zip(histories, batches_of(catalog, histories), strict=True):
        found = recommend(predictor, [history], k=K)
        with torch.no_grad():
            scores = model.answer(batch).block(0, 300)[0]
        scores[batch.items[0]] = -torch.inf
        best = scores.topk(K).values
        require(not set(found["item"]) & set(history), "a call recommends what the history holds")
        own = scores[torch.from_numpy(catalog.lookup(found["item"]))]
        require(torch.allclose(own, best, atol=1e-5), "a call's items are not those with the best scores")
        require(np.allclose(found["score"].to_numpy(), best.numpy(), atol=1e-5), "a call's scores are not the model's")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    catalog = catalog_of(ITEMS)
    model = model_of(catalog)
    predictor, histories = Predictor(model, catalog, device="cpu"), histories_of(catalog, options.calls)
    batches, index = batches_of(catalog, histories), predictor.index
    taken: dict[str, list[float]] = {"call": [], "parts": []}
    for done in range(options.rounds + 1):
        for history, batch in zip(histories, batches, strict=True):
            for name, action in (
                ("call", lambda h=history: predictor.recommend([h], k=K)),
                ("parts", lambda b=batch: parts(model, index, b, ITEMS)),
            ):
                begun = time.perf_counter()
                action()
                taken[name] += [time.perf_counter() - begun] if done else []  # round 0 is the warm-up
        say(f"round {done} of {options.rounds} (0 is the warm-up)")
    call, bare = (np.array(taken[name]) * 1e3 for name in ("call", "parts"))
    say(f"{THREADS} threads on one Predictor")
    begun = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda history: predictor.recommend([history], k=K), histories))
    together = time.perf_counter() - begun
    say("fr.recommend, which opens the run")
    return rounded({
        "p50_over_parts": float(np.median(call) / np.median(bare)),
        "p50_ms": float(np.median(call)),
        "p90_ms": float(np.quantile(call, 0.9)),
        "parts_p50_ms": float(np.median(bare)),
        "calls_per_s": 1e3 / float(call.mean()),
        "calls_per_s_threads": len(histories) / together,
        "opened_each_time_ms": _opened(model, catalog, histories),
        "items": ITEMS,
        "calls": len(call),
        "call_threads": THREADS,
    })  # fmt: skip


def _opened(model: RecommenderModel, catalog: Catalog, histories: list[list[int]]) -> float:
    """Median milliseconds of a call that opens the run first."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        data = {"path": folder, "split_fingerprint": ""}
        write_run(place, fr.recipe("sasrec"), catalog, {"parameters": 0, "data": data})
        write_weights(place, model)
        seal_run(place)
        run, taken = Run.open(place), []
        for history in histories[:OPENED]:
            begun = time.perf_counter()
            fr.recommend(run, [history], k=K, device="cpu")
            taken.append(time.perf_counter() - begun)
    return float(np.median(taken)) * 1e3


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=200, help="histories, each asked once a round (default 200)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default 5)")


BENCHMARK = Benchmark("answer", "one history from Python, against its bare parts", _arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
