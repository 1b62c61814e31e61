"""Quick inference for a service: lists of 1 to 64 short histories on the CPU, each batch one call of TorchScript.

From numpy arrays to numpy arrays: histories -> states (`serving/packed.py`) -> scores of all items, filters, the k
best (`serving/fast_search.py`). It computes what `model.answer` and `exact.top_k` do, to about 1e-6, in their order.
It is a copy of the weights as they were when it was made. `fullrank evaluate` and `recommend` do not use it.

No `from __future__ import annotations` here: TorchScript reads the annotations of what it compiles.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, no_type_check

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.cloze import ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItemTask
from fullrank.serving.fast_search import NONE, Best, FastSearch, Found, Hidden, Searched, compiled, end_to_end
from fullrank.serving.packed import pack_encoder

COVER = np.zeros(1, np.int64)
"""In place of an item's number, for a place whose vector is not an item's."""


@no_type_check  # nor a checker of shapes, which wraps functions while tests run
class Ranking(nn.Module):
    """Histories behind each other -> states and lists, as TorchScript compiles it."""

    __constants__ = ("covers", "cosine")

    def __init__(self, encoder: nn.Module, cover: Tensor | None, cosine: bool, temperature: float):
        super().__init__()
        self.encoder, self.covers, self.cosine, self.temperature = encoder, cover is not None, cosine, temperature
        self.cover, self.best = torch.zeros(0) if cover is None else cover.detach().clone(), Best()

    @torch.jit.export
    def states(self, vectors: Tensor, items: Tensor, lengths: list[int], times: Tensor) -> Tensor:
        """[V, D] vectors of all items, [N] items of histories of these lengths, [N] times (or none) -> [B, D]."""
        x = vectors.index_select(0, items)
        if self.covers:
            x.index_copy_(0, torch.tensor(lengths).cumsum(0) - 1, self.cover.expand(len(lengths), -1))
        y: Tensor = self.encoder(x, lengths, times)
        return y

    def forward(
        self,
        vectors: Tensor,
        searched: Searched,
        items: Tensor,
        lengths: list[int],
        times: Tensor,
        k: int,
        hidden: Hidden,
    ) -> tuple[Tensor, Tensor, int, Tensor]:
        """What `Best` gives of the states."""
        y = self.states(vectors, items, lengths, times)
        if self.cosine:
            y = F.normalize(y, dim=-1, eps=1e-12)
        y = y / self.temperature
        return self.best(y, searched, k, hidden)


class FastEncoder:
    """A trained recommender, compiled for few histories at a time. Many threads may share one."""

    def __init__(
        self, ranking: Any, reads: int, covers: bool, timed: bool, cosine: bool, vectors: Float[Tensor, "V D"]
    ):
        """Use `of`. `reads` is how many of a history's last events are read."""
        self._ranking, self._reads, self._covers, self._timed, self._cosine = ranking, reads, covers, timed, cosine
        self._vectors = vectors
        self.search = FastSearch(unit(vectors) if cosine else vectors)

    @staticmethod
    def of(model: Any) -> "FastEncoder | None":
        """The model as it is now; None for one of another kind than is known here, which has its own `answer`.

        Known are models on the CPU in 32 bits that search item vectors (of items of any kind) with a transformer of
        softmax or HSTU attention, or a GRU. Compiling takes about a second. Raises `UserError` for NaN weights.
        """
        if type(model) is not RecommenderModel or type(model.task) not in (NextItemTask, LastItemTask, ClozeTask):
            return None
        if model.items.reads_apart:  # one table of vectors serves both ends here
            return None
        if any(one.device.type != "cpu" or one.dtype != torch.float32 for one in model.parameters()):
            return None
        encoder = pack_encoder(model.encoder)
        if encoder is None:
            return None
        cover = model.task.cover if isinstance(model.task, ClozeTask) else None
        ranking = compiled(Ranking(encoder, cover, model.cosine, model.temperature).eval())
        with torch.inference_mode():
            vectors = model.items.all().detach().clone().contiguous()
            reads = model.max_length - (cover is not None)
            made = FastEncoder(ranking, reads, cover is not None, model.reads_times, model.cosine, vectors)
            made._warm_up()
        return made

    @torch.inference_mode()
    def with_items(
        self, vectors: Float[Tensor, "V D"] | None = None, barred: Bool[np.ndarray, "V"] | None = None
    ) -> "FastEncoder":
        """The same encoder over other items: `vectors` as `model.items.all()` gives them, then those of new items.

        `barred` are items that nobody is shown; they cost nothing at a request. It shares what is compiled, and without
        `vectors` the table too.
        """
        made = copy(self)
        if vectors is not None:
            made._vectors = vectors.contiguous()
            made.search = FastSearch(unit(made._vectors) if self._cosine else made._vectors)
        made.search = made.search.barring(barred)
        return made

    @torch.inference_mode()
    def states_of(
        self, histories: Sequence[Int[np.ndarray, "_"]], times: Sequence[Int[np.ndarray, "_"]] | None = None
    ) -> Float[Tensor, "B D"]:
        """Readouts (`model.task.readout`) of histories of one array of item numbers each, oldest first, as
        `model.searched` takes them. None is empty, and a model that reads times gets them."""
        return self._ranking.states(self._vectors, *self._read(histories, times))

    @torch.inference_mode()
    def lists_of(
        self,
        histories: Sequence[Int[np.ndarray, "_"]],
        k: int,
        *,
        times: Sequence[Int[np.ndarray, "_"]] | None = None,
        hidden: Sequence[Int[np.ndarray, "_"]] | None = None,
        refused: Sequence[Bool[np.ndarray, "V"] | None] | None = None,
    ) -> tuple[Float[np.ndarray, "B k"], Int[np.ndarray, "B k"]]:
        """Scores and item numbers of the k best items of each history, best first; empty places are -inf and -1.

        `hidden` are items that each row is not shown (its whole history, where seen items are excluded, and what its
        request excludes; None: nothing is hidden), `refused` a mask of items that it is not shown, or None. Raises
        `UserError` for a NaN score.
        """
        search = self.search

        def part(rows: slice, hidden: Hidden) -> Found:
            events = self._read(histories[rows], None if times is None else times[rows])
            return self._ranking(self._vectors, search.searched, *events, k, hidden)

        return search.cut(len(histories), k, hidden, refused, part)

    def _read(
        self, histories: Sequence[np.ndarray], times: Sequence[np.ndarray] | None
    ) -> tuple[Tensor, list[int], Tensor]:
        """The last events of all histories behind each other, how many each has, and their times."""
        items, moments = [row[-self._reads :] for row in histories], NONE
        lengths = [len(row) for row in items]
        if self._timed and times is not None:
            read = [row[-self._reads :] for row in times]
            moments = end_to_end([part for row in read for part in (row, row[-1:])] if self._covers else read)
        if self._covers:  # a place behind each history; its time is the last event's
            return end_to_end([part for row in items for part in (row, COVER)]), [n + 1 for n in lengths], moments
        return end_to_end(items), lengths, moments

    def _warm_up(self) -> None:
        """TorchScript settles its plan in the first calls, of few rows and of many."""
        for rows in (1, 1, 1, 8, 8, 8):
            row = np.zeros(min(9, self._reads), np.int64)
            self.lists_of([row] * rows, 1, times=[row] * rows, hidden=[row] * rows)
