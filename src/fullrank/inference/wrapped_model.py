"""A model around another one: an evaluation or a diagnostic changes what it reads or its scores, and nothing else."""

from __future__ import annotations

from typing import Any

from torch import nn

from fullrank.data.batch import Batch, Model, Scorer
from fullrank.inference.batches import index_of, scorer_of
from fullrank.models.sequential.reasoning.budget import Budget


class WrappedModel(nn.Module):
    """Answers as the model inside does (satisfies `batch.Model`); a subclass changes what that reads, or its scores."""

    def __init__(self, model: Model, max_length: int | None = None):
        """`max_length`: the longest history that is given to `answer`; None is the model's own."""
        super().__init__()
        self.model, self.num_items = model, model.num_items
        self.max_length = model.max_length if max_length is None else max_length
        self.allows_empty: bool = getattr(model, "allows_empty", False)
        self.reads_times: bool = getattr(model, "reads_times", True)
        self.reads_users: bool = getattr(model, "reads_users", False)
        self.reasoner: Any = getattr(model, "reasoner", None)
        self.train(getattr(model, "training", False))

    def index_items(self) -> Any | None:
        return index_of(self.model)

    def answer(self, batch: Batch, *, index: Any | None = None, budget: Budget | None = None) -> Scorer:
        return scorer_of(self.model, batch, index, budget)
