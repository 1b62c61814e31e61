"""Work in threads, its results in order. numpy, polars, hashes and the disk let go of the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")

MOST = 8
"""Threads beyond which the interpreter's lock leaves nothing to gain."""


def thread_count() -> int:
    """How many work at a time: as many as polars has, one for each core unless POLARS_MAX_THREADS says else."""
    import polars as pl

    return min(pl.thread_pool_size(), MOST)


def in_order(task: Callable[[A], R], given: Iterable[A], threads: int) -> Iterator[R]:
    """`task` of each, in order. One more than `threads` are under way or wait at a time, so memory is bounded."""
    if threads == 1:
        yield from map(task, given)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        for one in given:
            waiting.append(pool.submit(task, one))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
