"""Quick inference for a service: lists of 1 to 64 short histories on the CPU.

From numpy arrays to numpy arrays: histories -> states (`serving/packed.py`) -> scores of all items, filters, the k
best. It computes what `model.answer` and `exact.top_k` do, to about 1e-6, in their order: score descending, then id.
The product with the items is oneDNN's over a table that is laid out for it once (2 to 3 times as fast as MKL's from
four rows up, on an AMD EPYC), and what nobody is shown is a summand of it.

It is a copy of the weights as they were when it was made. `fullrank evaluate` and `recommend` do not use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.inference.batches import SCORES
from fullrank.inference.exact import select
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.cloze import ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItemTask
from fullrank.serving.packed import Dense, PackedGRU, PackedTransformer, pack_encoder

GROUP = 16
"""Items per group whose maximum is looked at first; fastest of 8, 16, 32, 64 at 12 thousand items and 8 rows."""
DIRECT = 32_768
"""Scores of a batch below which a plain selection is as fast."""
Rows = Sequence[Int[np.ndarray, "_"]]
"""A row of each history."""
Masks = Sequence[Bool[np.ndarray, "V"] | None]


class FastEncoder:
    """A trained recommender, laid out for few histories at a time. Many threads may share one."""

    def __init__(self, model: RecommenderModel, encoder: PackedTransformer | PackedGRU):
        """Use `of`."""
        self._encoder = encoder
        self._cover = model.task.cover.detach().clone() if isinstance(model.task, ClozeTask) else None
        self._reads = model.max_length - (self._cover is not None)
        self._timed, self._cosine, self._temperature = model.reads_times, model.cosine, model.temperature
        with torch.inference_mode():
            self._lay_out(model.items.all().detach().clone().contiguous())

    @staticmethod
    def of(model: Any) -> FastEncoder | None:
        """The model as it is now; None for one of another kind than is known here, which has its own `answer`.

        Known are models on the CPU in 32 bits that search item vectors (of items of any kind) with a transformer of
        softmax or HSTU attention, or a GRU.
        """
        if type(model) is not RecommenderModel or type(model.task) not in (NextItemTask, LastItemTask, ClozeTask):
            return None
        if model.items.reads_apart:  # one table of vectors serves both ends here
            return None
        if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in model.parameters()):
            return None
        encoder = pack_encoder(model.encoder)
        return None if encoder is None else FastEncoder(model, encoder)

    @property
    def num_items(self) -> int:
        """V, with those that `with_items` added."""
        return len(self._vectors)

    @torch.inference_mode()
    def with_items(
        self, vectors: Float[Tensor, "V D"] | None = None, barred: Bool[np.ndarray, "V"] | None = None
    ) -> FastEncoder:
        """The same encoder over other items: `vectors` as `model.items.all()` gives them, then those of new items.

        `barred` are items that nobody is shown; they cost nothing at a request. Without `vectors` the table is shared.
        """
        other = copy(self)
        if vectors is not None:
            other._lay_out(vectors.contiguous())
        other._scores = copy(other._scores)
        other._scores.bias = None
        if barred is not None and barred.any():
            other._scores.bias = torch.zeros(len(barred)).masked_fill_(torch.tensor(barred), -torch.inf)
        return other

    @torch.inference_mode()
    def states_of(self, histories: Rows, times: Rows | None = None) -> Float[Tensor, "B D"]:
        """Readouts (`model.task.readout`) of histories of one array of item numbers each, oldest first, as
        `model.searched` takes them. None is empty, and a model that reads times gets them."""
        items = [row[-self._reads :] for row in histories]
        moments = [row[-self._reads :] for row in times] if self._timed and times is not None else None
        if self._cover is not None:  # a place behind each history; its time is the last event's
            items = [np.append(row, 0) for row in items]
            moments = None if moments is None else [np.append(row, row[-1:]) for row in moments]
        lengths = np.array([len(row) for row in items])
        x = self._vectors.index_select(0, torch.from_numpy(_end_to_end(items)))
        if self._cover is not None:
            x[torch.from_numpy(lengths.cumsum() - 1)] = self._cover
        return self._encoder(x, lengths, None if moments is None else _end_to_end(moments))

    @torch.inference_mode()
    def lists_of(
        self,
        histories: Rows,
        k: int,
        *,
        times: Rows | None = None,
        hidden: Rows | None = None,
        refused: Masks | None = None,
    ) -> tuple[Float[np.ndarray, "B k"], Int[np.ndarray, "B k"]]:
        """Scores and item numbers of the k best items of each history, best first; empty places are -inf and -1.

        `hidden` are items that each row is not shown (its whole history, where seen items are excluded, and what its
        request excludes; None: nothing is hidden), `refused` a mask of items that it is not shown, or None. Raises
        `UserError` for a NaN score.
        """
        most = max(SCORES // self.num_items, 1)  # rows at a time, so that their scores keep within bounds
        lists = []
        for low in range(0, len(histories), most):
            rows = slice(low, low + most)
            scores = self._scores_of(histories[rows], None if times is None else times[rows])
            hide(scores, hidden[rows] if hidden else (), refused[rows] if refused else ())
            lists.append(best(scores, k))
        values, ids = (np.concatenate(parts) for parts in zip(*lists, strict=True))
        return values, ids

    def _scores_of(self, histories: Rows, times: Rows | None) -> Float[Tensor, "B V"]:
        states = self.states_of(histories, times)
        return self._scores((unit(states) if self._cosine else states) / self._temperature)

    def _lay_out(self, vectors: Float[Tensor, "V D"]) -> None:
        self._vectors, self._scores = vectors, Dense(unit(vectors) if self._cosine else vectors)


def hide(scores: Float[Tensor, "B V"], hidden: Rows, refused: Masks) -> None:
    """Set to -inf, in place, the scores of items that single rows are not shown."""
    table = scores.numpy()
    for row, mask in zip(table, refused, strict=False):
        if mask is not None:
            np.putmask(row, mask, -np.inf)
    if len(hidden):
        lengths = [len(row) for row in hidden]
        table[np.repeat(np.arange(len(hidden)), lengths), _end_to_end(hidden)] = -np.inf


def best(scores: Float[Tensor, "B V"], k: int) -> tuple[Float[np.ndarray, "B k"], Int[np.ndarray, "B k"]]:
    """The k best items of each row, by score descending, then id; empty places are -inf and -1.

    Raises `UserError` for a NaN score.
    """
    values, ids = (part.numpy() for part in _largest(scores, min(k + 1, scores.shape[1])))
    if np.isnan(values[:, 0]).any():
        raise UserError(
            "the model gave NaN scores: its weights have probably diverged; lower the learning rate or clip "
            "gradients, and train again",
            code="nan-scores",
            public=True,
        )
    if ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -np.inf)).any():
        values, ids = (part.numpy() for part in select(scores, k))
    values, ids = values[:, :k], ids[:, :k]
    ids = np.where(np.isneginf(values), -1, ids)
    missing = ((0, 0), (0, k - values.shape[1]))
    if missing[1][1]:
        values, ids = np.pad(values, missing, constant_values=-np.inf), np.pad(ids, missing, constant_values=-1)
    return values, ids


def _largest(x: Float[Tensor, "B V"], k: int) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """The k largest of each row, descending; which of equal values is left open (as in `exact`, for few rows)."""
    groups = x.shape[1] // GROUP
    if x.numel() <= DIRECT or groups <= k:
        values, ids = x.topk(k)
        return values, ids
    covered = groups * GROUP
    winners = x[:, :covered].view(len(x), GROUP, groups).amax(1).topk(k, sorted=False)[1]
    ids = (winners[:, :, None] + torch.arange(0, covered, groups)).flatten(1)
    if covered < x.shape[1]:
        ids = torch.cat([ids, torch.arange(covered, x.shape[1]).expand(len(x), -1)], 1)
    values, at = x.gather(1, ids).topk(k)
    return values, ids.gather(1, at)


def _end_to_end(rows: Rows) -> Int[np.ndarray, "N"]:
    """Arrays of whole numbers behind each other."""
    return np.concatenate(rows).astype(np.int64, copy=False)
