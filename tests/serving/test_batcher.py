"""The queue of the model thread: batches that grow by themselves, shedding, deadlines, and faults that stay alone.

Requests of several kinds in one batch get the lists that they get alone.
"""

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fullrank.core.errors import UserError
from fullrank.serving.batcher import Batcher, Late
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel
from fullrank.serving.problems import problem_of
from fullrank.serving.ranking import ServedRanker
from fullrank.serving.settings import ServeSettings
from refusals import refused
from serving.conftest import Shop


class Model:
    """Doubles numbers; notes its batches, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, asks: Sequence) -> list:
        assert self.go.wait(10)
        self.batches.append(list(asks))
        if 13 in asks:
            raise UserError("thirteen", code="unlucky")
        if 666 in asks:
            raise ZeroDivisionError
        return [2 * ask for ask in asks]


def run(work, **settings):
    async def whole():
        batcher = Batcher(**settings)
        batcher.start()
        try:
            return await work(batcher)
        finally:
            await batcher.close()

    return asyncio.run(whole())


async def blocked(batcher: Batcher, model: Model) -> asyncio.Future:
    """A request that holds the model thread until `model.go`."""
    model.go.clear()
    first = batcher.submit(model, 0)
    while not batcher._jobs.empty():
        await asyncio.sleep(0.001)
    return first


def queued(asks: Iterable, groups: int = 1, held: float = 0.0, **settings) -> tuple:
    """What requests get that queue while the model is held, each an answer or an error; and the model's batches."""
    model = Model()

    async def work(batcher: Batcher) -> list:
        first = await blocked(batcher, model)
        others = [batcher.submit(model, ask, group=ask % groups) for ask in asks]
        await asyncio.sleep(held)
        model.go.set()
        answers = await asyncio.gather(first, *others, return_exceptions=True)
        assert await batcher.submit(model, 4) == 8 and batcher.waiting == 0, "the thread lives on"
        return answers

    return run(work, **settings), model.batches[:-1]


def test_what_queues_while_a_batch_runs_goes_together() -> None:
    answers, batches = queued(range(1, 8), most=4)
    assert answers == [2 * ask for ask in range(8)] and batches == [[0], [1, 2, 3, 4], [5, 6, 7]]


def test_a_request_alone_waits_for_nobody() -> None:
    model = Model()

    async def work(batcher: Batcher) -> float:
        await batcher.submit(model, 1)
        begun = time.perf_counter()
        await batcher.submit(model, 2)
        return time.perf_counter() - begun

    assert run(work) < 0.5 and model.batches == [[1], [2]]


def test_groups_are_answered_by_themselves() -> None:
    answers, batches = queued(range(1, 6), groups=2)
    assert answers == [0, 2, 4, 6, 8, 10] and batches == [[0], [1, 3, 5], [2, 4]]


def test_a_full_queue_sheds_and_recovers() -> None:
    model = Model()

    async def work(batcher: Batcher) -> tuple:
        first = await blocked(batcher, model)
        taken = [batcher.submit(model, ask) for ask in (1, 2)]
        with refused("overloaded"):
            batcher.submit(model, 3)
        model.go.set()
        await asyncio.gather(first, *taken)
        return await batcher.submit(model, 4), batcher.waiting

    assert run(work, queue=3) == (8, 0)


def test_what_waited_too_long_is_given_up_and_costs_the_model_nothing() -> None:
    (first, late), batches = queued([5], held=0.1, timeout=0.05)
    assert first == 0 and isinstance(late, Late) and batches == [[0]]


@pytest.mark.parametrize("fault, kind", [(13, UserError), (666, ZeroDivisionError)])
def test_a_request_that_fails_fails_alone(fault: int, kind: type) -> None:
    (_, first, wrong, last), _ = queued([1, fault, 3])
    assert (first, last) == (2, 6) and isinstance(wrong, kind)


def test_closing_answers_what_waits_and_takes_nothing_more() -> None:
    model = Model()

    async def work(batcher: Batcher) -> list:
        first = await blocked(batcher, model)
        others = [batcher.submit(model, ask) for ask in range(1, 6)]
        model.go.set()
        await batcher.close()
        with refused("service-stopping") as refusal:
            batcher.submit(model, 1)
        assert problem_of(refusal.error).status == 503
        with refused("service-stopping"):
            await batcher.call(lambda: None)
        return await asyncio.gather(first, *others)

    assert run(work, most=2) == [0, 2, 4, 6, 8, 10]


def test_a_caller_that_left_is_skipped() -> None:
    model = Model()

    async def work(batcher: Batcher) -> int:
        first = await blocked(batcher, model)
        batcher.submit(model, 7).cancel()
        model.go.set()
        await first
        await batcher.submit(model, 1)
        return batcher.waiting

    assert run(work) == 0 and model.batches == [[0], [1]]


def test_the_thread_outlives_whoever_counts() -> None:
    def broken(size: int, waited: float, took: float) -> None:
        raise ZeroDivisionError

    assert queued((1, 2, 3), observe=broken)[0] == [0, 2, 4, 6]


class Backwards(ServedRanker):
    """A ranker that turns the candidates around, so that their number decides who is first."""

    def __init__(self) -> None:
        pass

    def order(self, asks, ids: np.ndarray, scores: np.ndarray, blend: float, histories) -> tuple:
        return ids[:, ::-1].copy(), scores[:, ::-1].copy()


def test_a_rankers_candidates_are_those_of_the_request_alone(shop: Shop) -> None:
    settings = ServeSettings.parse({"run": str(shop.run.path), "candidates": 20})
    model = ServedModel.open(shop.run.path, settings, {})
    model.state = replace(model.state, ranker=Backwards())
    history = [(item, None, None) for item in shop.ids[:4]]
    asks = [
        model.read(RecommendRequest(history=shop.ids[:4], k=k, ranker=ranked), history)
        for k in (5, 20, 60) for ranked in (True, False)
    ]  # fmt: skip
    alone = [model.answer([ask])[0].ids for ask in asks]
    groups = {}
    for place, ask in enumerate(asks):
        groups.setdefault(model.group(ask), []).append(place)
    together = {}
    for places in groups.values():
        told = model.answer([asks[place] for place in places])
        together |= {place: one.ids for place, one in zip(places, told, strict=True)}
    assert [together[place] for place in range(len(asks))] == alone
    assert len(groups) == 3, "unranked lists, candidates of 20, candidates of 60"
