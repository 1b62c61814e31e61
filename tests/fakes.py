"""Models whose scores are small whole numbers, and a store in memory: what retrieval and evaluation are tested with.

Whole numbers in float32 add up exactly in any order, so results must be equal to the last bit whatever the batches
and blocks are; and they tie often.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.histories import EvalSet, Histories
from fullrank.models import DenseScorer, Model


@dataclass
class Whole(Model):
    """Scores items by the inner product of whole vectors: the sum of the history's rows against each item's."""

    num_items: int
    max_length: int = 50
    levels: int = 3
    seed: int = 0
    allows_empty: bool = False
    reads_times: bool = False
    asked: list[Batch] = field(default_factory=list)
    table: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.table = torch.randint(-self.levels, self.levels + 1, (self.num_items, 4), generator=generator).float()

    def answer(self, batch: Batch) -> DenseScorer:
        self.asked.append(batch)
        return DenseScorer((self.table[batch.items] * batch.valid[..., None]).sum(1), self.table)

    def scores(self, history: np.ndarray) -> np.ndarray:
        """The plain twin for one history."""
        vectors = self.table.numpy()
        return vectors @ vectors[history[len(history) - min(len(history), self.max_length) :]].sum(0)


@dataclass(frozen=True)
class Counts:
    popularity: np.ndarray


@dataclass(frozen=True)
class Kept:
    """A store in memory, split by leave-one-out: the last event is the test target, the one before it validation's."""

    items: np.ndarray
    offsets: np.ndarray
    bounds: np.ndarray
    catalog: Counts
    times: np.ndarray | None = None
    fingerprint: str = "kept"

    @staticmethod
    def of(histories: list[list[int]], num_items: int) -> "Kept":
        offsets = np.cumsum([0, *(len(h) for h in histories)])
        items = np.concatenate([np.asarray(h, dtype=np.int32) for h in histories])
        bounds = np.stack([offsets[1:] - 2, offsets[1:] - 1], 1)
        train = np.concatenate([h[:-2] for h in histories]).astype(np.int64)
        return Kept(items, offsets, bounds, Counts(np.bincount(train, minlength=num_items)))

    @staticmethod
    def random(users: int, num_items: int, seed: int = 0, longest: int = 12) -> "Kept":
        """Histories of distinct items, popular ones more often."""
        rng = np.random.default_rng(seed)
        weights = 1 / np.arange(1, num_items + 1)
        lengths = rng.integers(3, longest + 1, users)
        drawn = [rng.choice(num_items, n, replace=False, p=weights / weights.sum()).tolist() for n in lengths]
        return Kept.of(drawn, num_items)

    def eval_set(self, split: str, *, without_history: bool = False) -> EvalSet:
        starts, ends, target_ends = self.offsets[:-1], self.bounds[:, 1], self.offsets[1:]
        if split == "validation":
            ends, target_ends = self.bounds[:, 0], self.bounds[:, 1]
        users = np.arange(len(starts)) if without_history else np.flatnonzero(ends > starts)
        known, targets = Jagged(self.items, starts, ends).take(users), Jagged(self.items, ends, target_ends).take(users)
        return EvalSet(Histories(known, self.times, users), targets)


def ragged(histories: list[list[int]]) -> Histories:
    """Some histories, as ranking takes them."""
    return Histories(Jagged.from_lists(histories))


def listed(scores: np.ndarray, k: int, hidden: set[int] | frozenset[int] = frozenset()) -> list[int]:
    """The plain twin of a ranked list: everything sorted by (score descending, id ascending) but what is hidden."""
    shown = [(-score, item) for item, score in enumerate(scores.tolist()) if score > -np.inf and item not in hidden]
    return ([item for _, item in sorted(shown)] + [-1] * k)[:k]
