"""A training step over a catalogue of any size, and its memory: ``python -m benchmarks.catalogue_step KIND ITEMS``.

The arrays of the catalogue (tokens, offsets, counts and their running sum) lie in files, are mapped, and every page is
read before anything is measured. Item i has the text of item i mod `BASE`, and a batch asks for the same texts at every
size: only where they lie differs. KIND `text` is SRT's model of CPU size, `table` the same with a vector per item.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from benchmarks.harness import CACHE
from benchmarks.memory import in_a_process, peak_above
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.models import Queries
from fullrank.models.sequential.items import Shares, keep_shares
from fullrank.models.sequential.items.table import ItemTable, Table
from fullrank.models.sequential.items.text import Packed, TextItems
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.losses.sampled_softmax import SampledSoftmaxLoss
from fullrank.models.sequential.objectives.negatives import Negatives, draw
from fullrank.recipes.srt import ITEMS, model, sampled

BASE = 10_000
"""Items with a text of their own."""
POOL, ROWS, LENGTH, DIM = 4096, 32, 50, 64
TOKENS = 30_000
FIELDS = {"title": (4, 24), "brand": (1, 3)}
"""Fewest and most tokens of each field; the mean title of s3rec-beauty lies between."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Case:
    """A model with its optimizer, a batch, and the negatives that it gets."""

    model: RecommenderModel
    optimizer: torch.optim.Optimizer
    batch: Batch
    pool: Tensor

    def step(self) -> float:
        loss = torch.stack(list(self.model(self.batch).values())).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def written(items: int, folder: Path, base: int = BASE) -> Path:
    """The arrays of a catalogue of this size, made in pieces where they are not there."""
    place = folder / f"{items}_{base}"
    if (place / "done").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, (low, high) in FIELDS.items():
        counts = rng.integers(low, high + 1, base)
        tokens = (TOKENS ** rng.random(int(counts.sum()))).astype(np.int32).clip(1, TOKENS - 1)
        sizes = np.resize(counts, items)
        offsets = _array(place / f"{name}_offsets.npy", np.int64, items + 1)
        offsets[1:] = np.cumsum(sizes)
        flat = _array(place / f"{name}_flat.npy", np.int32, int(offsets[-1]))
        for start in range(0, len(flat), len(tokens)):
            flat[start : start + len(tokens)] = tokens[: len(flat) - start]
    popularity, running = _array(place / "popularity.npy", np.float32, items), 0.0
    cumulative = _array(place / "cumulative.npy", np.float64, items)
    for start in range(0, items, CHUNK):
        counts = np.ceil(50_000 / (1 + np.arange(start, min(start + CHUNK, items))))
        popularity[start : start + CHUNK] = counts
        cumulative[start : start + CHUNK] = running + np.cumsum(counts)
        running = float(cumulative[min(start + CHUNK, items) - 1])
    cumulative /= running
    (place / "done").touch()
    return place


def places(virtual: Tensor, items: int, base: int, seed: int = 0) -> Tensor:
    """Items with the texts of these, spread over the catalogue; different ones stay different."""
    copies = items // base
    spread = torch.randint(0, copies, (base,), generator=torch.Generator().manual_seed(seed))
    return virtual + base * spread[virtual]


def case_of(
    kind: str, items: int, folder: Path, *, base: int = BASE, pool: int = POOL, rows: int = ROWS, length: int = LENGTH,
    made: Callable[..., nn.Module] = TextItems, log_q: bool = True,
) -> Case:  # fmt: skip
    """A step of this kind of items at this size of the catalogue; weights and texts are alike at all sizes."""
    torch.manual_seed(0)
    one = Catalog(pl.DataFrame({"item": [0], "item_id": [0], "train_count": [1]}))
    spec = model(2, 2, DIM, sampled(pool, "batch"), dropout=0.0).model_copy(update={"items": Table()})
    whole = spec.build(one)
    counts = torch.from_numpy(_mapped(written(items, folder, base) / "popularity.npy"))
    whole.items, whole.num_items = _items(kind, items, folder, base, counts, made), items
    keep_shares(counts, Shares(counts, torch.from_numpy(_mapped(written(items, folder, base) / "cumulative.npy"))))
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(base, generator=generator)
    histories = torch.randint(0, base, (rows, length + 1), generator=generator)
    batch = Batch(places(histories, items, base), torch.full((rows,), length + 1), rows=torch.arange(rows))
    negatives = places(order[:pool], items, base)

    def drawing(how: Negatives, queries: Queries, batch: Batch) -> Tensor:
        draw(how, queries, batch)  # its time counts, its draws would be other items at another size
        return negatives[None]

    loss = sampled(pool, "batch")
    whole.loss = SampledSoftmaxLoss(loss if log_q else loss.model_copy(update={"log_q": "none"}), drawing)
    return Case(whole.train(), torch.optim.AdamW(whole.parameters(), lr=1e-3), batch, negatives)


def measured(kind: str, items: int, *, threads: int) -> dict[str, float]:
    """`anonymous_mb` (most while it stepped) in a fresh process."""
    return in_a_process("benchmarks.catalogue_step", kind, items, threads)


def _items(kind: str, items: int, folder: Path, base: int, counts: Tensor, made: Callable[..., nn.Module]) -> nn.Module:
    if kind == "table":
        found = ItemTable(DIM, Catalog(pl.DataFrame({"item": [0], "item_id": [0], "train_count": [1]})))
        found.size, found.popularity, found.embedding = items, counts, nn.Embedding(items, DIM)
        return found
    place = written(items, folder, base)
    fields = [
        Packed(*(torch.from_numpy(_mapped(place / f"{name}_{part}.npy")) for part in ("flat", "offsets")))
        for name in FIELDS
    ]
    return made(DIM, TOKENS, fields, counts, ITEMS)


def _array(path: Path, kind: type, size: int) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(size,))


def _mapped(path: Path) -> np.ndarray:
    """The array as a private mapping, every page read."""
    found = np.load(path, mmap_mode="c")
    found.view(np.uint8)[::4096].max()
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("text", "table"))
    parser.add_argument("items", type=int)
    parser.add_argument("threads", type=int, nargs="?", default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    case = case_of(options.kind, options.items, CACHE / "catalogue")
    case.step()  # code, thread pools, gradients and moments are in memory
    level, peak = peak_above(lambda: [case.step() for _ in range(3)])
    print(json.dumps({"anonymous_mb": level + peak}))


if __name__ == "__main__":
    _main()
