"""Ranked lists for users: how many a second, and how peak memory grows with the catalogue.

``users_per_s``: histories to lists of 20 on amazon-beauty (12 thousand items, two layers of width 64, seen items
excluded). ``peak_memory_1m_over_100k``: peak anonymous memory above the loaded vectors, 1 million items over 100
thousand at the same block size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks.data import beauty, tiny
from benchmarks.harness import Benchmark, Figures, Say, main, repeat, require, rounded
from benchmarks.memory import measured
from fullrank.core.jagged import Jagged
from fullrank.data.events.store import Store
from fullrank.inference.batches import BLOCK, SCORES, Batching, score_batches
from fullrank.inference.exact import top_k
from fullrank.inference.filters import Filters
from fullrank.inference.recommend import rank
from fullrank.metrics import RankedLists
from fullrank.models import DenseScorer
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel

K = 20
MEMORY_USERS = 2048
SIZES = (100_000, 1_000_000)

Rank = Callable[..., RankedLists]
TopK = Callable[..., tuple[Tensor, Tensor]]


def model_of(store: Store, dim: int = 64) -> RecommenderModel:
    """Two layers, untrained: speed does not depend on the weights' values."""
    torch.manual_seed(0)
    return Recommender(dim=dim, max_length=50, encoder=Transformer(layers=2)).build(store.catalog).eval()


def check(ranked: Rank = rank, top: TopK = top_k) -> None:
    """Lists equal a full sort of all scores (score descending, id ascending) without the seen items; ties included."""
    store = tiny()
    model = model_of(store, dim=16)
    histories = store.eval_set("test").histories
    found = ranked(model, histories, k=K, how=Batching(batch_size=13, block=64))
    scores = np.empty((len(histories), store.num_items), dtype=np.float32)
    for at, answer in score_batches(model, histories, Batching(block=store.num_items)):
        with torch.inference_mode():
            scores[at] = answer.block(0, store.num_items).numpy()
    _, values = _sorted(scores, histories.items)
    # the same list in other batches may swap items whose scores differ in the last digit, so scores are compared
    taken = np.take_along_axis(scores, np.maximum(found.ids, 0), 1)
    require(np.allclose(taken, values, rtol=1e-5, atol=1e-6), "a list of rank() is not that of a full sort")
    require(not _lists_seen(found.ids, store, histories.items), "rank() lists an item that the user has seen")
    require(all(len(set(row)) == K for row in found.ids.tolist()), "rank() lists an item twice")
    draw = torch.Generator().manual_seed(1)
    vectors = torch.randint(-2, 3, (len(histories), 4), generator=draw).float()  # small whole numbers: many ties
    table = torch.randint(-2, 3, (store.num_items, 4), generator=draw).float()
    seen = Filters().of_batch(histories.items)
    _, ids = top(DenseScorer(vectors, table), K, filters=seen, block=50)
    wanted, _ = _sorted((vectors @ table.T).numpy(), histories.items)
    require(bool((ids.numpy() == wanted).all()), "top_k is not the full sort by score descending, then id ascending")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    store = beauty(options.data, say)
    model = model_of(store)
    histories = store.eval_set("test").histories
    users = len(histories)
    whole = lambda: rank(model, histories, k=K)  # noqa: E731
    bare = bare_lists(store, histories.items)
    encode = lambda: [a.size for _, a in score_batches(model, histories)]  # noqa: E731
    taken: dict[str, list[float]] = {"rank": [], "top_k": [], "encode": []}
    for done in range(options.rounds + 1):
        for name, action in (("rank", whole), ("top_k", bare), ("encode", encode)):
            taken[name] += repeat(1, action)
        say(f"round {done} of {options.rounds} (0 is the warm-up): {users / taken['rank'][-1]:,.0f} users/s")
    typical = {name: median(seconds[1:]) for name, seconds in taken.items()}
    return rounded({
        "users_per_s": users / typical["rank"],
        "users_per_s_best": users / min(taken["rank"][1:]),
        "users_per_s_top_k": users / typical["top_k"],
        "users_per_s_encode": users / typical["encode"],
        "users": users,
        "items": store.num_items,
        "rounds": options.rounds,
        **memory(options, say),
        "note": "users/s: median of the rounds; memory: VmHWM after clear_refs less file-backed, median of processes",
    })  # fmt: skip


def bare_lists(store: Store, histories: Jagged) -> Callable[[], None]:
    """Top-k alone, from given vectors, in batches of the size that `rank` takes."""
    draw = torch.Generator().manual_seed(0)
    vectors, table = torch.randn(len(histories), 64, generator=draw), torch.randn(store.num_items, 64, generator=draw)
    size = SCORES // min(BLOCK, store.num_items)

    def run() -> None:
        for low in range(0, len(histories), size):
            at = slice(low, low + size)
            seen = Filters().of_batch(histories.take(at))
            top_k(DenseScorer(vectors[at], table), K, filters=seen, block=BLOCK)

    return run


def memory(options: argparse.Namespace, say: Say) -> Figures:
    """Median peaks over fresh processes at both sizes of the catalogue, at the same block size."""
    peaks: dict[int, float] = {}
    for items in SIZES:
        say(f"peak memory at {items:,} items, {options.processes} processes")
        runs = (measured(MEMORY_USERS, items, block=BLOCK, threads=options.threads) for _ in range(options.processes))
        peaks[items] = median(run["peak_mb"] for run in runs)
    small, large = (peaks[items] for items in SIZES)
    return {
        "peak_memory_1m_over_100k": large / small,
        "peak_memory_100k_mb": small,
        "peak_memory_1m_mb": large,
        "peak_memory_users": MEMORY_USERS,
        "peak_memory_block": BLOCK,
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="a prepared store (default: amazon-beauty from FULLRANK_DATA)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds after the warm-up (default 7)")
    parser.add_argument("--processes", type=int, default=3, help="processes per size of the catalogue (default 3)")


def _sorted(scores: np.ndarray, seen: Jagged) -> tuple[np.ndarray, np.ndarray]:
    """The slow twin: ids and scores of the K best unseen items of each row, by a stable sort of the whole row."""
    open_ = scores.copy()
    open_[seen.row_of(), seen.flat()] = -np.inf
    ids = np.argsort(-open_, axis=1, kind="stable")[:, :K]
    return ids, np.take_along_axis(open_, ids, 1)


def _lists_seen(ids: np.ndarray, store: Store, seen: Jagged) -> bool:
    mask = np.zeros((len(ids), store.num_items), dtype=bool)
    mask[seen.row_of(), seen.flat()] = True
    return bool(np.take_along_axis(mask, np.maximum(ids, 0), 1).any())


BENCHMARK = Benchmark("retrieve", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
