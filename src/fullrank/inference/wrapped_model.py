"""A model around another one: an evaluation or a diagnostic changes what it reads or its scores, and nothing else."""

from __future__ import annotations

from typing import Any

from torch import nn

from fullrank.data.batch import Batch
from fullrank.inference.batches import scorer_of
from fullrank.models import Model, Scorer
from fullrank.models.sequential.reasoning import Budget


class WrappedModel(nn.Module, Model):
    """Answers as the model inside does; a subclass changes what that reads, or its scores."""

    def __init__(self, model: Model, max_length: int | None = None):
        """`max_length`: the longest history that is given to `answer`; None is the model's own."""
        super().__init__()
        self.model, self.num_items = model, model.num_items
        self.max_length = model.max_length if max_length is None else max_length
        self.allows_empty, self.reads_times, self.reads_users = model.allows_empty, model.reads_times, model.reads_users
        self.train(isinstance(model, nn.Module) and model.training)

    @property
    def reasoner(self) -> Any | None:
        return self.model.reasoner

    def index_items(self) -> Any | None:
        return self.model.index_items()

    def answer(self, batch: Batch, *, index: Any | None = None, budget: Budget | None = None) -> Scorer:
        batch = self.read(batch)
        return self.scored(scorer_of(self.model, batch, index, budget), batch)

    def read(self, batch: Batch) -> Batch:
        """The batch that the inner model reads: this one, unless a subclass changes it."""
        return batch

    def scored(self, scorer: Scorer, batch: Batch) -> Scorer:
        """The scorer that is answered with: the inner model's, unless a subclass changes its scores."""
        return scorer
