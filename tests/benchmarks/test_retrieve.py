"""The retrieval benchmark ranks what it says, and its measure of memory sees a peak that does not last."""

import argparse
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import memory
from benchmarks import retrieve as benchmark
from benchmarks.data import tiny
from benchmarks.harness import Wrong
from fullrank.inference.batches import Batching
from fullrank.inference.exact import top_k
from fullrank.inference.recommend import rank
from fullrank.metrics import RankedLists


def keeps_seen(*given: Any, k: int, how: Batching) -> RankedLists:
    return rank(*given, k=k, how=how, seen="keep")


def misses_a_block(*given: Any, k: int, how: Batching) -> RankedLists:
    found = rank(*given, k=k, how=how)
    return RankedLists(np.where(found.ids < how.block, found.ids, 0), found.scores, found.seen)


def swaps_users(*given: Any, k: int, how: Batching) -> RankedLists:
    found = rank(*given, k=k, how=how)
    return RankedLists(found.ids[::-1], found.scores[::-1], found.seen)


@pytest.mark.parametrize("fault", [keeps_seen, misses_a_block, swaps_users])
def test_a_wrong_ranking_is_caught(fault: benchmark.Rank) -> None:
    with pytest.raises(Wrong):
        benchmark.check(ranked=fault)


def ties_by_larger_id(*given: Any, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = top_k(*given, **settings)
    order = torch.argsort(values - 1e-6 * -ids, dim=1, descending=True)
    return values.gather(1, order), ids.gather(1, order)


def test_a_wrong_order_of_ties_is_caught() -> None:
    with pytest.raises(Wrong, match="full sort"):
        benchmark.check(top=ties_by_larger_id)


def test_the_figures_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "beauty", lambda given, say: tiny())
    monkeypatch.setattr(benchmark, "SIZES", (300, 3000))
    monkeypatch.setattr(benchmark, "MEMORY_USERS", 40)
    monkeypatch.setattr(benchmark, "measured", lambda users, items, **_: {"level_mb": 1.0, "peak_mb": items / 100})
    figures = benchmark.measure(
        argparse.Namespace(data=None, rounds=2, processes=1, threads=1), lambda text: None
    )  # fmt: skip
    assert figures["peak_memory_1m_over_100k"] == 10 and figures["peak_memory_1m_mb"] == 30
    assert figures["users"] == 90 and figures["users_per_s_best"] >= figures["users_per_s"] > 0


def test_a_peak_that_does_not_last_is_seen() -> None:
    floats = 20_000_000

    def short() -> None:
        torch.ones(floats).sum()

    short()
    freed = [bytearray(100_000) for _ in range(1500)]
    above = bytearray(100_000)  # keeps what is freed below it in malloc's hands, where the action would find room
    freed.clear()
    _, peak = memory.peak_above(short)
    assert peak == pytest.approx(floats * 4 / 2**20, rel=0.15) and above
    _, peak = memory.peak_above(lambda: None)
    assert peak < 2


@pytest.mark.process
def test_a_ranking_in_a_process_of_its_own() -> None:
    found = memory.measured(40, 3000, block=512, threads=1)
    assert found["level_mb"] > 1 and found["peak_mb"] >= 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # what malloc keeps for itself differs by 4 MB of 13
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    small, large = (memory.measured(512, n, block=32_768, threads=1)["peak_mb"] for n in benchmark.SIZES)
    assert large / small <= 1.1
