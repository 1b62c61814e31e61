"""Exact search against a vector index, by the size of the catalogue: milliseconds a query, recall, memory, build time.

Clustered item vectors of width 64 (`benchmarks/clustered.py`), lists of 10, users that the index was not measured on.
``index_ms_1m_b1``: a query alone, ``_b8``: one of a batch of eight; ``exact_`` the same by `top_k`. ``_half`` and
``_tenth`` are under a filter that leaves that share of the items, in the direction of one random vector.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median, quantiles

import numpy as np
import torch

from benchmarks.clustered import clustered_vectors
from benchmarks.harness import Benchmark, Figures, Say, main, repeat, require, rounded
from fullrank.inference.exact import top_k
from fullrank.inference.filters import BatchFilter, Filters
from fullrank.inference.search import Search
from fullrank.models import DenseScorer
from fullrank.serving.vector_index import IndexSettings, VectorIndex

K = 10
BLOCK = 1 << 17
"""Items that exact search scores at once: fastest for a few rows."""
MEASURED = 1024
"""Users on whom the index measures itself; as many others are asked."""
EXACT_ROUNDS = 20
SHARES = {"half": 0.5, "tenth": 0.1}


def exact(scorer: DenseScorer, k: int, filters: BatchFilter | None) -> tuple[torch.Tensor, torch.Tensor]:
    return top_k(scorer, k, filters=filters, block=min(BLOCK, scorer.size))


def check() -> None:
    """With all cells read and everything scored again the index is exact; as it is built, it finds nearly all."""
    items, users = clustered_vectors(5000, 300, width=16, clusters=50)
    mask = np.random.default_rng(0).random(5000) < 0.5
    whole = VectorIndex.build(items, users[:100], IndexSettings(cells=40, probes=40, rerank=5000), threads=1)
    usual = VectorIndex.build(items, users[:100], threads=1)
    scorer = DenseScorer(torch.from_numpy(users[100:]), torch.from_numpy(items))
    for filters in (None, Filters(masks=((np.arange(200), mask),)).of_batch(None)):
        wanted, found = exact(scorer, K, filters), whole(scorer, K, filters)
        require(torch.equal(found[1], wanted[1]), "an index that reads everything is not exact")
        require(recall(usual, scorer, filters) > 0.97, "an index finds too little")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {}
    for size in options.sizes:
        figures |= figures_of(size, options.rounds, say)
    return rounded({**figures, "note": "ms a query: median of the rounds; p90 over batches"})


def figures_of(size: int, rounds: int, say: Say) -> Figures:
    name = f"{size // 1_000_000}m" if size % 1_000_000 == 0 else f"{size // 1000}k"
    items, users = clustered_vectors(size, 2 * MEASURED, clusters=size // 500)
    say(f"building an index of {size:,} items")
    index = VectorIndex.build(items, users[:MEASURED])
    asked, table = torch.from_numpy(users[MEASURED:]), torch.from_numpy(items)
    direction = items @ np.random.default_rng(1).standard_normal(items.shape[1]).astype(np.float32)
    filters: dict[str, BatchFilter | None] = {"": None}
    for label, share in SHARES.items():
        mask = direction > np.quantile(direction, share)
        filters[f"_{label}"] = Filters(masks=((np.arange(8), mask),)).of_batch(None)
    found: Figures = {}
    for label, one in filters.items():
        for kind, search, times in (("index", index, rounds), ("exact", exact, EXACT_ROUNDS)):
            if kind == "exact" and label:
                continue
            for batch in (1, 8):
                own = one if one is None or batch == 8 else one.only(torch.arange(1), 8)
                typical, tail = timed(search, asked, table, own, batch, times)
                found[f"{kind}_ms_{name}_b{batch}{label}"] = typical
                if not label:
                    found[f"{kind}_p90_ms_{name}_b{batch}"] = tail
        say(f"{name}{label}: {found[f'index_ms_{name}_b1{label}']:.2f} ms")
        some = asked if one is None else asked[:256]
        found[f"recall_{name}{label}"] = recall(index, DenseScorer(some, table), one)
    facts = index.facts
    return {
        **found,
        f"recall_100_{name}": facts.recall_100,
        f"index_bytes_{name}": facts.bytes,
        f"build_seconds_{name}": facts.train_seconds + facts.add_seconds + facts.measure_seconds,
        f"cells_{name}": facts.cells,
        f"probes_{name}": facts.probes,
    }


def timed(
    search: Search, asked: torch.Tensor, table: torch.Tensor, filters: BatchFilter | None, batch: int, rounds: int
) -> tuple[float, float]:
    """Milliseconds of one query of a batch: median and 90th percentile, other users each time."""
    scorers = [DenseScorer(asked[low : low + batch], table) for low in range(0, len(asked) - batch + 1, batch)]
    each = iter(scorers * (rounds // len(scorers) + 2))
    seconds = repeat(rounds + 2, lambda: search(next(each), K, filters))[2:]  # the first calls make plans and warm up
    return 1e3 / batch * median(seconds), 1e3 / batch * quantiles(seconds, n=10)[-1]


def recall(index: VectorIndex, scorer: DenseScorer, filters: BatchFilter | None) -> float:
    """The share of the true best K found; of batches of 8 where a filter of eight rows is given."""
    shares = []
    for part in scorer.vectors.split(8 if filters is not None and len(scorer.vectors) > 200 else 200):
        some = DenseScorer(part, scorer.table)
        least = exact(some, K, filters)[0][:, -1:]
        shares.append((index(some, K, filters)[0] >= least - 1e-5 * least.abs()).double().mean(1))
    return float(torch.cat(shares).mean())


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[12_000, 30_000, 100_000, 1_000_000], help="items")
    parser.add_argument("--rounds", type=int, default=300, help="timed batches of each figure (default 300)")


BENCHMARK = Benchmark("vector_index", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
