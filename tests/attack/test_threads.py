"""Many threads on one model: whatever they ask at once, each has the answer that it would have had alone.

Models small enough that a call takes a millisecond, so that calls of different threads overlap everywhere; the answers
are compared to the last bit.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.inference.predictor import Predictor
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.models.sequential.reasoning.plr import PLR
from predictors import predictor_of
from tests.attack.worlds import impressions, world
from tiny import ITEMS, catalog

pytestmark = pytest.mark.attack

IDS = [f"i{n}" for n in range(ITEMS)]
DRAW = np.random.default_rng(7)
HISTORIES = {f"u{n}": [IDS[i] for i in DRAW.choice(ITEMS, 1 + n % 7, replace=False)] for n in range(24)}
ONE_BY_ONE = [{user: items} for user, items in HISTORIES.items()]
SMALL = Transformer(layers=1)
MODELS: dict[str, Any] = {
    "vectors": Recommender(dim=8, encoder=SMALL),
    "reasoning": Recommender(dim=8, reasoner=PLR(steps=2, streams=2), task=LastItem(), encoder=SMALL),
    "codes": Recommender(dim=8, items=Semantic(), task=SemanticTokens()),
    "item_to_item": ItemToItem(),
}
SEARCHES = [{"kind": "exact"}, {"kind": "pruned", "codes": 2}, {"kind": "graph", "beams": 6, "edges": 2, "steps": 1},
            {"kind": "beam", "beams": 3}, {"kind": "beam", "beams": 5}]  # fmt: skip
"""More than a predictor keeps (`MAX_SEARCHES`) of those that keep something, so that some are dropped and made anew."""


def predictor(kind: str) -> Predictor:
    return predictor_of(MODELS[kind], [[IDS.index(item) for item in own] for own in HISTORIES.values() if len(own) > 2])


def plain(found: Any) -> Any:
    """An answer as what `==` compares: rows of a frame, bytes of vectors."""
    if isinstance(found, pl.DataFrame):
        return found.rows()
    return [part.to_list() if isinstance(part, pl.Series) else part.tobytes() for part in found]


def at_once(calls: Sequence[Callable[[], Any]], threads: int) -> list[Any]:
    """What the calls give, by so many threads that start together; the interpreter switches between them often."""
    gate, before = threading.Barrier(threads), sys.getswitchinterval()

    def some(at: int) -> list[Any]:
        gate.wait(30)
        return [plain(call()) for call in calls[at::threads]]

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(some, range(threads)))
    finally:
        sys.setswitchinterval(before)
    return [parts[n % threads][n // threads] for n in range(len(calls))]


def shared_and_fresh(made: Callable[[], Predictor], asks: Sequence[Callable[[Any], Any]], threads: int = 8) -> None:
    """All calls at once, on a predictor that nobody has asked before, are those of another predictor, one by one."""
    alone, shared = made(), made()
    wanted = [plain(ask(alone)) for ask in asks]
    found = at_once([partial(ask, shared) for ask in asks], threads)
    wrong = [n for n, both in enumerate(zip(found, wanted, strict=True)) if both[0] != both[1]]
    assert not wrong, f"{len(wrong)} of {len(asks)} answers differ from those of one thread, first call {wrong[0]}"
    assert [plain(ask(shared)) for ask in asks] == wanted, "the calls left something behind"


@pytest.mark.parametrize("owners", ["one predictor", pytest.param("two predictors", marks=pytest.mark.slow)])
def test_two_threads_with_two_budgets(owners: str) -> None:
    """Until a budget was an argument, a quarter of such answers were wrong, and all default answers afterwards."""
    first = predictor("reasoning")
    second = first if owners == "one predictor" else Predictor(first.model, catalog(), device="cpu")
    default = first.recommend(HISTORIES, k=5).rows()
    calls = [partial(who.recommend, one, k=5, budget={"steps": steps}) for one in ONE_BY_ONE * 3
             for who, steps in ((first, 0), (second, 3))]  # fmt: skip
    alone = [plain(call()) for call in calls]
    assert sum(a != b for a, b in zip(alone[::2], alone[1::2], strict=True)) > len(alone) // 4, "budgets must differ"
    assert at_once(calls, 2) == alone
    assert first.recommend(HISTORIES, k=5).rows() == second.recommend(HISTORIES, k=5).rows() == default


def test_eight_threads_with_one_budget() -> None:
    asks = [methodcaller("recommend", one, k=5, budget={"steps": 2}) for one in ONE_BY_ONE * 3]
    shared_and_fresh(partial(predictor, "reasoning"), asks)


def test_a_budget_that_is_kept_between_calls_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a predictor that writes down the budget of a call, and reads it a moment later."""
    right = Predictor.lists

    def lists(self: Any, request: Any, options: Any, *filters: Any) -> Any:
        self.options_of_the_call = options
        time.sleep(0.05)  # longer than a call takes, so that calls of all threads meet here
        return right(self, request, self.options_of_the_call, *filters)

    monkeypatch.setattr(Predictor, "lists", lists)
    asks = [methodcaller("recommend", one, k=5, budget={"steps": 3 * (n % 2)}) for n, one in enumerate(ONE_BY_ONE)]
    with pytest.raises(AssertionError, match="answers differ"):
        shared_and_fresh(partial(predictor, "reasoning"), asks, 3)


@pytest.mark.slow
def test_eight_threads_with_every_budget() -> None:
    """Steps, adaptive stopping, scores and vectors of users, of one reasoner."""
    asks = []
    for one in ONE_BY_ONE:
        budgets = [*({"steps": steps} for steps in range(4)), {"adaptive": 4}]
        asks += [methodcaller("recommend", one, k=4, budget=budget) for budget in budgets]
        asks.append(methodcaller("score", one, IDS[:6], budget={"steps": 1}))
        asks.append(methodcaller("user_vectors", one, budget={"steps": 3}))
    shared_and_fresh(partial(predictor, "reasoning"), asks)


@pytest.mark.slow
def test_eight_threads_with_every_search() -> None:
    """Graphs and beams are made while others ask, more than are kept."""
    asks = [methodcaller("recommend", one, k=5, decoding=how) for one in ONE_BY_ONE for how in SEARCHES]
    shared_and_fresh(partial(predictor, "codes"), asks)


@pytest.mark.parametrize("kind", ["item_to_item", pytest.param("vectors", marks=pytest.mark.slow)])
def test_eight_threads_with_every_question(kind: str) -> None:
    asks = []
    for n, (user, items) in enumerate(HISTORIES.items()):
        one, item = {user: items}, IDS[n % ITEMS] if kind == "vectors" else items[0]
        asks += [
            methodcaller("recommend", one, k=5, exclude=IDS[:4]), methodcaller("score", one, IDS[::2]),
            methodcaller("recommend", one, k=5, allow=IDS[4:], seen="keep"),
            methodcaller("similar", item, 3, exclude=IDS[:2]), methodcaller("recommend", {"nobody": []}, k=3),
        ]  # fmt: skip
        if kind == "vectors":
            asks += [methodcaller("user_vectors", one), lambda made: (made.item_vectors(),)]
    shared_and_fresh(partial(predictor, kind), asks)


@pytest.mark.slow
def test_eight_threads_of_predictions(tmp_path: Path) -> None:
    """Click probabilities, in memory and into a file for each thread."""
    new = [impressions(40, seed) for seed in range(15)]

    def into_file(rows: pl.DataFrame, made: Predictor) -> pl.DataFrame:
        out = tmp_path / f"{threading.get_ident()}-{id(rows)}.parquet"
        made.predict_file(rows, out)
        return pl.read_parquet(out)

    asks = [methodcaller("predict", rows) for rows in new]
    shared_and_fresh(partial(fr.load, world("lr"), device="cpu"), asks + [partial(into_file, rows) for rows in new[:9]])


CALLS = """
import gc, pathlib, sys, threading, tracemalloc
import numpy as np, polars as pl, torch
from fullrank.data.events.catalog import Catalog
from fullrank.inference.predictor import Predictor
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning.plr import PLR

known = Catalog(pl.DataFrame({"item": range(99), "item_id": [f"i{n}" for n in range(99)], "train_count": [1] * 99}))
model = Recommender(dim=8, reasoner=PLR(steps=2, streams=2), task=LastItem()).build(known)
shared, ids = Predictor(model, known, device="cpu"), known.ids.to_list()

def some(calls, steps):
    for n in range(calls // 2):
        shared.recommend([ids[n % 50 : n % 50 + 1 + n % 9]], k=3, exclude=[ids[n % 99]], budget={"steps": steps})

def ask(calls):
    threads = [threading.Thread(target=some, args=(calls, steps)) for steps in (0, 3)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

ask(200)  # what is made once, and what the allocator keeps
before = ask(2)
after = ask(1000)
tracemalloc.start()
ask(100)
held = tracemalloc.get_traced_memory()[0]
ask(300)
print(after - before, tracemalloc.get_traced_memory()[0] - held)
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_thousand_calls_of_two_budgets_leave_nothing_behind() -> None:
    """In a process without the type checks of tests. Of the allocator's pages 8 MiB, of Python's own 64 KiB."""
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    pages, held = map(int, done.stdout.split())
    assert pages < 8 << 20 and held < 64 << 10, (pages, held)
