"""The queue of the model thread: batches that grow by themselves, shedding, deadlines, and faults that stay alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fullrank.core.errors import UserError
from fullrank.serving.batcher import Batcher, Late, Overloaded
from fullrank.serving.problems import problem_of


class Model:
    """Doubles numbers; notes its batches, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, asks: Sequence[int]) -> list[int]:
        assert self.go.wait(10)
        self.batches.append(list(asks))
        if 13 in asks:
            raise UserError("thirteen", code="unlucky")
        if 666 in asks:
            raise ZeroDivisionError
        return [2 * ask for ask in asks]


def run(work: Any, **settings: Any) -> Any:
    async def whole() -> Any:
        batcher = Batcher(**settings)
        batcher.start()
        try:
            return await work(batcher)
        finally:
            await batcher.close()

    return asyncio.run(whole())


async def blocked(batcher: Batcher, model: Model) -> asyncio.Future[Any]:
    """A request that holds the model thread until `model.go`."""
    model.go.clear()
    first = batcher.submit(model, 0)
    while not batcher._jobs.empty():
        await asyncio.sleep(0.001)
    return first


def test_what_queues_while_a_batch_runs_goes_together() -> None:
    model = Model()

    async def work(batcher: Batcher) -> list[int]:
        first = await blocked(batcher, model)
        others = [batcher.submit(model, ask) for ask in range(1, 8)]
        model.go.set()
        return list(await asyncio.gather(first, *others))

    assert run(work, most=4) == [2 * ask for ask in range(8)]
    assert model.batches == [[0], [1, 2, 3, 4], [5, 6, 7]]


def test_a_request_alone_waits_for_nobody() -> None:
    model = Model()

    async def work(batcher: Batcher) -> float:
        await batcher.submit(model, 1)
        begun = time.perf_counter()
        await batcher.submit(model, 2)
        return time.perf_counter() - begun

    assert run(work) < 0.5
    assert model.batches == [[1], [2]]


def test_groups_are_answered_by_themselves() -> None:
    model = Model()

    async def work(batcher: Batcher) -> list[int]:
        await_first = await blocked(batcher, model)
        others = [batcher.submit(model, ask, group=ask % 2) for ask in range(1, 6)]
        model.go.set()
        await await_first
        return list(await asyncio.gather(*others))

    assert run(work) == [2, 4, 6, 8, 10]
    assert model.batches == [[0], [1, 3, 5], [2, 4]]


def test_a_full_queue_sheds_and_recovers() -> None:
    model = Model()

    async def work(batcher: Batcher) -> tuple[int, int]:
        first = await blocked(batcher, model)
        taken = [batcher.submit(model, ask) for ask in (1, 2)]
        with pytest.raises(Overloaded) as refused:
            batcher.submit(model, 3)
        assert refused.value.code == "overloaded" and batcher.shed == 1
        model.go.set()
        await asyncio.gather(first, *taken)
        return await batcher.submit(model, 4), batcher.waiting

    assert run(work, queue=3) == (8, 0)


def test_what_waited_too_long_is_given_up_and_costs_the_model_nothing() -> None:
    model = Model()

    async def work(batcher: Batcher) -> Any:
        first = await blocked(batcher, model)
        late = batcher.submit(model, 5)
        await asyncio.sleep(0.1)
        model.go.set()
        await first
        return (await asyncio.gather(late, return_exceptions=True))[0]

    assert isinstance(run(work, timeout=0.05), Late)
    assert model.batches == [[0]]


@pytest.mark.parametrize("fault, kind", [(13, UserError), (666, ZeroDivisionError)])
def test_a_request_that_fails_fails_alone(fault: int, kind: type[Exception]) -> None:
    model = Model()

    async def work(batcher: Batcher) -> list[Any]:
        first = await blocked(batcher, model)
        others = [batcher.submit(model, ask) for ask in (1, fault, 3)]
        model.go.set()
        await first
        found = await asyncio.gather(*others, return_exceptions=True)
        assert await batcher.submit(model, 4) == 8, "the thread lives on"
        return list(found)

    first, wrong, last = run(work)
    assert (first, last) == (2, 6) and isinstance(wrong, kind)


def test_closing_answers_what_waits() -> None:
    model = Model()

    async def work() -> list[int]:
        batcher = Batcher(most=2)
        batcher.start()
        first = await blocked(batcher, model)
        others = [batcher.submit(model, ask) for ask in range(1, 6)]
        model.go.set()
        await batcher.close()
        return list(await asyncio.gather(first, *others))

    assert asyncio.run(work()) == [0, 2, 4, 6, 8, 10]


def test_a_caller_that_left_is_skipped() -> None:
    model = Model()

    async def work(batcher: Batcher) -> int:
        first = await blocked(batcher, model)
        gone = batcher.submit(model, 7)
        gone.cancel()
        model.go.set()
        await first
        await batcher.submit(model, 1)
        return batcher.waiting

    assert run(work) == 0
    assert model.batches == [[0], [1]]


def test_many_callers_get_their_own_answers() -> None:
    model = Model()

    async def work(batcher: Batcher) -> list[int]:
        async def caller(ask: int) -> int:
            await asyncio.sleep((ask % 7) / 1000)
            return int(await batcher.submit(model, 1000 + ask))

        return list(await asyncio.gather(*(caller(ask) for ask in range(200))))

    assert run(work, most=16) == [2 * (1000 + ask) for ask in range(200)]


def test_the_thread_outlives_whoever_counts() -> None:
    def broken(size: int, waited: float, took: float) -> None:
        raise ZeroDivisionError

    async def work(batcher: Batcher) -> None:
        model = Model()
        assert [await batcher.submit(model, ask) for ask in (1, 2, 3)] == [2, 4, 6]

    run(work, observe=broken)


def test_nobody_waits_for_a_queue_that_was_closed() -> None:
    async def work(batcher: Batcher) -> None:
        await batcher.close()
        with pytest.raises(UserError) as refused:
            batcher.submit(Model(), 1)
        assert refused.value.code == "service-stopping" and problem_of(refused.value).status == 503
        with pytest.raises(UserError):
            await batcher.call(lambda: None)

    run(work)
