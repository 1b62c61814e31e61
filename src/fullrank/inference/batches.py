"""Batches of histories through a model, and the scorers that it returns: shared by ranking, scoring and diagnostics.

A model whose scorers need item vectors makes them once for all batches (`index_items`). How much it
reasons is an argument (`Budget`). Nothing here changes a model that is in evaluation mode, so many
threads may share one.

`WrappedModel` is a model around another one: an evaluation or a diagnostic changes what it reads or
its scores, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from fullrank.core.device import device_of
from fullrank.core.errors import UserError
from fullrank.core.log import Progress, untold
from fullrank.data.batch import Batch, BatchFeatures
from fullrank.data.histories import Histories
from fullrank.inference.exact import block_scorer, refuse_nan
from fullrank.models import Budget, Model, Scorer, check_budget

BLOCK = 8192
"""Items per block."""
SCORES = 1 << 21
"""Most scores alive at once (users x block), 4 bytes each."""
TOKENS = 1 << 15
"""Most positions (users x padded length) in one batch given to a model."""


@dataclass(frozen=True)
class Batching:
    """Batch and block sizes of histories that go through a model, and the progress that is reported."""

    batch_size: int | None = None
    """Users of a batch; None takes as many as keep users x block within `SCORES`, and positions within `TOKENS`."""
    block: int | None = None
    """Items that are scored at once; None is `BLOCK`."""
    progress: Progress = untold
    """Called with (users done, users in all)."""


def scorer_of(model: Model, batch: Batch, index: Any | None, budget: Budget | None) -> Scorer:
    """The scorer of a batch; index and budget are for models that have an index (`models.Model`)."""
    if index is None:
        return model.answer(batch)
    answer: Callable[..., Scorer] = model.answer  # models with `index_items` take both
    return answer(batch, index=index, budget=budget)


def score_batches(
    model: Model,
    histories: Histories,
    how: Batching = Batching(),
    *,
    budget: Budget | None = None,
    index: Any | None = None,
) -> Iterator[tuple[Int[np.ndarray, "B"], Scorer]]:
    """A scorer for each batch, with the positions (in the order given) of the histories that it is for.

    `index` is what `model.index_items()` gave, made here where it is None. Raises `UserError` as
    `batches` does, and for a budget that the model cannot keep.
    """
    if budget is not None:
        check_budget(model, budget)
    with evaluating(model):
        index = model.index_items() if index is None else index
        for at, batch in batches(model, histories, how):
            with torch.inference_mode():
                scorer = scorer_of(model, batch, index, budget)
            if scorer.size != model.num_items:
                raise UserError(
                    f"the model says it has {model.num_items} items but its scorer has {scorer.size}",
                    code="scorer-size-differs",
                )
            yield at, scorer


def batches(
    model: Model, histories: Histories, how: Batching = Batching()
) -> Iterator[tuple[Int[np.ndarray, "B"], Batch]]:
    """The histories in batches of like length, on the model's device; between them the model is in evaluation mode.

    A model reads the last `model.max_length` events. Raises `UserError` on an empty history (unless
    the model has the attribute `allows_empty = True`) and on an id outside the catalogue.
    """
    read = histories.items.last(model.max_length)
    lengths = read.lengths
    if not model.allows_empty and (lengths == 0).any():
        raise UserError(
            f"{int(np.sum(lengths == 0))} of {len(lengths)} histories are empty and this model cannot rank without "
            "one: leave these users out or rank them with a model that can, such as popularity",
            code="empty-history",
        )
    times = histories.times if model.reads_times else None
    keys = histories.keys.numbers() if histories.keys is not None and model.reads_users else None
    roles, known = model.reads_features, histories.features
    order = np.argsort(-lengths, kind="stable")  # longest first: what does not fit in memory fails at once
    device, most = device_of(model), how.batch_size or max(SCORES // (how.block or BLOCK), 1)
    done = 0
    with evaluating(model):
        while done < len(order):
            longest = max(int(lengths[order[done]]), 1)
            count = how.batch_size or min(most, max(TOKENS // longest, 1))
            at = order[done : done + count]
            items = read.take(at)
            table = items.padded()
            low, high = int(table.min()), int(table.max())
            if low < 0 or high >= model.num_items:
                raise UserError(
                    f"item id {low if low < 0 else high} is not in the model's catalogue of {model.num_items} items "
                    f"(0 to {model.num_items - 1})",
                    code="item-out-of-range",
                )
            batch = Batch(
                items=_padded(table),
                lengths=torch.from_numpy(lengths[at]),
                rows=torch.from_numpy(np.asarray(at if histories.users is None else histories.users[at], np.int64)),
                user_keys=None if keys is None else torch.from_numpy(keys[at]),
                times=None if times is None else _padded(items.over(times).padded()),
                features=None if roles is None else BatchFeatures.of(known and known.take(at), items, roles),
            )
            yield at, batch if device.type == "cpu" else batch.to(device)
            done += len(at)
            how.progress(done, len(order))


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the block; a module that is in it already is left alone."""
    training = isinstance(model, torch.nn.Module) and model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _padded(table: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(table.astype(np.int64, copy=False))


def score_pairs(
    model: Model,
    histories: Histories,
    rows: Int[np.ndarray, "p"],
    items: Int[np.ndarray, "p"],
    *,
    budget: Budget | None = None,
    index: Any | None = None,
) -> Float[np.ndarray, "p"]:
    """The scores of single (history, item) pairs as float32, NaN of the item -1; otherwise as `score_batches`."""
    scores = np.full(len(items), np.nan, np.float32)
    for at, scorer in score_batches(model, histories, budget=budget, index=index):
        row_in_batch = np.full(len(histories), -1)
        row_in_batch[at] = np.arange(len(at))
        pairs = np.flatnonzero((row_in_batch[rows] >= 0) & (items >= 0))
        scores[pairs] = pair_scores(scorer, row_in_batch[rows[pairs]], items[pairs], block=BLOCK)
    return scores


@torch.inference_mode()
def pair_scores(
    scorer: Scorer, rows: Int[np.ndarray, "p"], items: Int[np.ndarray, "p"], *, block: int
) -> Float[np.ndarray, "p"]:
    """The scores of single (row, item) pairs as float32, by the same streaming over item blocks."""
    order = np.argsort(items, kind="stable")
    pairs_rows, pairs_items = torch.from_numpy(rows[order]), torch.from_numpy(items[order])
    scores = np.empty(len(rows), dtype=np.float32)
    score = block_scorer(scorer, block)
    edges = np.searchsorted(items[order], np.arange(0, scorer.size + block, block))
    for number, (first, last) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        if first == last:
            continue
        low = number * block
        block_scores = score(low, min(low + block, scorer.size))
        taken = block_scores[
            pairs_rows[first:last].to(block_scores.device), (pairs_items[first:last] - low).to(block_scores.device)
        ]
        scores[order[first:last]] = taken.float().cpu().numpy()
    refuse_nan(torch.from_numpy(scores)[:, None], "candidates")
    return scores


class WrappedModel(nn.Module, Model):
    """Answers as the model inside does; a subclass changes what that reads, or its scores."""

    def __init__(self, model: Model, max_length: int | None = None):
        """`max_length`: the longest history that is given to `answer`; None is the model's own."""
        super().__init__()
        self.model, self.num_items = model, model.num_items
        self.max_length = model.max_length if max_length is None else max_length
        for name in ("allows_empty", "reads_times", "reads_users", "reads_features"):
            setattr(self, name, getattr(model, name))
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
