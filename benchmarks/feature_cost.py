"""What eight features cost: a step of training and an answer of the service with them, over the same without.

Processor time, medians by turns. ``step``: forward, backward and optimizer of the same batches. ``answer_1`` and
``answer_8``: one request, and eight that are answered together, from what was read of JSON to lists; ``read``: the part
before that, on the event loop. Histories of 50 events, 12 thousand items, the `sasrec` recipe, a category, a number and
a list of events, a category and a number of requests, and the same three of users.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import torch

import fullrank as fr
from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.run.experiment import find_experiment
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel, request_history
from fullrank.serving.requests import Query
from fullrank.serving.settings import ServeSettings
from fullrank.training.data_module import RetrievalData
from fullrank.training.optim import make_optimizer

ITEMS, USERS, EVENTS, K = 12_000, 600, 51, 10
DECLARED = {
    "event_features": ["rating", "dwell", "tags"], "request_features": ["device", "price"],
    "user_features": ["country", "weight", "likes"],
}  # fmt: skip
FEATURES = {"plain": [], "features": ["model.features=auto"]}
"""Arms -> their settings."""


def store_of(folder: Path, items: int, users: int) -> fr.Store:
    """Drawn events of users with as many events each."""
    draw, rows = np.random.default_rng(0), users * EVENTS
    lists = pl.Series([[f"t{n}" for n in draw.integers(0, 40, 3)] for _ in range(1_000)])
    every_item = np.concatenate([np.arange(items), draw.integers(0, items, rows)])[:rows]
    events = pl.DataFrame({
        "user_id": np.repeat(np.arange(users), EVENTS),
        "item_id": every_item,
        "timestamp": 1_700_000_000 + np.sort(draw.integers(0, 10**7, rows)),
        "rating": draw.integers(1, 6, rows),
        "dwell": draw.random(rows) * 100,
        "tags": lists.gather(draw.integers(0, 1_000, rows)),
        "device": pl.Series(["desk", "phone", "tv"]).gather(draw.integers(0, 3, rows)),
        "price": draw.random(rows),
    })  # fmt: skip
    people = pl.DataFrame({
        "user_id": np.arange(users),
        "country": pl.Series([f"c{n}" for n in range(50)]).gather(draw.integers(0, 50, users)),
        "weight": draw.random(users),
        "likes": lists.gather(draw.integers(0, 1_000, users)),
    })  # fmt: skip
    return fr.prepare(events, folder / "store", users=people, **DECLARED)


def trained(folder: Path, store: fr.Store) -> dict[str, ServedModel]:
    """Both arms behind a service, trained for an epoch."""
    found = {}
    for name, settings in FEATURES.items():
        fr.train("sasrec", store, folder / name, device="cpu", progress=False, set=["training.max_epochs=1", *settings])
        found[name] = ServedModel.open(folder / name, ServeSettings.parse({"run": str(folder / name)}), {})
    return found


def request_of(store: fr.Store, user: int, told: bool) -> RecommendRequest:
    """A request of 50 events; `told` with features."""
    rows = slice(int(store.offsets[user]), int(store.offsets[user]) + 50)
    draw = np.random.default_rng(user)
    items = store.catalog.ids.gather(np.asarray(store.items[rows])).to_list()
    history: list[Any] = items
    asked: dict[str, Any] = {}
    if told:
        known = {"tags": ["t1", "t2"], "device": "desk", "price": 0.5}
        history = [
            {"item": item, "features": {"rating": int(n % 5) + 1, "dwell": float(n), **known}}
            for item, n in zip(items, draw.integers(0, 90, 50).tolist(), strict=True)
        ]
        asked = {"features": {"country": "c3", "weight": 0.3, "likes": ["t3"], "device": "phone", "price": 0.2}}
    return RecommendRequest.model_validate({"history": history, "k": K, **asked})


def read(model: ServedModel, request: RecommendRequest) -> Query:
    return model.read(request, request_history(request) or [])


def step_of(store: fr.Store, settings: list[str]) -> Callable[[int], None]:
    """Trains on the k-th batch."""
    torch.manual_seed(0)
    spec = find_experiment("sasrec").override(*settings)
    data = RetrievalData.of(spec, store)
    model: Any = spec.model.build(data.known)  # type: ignore[attr-defined]
    loader, optimizer = data.loader(model), make_optimizer(model, spec.training)

    def step(k: int) -> None:
        loss = torch.stack(list(model(loader.batch(k)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def by_turns(actions: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each action; a round does each once, and the first tenth is the warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + rounds // 10):
        for name, action in actions.items():
            begun = time.process_time()
            action(turn)
            taken[name].append(time.process_time() - begun)
    return {name: median(some[rounds // 10 :]) for name, some in taken.items()}


def check() -> None:
    """The service's answer with features is the run's own, and features change it."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(Path(folder), 300, 40)
        model = trained(Path(folder), store)["features"]
        lists = [model.answer([read(model, request_of(store, 3, told))])[0] for told in (True, False)]
        require(lists[0].scores != lists[1].scores, "features change no score")
        require(model.state.finder.fast is not None, "the run has no quick encoder")
        state = replace(model.state, finder=replace(model.state.finder, fast=None))
        by_the_run = ServedModel(model.run, state, model.settings)
        own = by_the_run.answer([read(by_the_run, request_of(store, 3, True))])[0]
        require(np.allclose(own.scores, lists[0].scores, atol=1e-4), "the quick answer is not the run's")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = store_of(folder, ITEMS, USERS)
        say("steps of training")
        steps = by_turns({arm: step_of(store, settings) for arm, settings in FEATURES.items()}, options.steps)
        models = trained(folder, store)
        requests = {arm: [request_of(store, user, arm == "features") for user in range(64)] for arm in models}
        asks = {arm: [read(models[arm], one) for one in some] for arm, some in requests.items()}
        say("answers")

        def answer(arm: str, many: int, turn: int) -> object:
            return models[arm].answer([asks[arm][(turn + i) % 64] for i in range(many)])

        def reading(arm: str, turn: int) -> object:
            return read(models[arm], requests[arm][turn % 64])

        reads = by_turns({arm: partial(reading, arm) for arm in models}, options.answers)
        answers = {
            many: by_turns({arm: partial(answer, arm, many) for arm in models}, options.answers) for many in (1, 8)
        }
    timed = {"step": steps, "read": reads, **{f"answer_{many}": found for many, found in answers.items()}}
    return rounded({
        **{f"{what}_over_plain": found["features"] / found["plain"] for what, found in timed.items()},
        **{f"{what}_{arm}_ms": 1e3 * seconds for what, found in timed.items() for arm, seconds in found.items()},
        "items": ITEMS,
    })  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=60, help="timed steps of training of each arm (default 60)")
    parser.add_argument("--answers", type=int, default=400, help="timed answers of each arm (default 400)")


BENCHMARK = Benchmark("feature_cost", "what eight features cost, over the same without", _arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
