"""A model that reasons by a script: what it would answer after each step is written down, user by user."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models import Budget, DenseScorer, Model


@dataclass
class Thinker(Model):
    """A model, and what adaptive stopping asks of a `Recommender` with a reasoner.

    `script[u, s]` is user u's query after s steps; items are searched by whole numbers, so nothing is rounded.
    """

    script: Tensor
    """[users, steps + 1, D]"""
    table: Tensor
    max_length: int = 10
    spent: list[Budget] = field(default_factory=list)
    """Of each answer at once."""
    advanced: list[int] = field(default_factory=list)
    """Rows of each step taken."""

    def __post_init__(self) -> None:
        self.num_items, self.items = len(self.table), None
        self.task = SimpleNamespace(inference_inputs=lambda items, batch: (None, batch))

    @staticmethod
    def random(users: int, items: int, steps: int = 5, *, streams: int = 2, seed: int = 0) -> "Thinker":
        draw = torch.Generator().manual_seed(seed)
        table = torch.randint(-3, 4, (items, 4), generator=draw).float()
        script = torch.randint(-3, 4, (users, steps + 1, 4), generator=draw).float()
        settled = torch.randint(0, steps + 1, (users,), generator=draw)  # from this step on the query stays the same
        at = torch.minimum(torch.arange(steps + 1), settled[:, None])
        return Thinker(script.gather(1, at[..., None].expand(-1, -1, 4)), table)

    @property
    def reasoner(self) -> Any:
        return self

    @property
    def steps(self) -> int:
        return self.script.shape[1] - 1

    @property
    def streams(self) -> int:
        return 2

    def begin(self, x: None, batch: Batch, budget: Budget | None = None) -> tuple[Tensor, int]:
        assert batch.rows is not None
        return batch.rows, 0

    def advance(self, thinking: tuple[Tensor, int]) -> tuple[Tensor, int]:
        self.advanced.append(len(thinking[0]))
        return thinking[0], thinking[1] + 1

    def select(self, thinking: tuple[Tensor, int], rows: Tensor) -> tuple[Tensor, int]:
        return thinking[0][rows], thinking[1]

    def answered(self, thinking: tuple[Tensor, int]) -> Tensor:
        return self.script[thinking[0], min(thinking[1], self.steps)]

    def index_items(self) -> Tensor:
        return self.table

    def searched(self, vectors: Tensor, index: Tensor) -> DenseScorer:
        return DenseScorer(vectors, index)

    def answer(self, batch: Batch, *, index: Tensor, budget: Budget | None) -> DenseScorer:
        assert batch.rows is not None
        budget = budget or Budget()
        self.spent.append(budget)
        return self.searched(self.answered((batch.rows, budget.steps_of(self))), index)

    def scores(self, user: int, step: int) -> np.ndarray:
        """The plain twin: all scores of a user after a step."""
        return (self.table @ self.script[user, step]).numpy()
