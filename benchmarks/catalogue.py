"""A training step on items made of text as the catalogue grows from 10 thousand to 10 million items.

``step_time_10m_over_10k``: forward, backward and AdamW of SRT's model of CPU size (32 histories of 50 events, a pool of
4,096 distinct negatives drawn by popularity with the correction by log q), seconds at 10 million items over those at 10
thousand, by turns. ``peak_memory_10m_over_10k``: most anonymous memory of a process that steps, alike. The catalogue's
arrays are mapped from files and read beforehand. ``table_...``: the same step with a vector per item, at 1 million.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.catalogue_step import FIELDS, POOL, case_of, measured
from benchmarks.harness import CACHE, Benchmark, Figures, Say, main, repeat, require, rounded
from fullrank.models.sequential.items.text import TextItems
from fullrank.ops.picked_rows import packed_bags_reference

SIZES = {
    "text": {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000},
    "table": {"10k": 10_000, "100k": 100_000, "1m": 1_000_000},
}
"""Items; ratios are those of the last over the first."""
TINY = {"base": 60, "pool": 24, "rows": 4, "length": 6}


def check(made: Callable[..., nn.Module] = TextItems) -> None:
    """Vectors are those of the reference, a step computes each item once, and a larger catalogue changes neither."""
    losses, computed = [], []
    with tempfile.TemporaryDirectory() as place:
        for items in (60, 6_000):
            case = case_of("text", items, Path(place), made=made, log_q=False, **TINY)
            wanted = torch.cat([case.batch.items.flatten(), case.pool]).unique()
            asked = _noted(case.model.items)
            losses.append(case.step())
            require(sorted(asked) == wanted.tolist(), "a step does not compute each of its items once")
            computed.append(len(asked))
            close = torch.allclose(case.model.items.embed(wanted), _slow(case.model.items, wanted), atol=1e-5)
            require(close, "items' vectors are not those of the reference")
    require(computed[0] == computed[1], "a larger catalogue makes a step compute more items")
    require(
        abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0]), "the same texts have another loss in a larger catalogue"
    )


def measure(options: argparse.Namespace, say: Say) -> Figures:
    folder = CACHE / "catalogue"
    found: Figures = {}
    for kind, sizes in SIZES.items():
        prefix, label = "" if kind == "text" else "table_", list(sizes)[-1]
        say(f"{kind}: steps at {', '.join(f'{items:,}' for items in sizes.values())} items")
        seconds = steps(kind, sizes, folder, options.rounds)
        pairs = zip(seconds["10k"], seconds[label], strict=True)
        found[f"{prefix}step_time_{label}_over_10k"] = median(b / a for a, b in pairs)
        found |= {f"{prefix}step_seconds_{name}": median(taken) for name, taken in seconds.items()}
        peaks = {}
        for name, items in sizes.items():
            say(f"{kind}: memory at {items:,} items, {options.processes} processes")
            runs = [measured(kind, items, threads=options.threads) for _ in range(options.processes)]
            peaks[name] = median(run["anonymous_mb"] for run in runs)
        found[f"{prefix}peak_memory_{label}_over_10k"] = peaks[label] / peaks["10k"]
        found |= {f"{prefix}peak_memory_{name}_mb": peak for name, peak in peaks.items()}
    return rounded(found | {"pool": POOL, "rounds": options.rounds})


def steps(kind: str, sizes: dict[str, int], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round's step at each size, by turns, after two rounds of warm-up."""
    cases = {name: case_of(kind, items, folder) for name, items in sizes.items()}
    taken: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(rounds + 2):
        for name, case in cases.items():
            taken[name] += repeat(1, case.step)
    return {name: seconds[2:] for name, seconds in taken.items()}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=20, help="timed steps at each size (default 20)")
    parser.add_argument("--processes", type=int, default=3, help="processes per peak of memory (default 3)")


def _noted(items: Any) -> list[int]:
    """The ids that `items` compute from now on, gathered as they come."""
    asked: list[int] = []
    own = items.embed

    def embed(ids: Tensor) -> Tensor:
        asked.extend(ids.flatten().tolist())
        return own(ids)

    items.embed = embed
    return asked


def _slow(items: Any, ids: Tensor) -> Tensor:
    parts = [
        packed_bags_reference(items.tables[i].weight, getattr(items, f"flat_{i}"), getattr(items, f"offsets_{i}"), ids)
        for i in range(len(FIELDS))
    ]
    return items.adapter(torch.cat(parts, 1))


BENCHMARK = Benchmark("catalogue", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
