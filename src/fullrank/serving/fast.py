"""Quick inference for a service: lists of 1 to 64 short histories on the CPU, each batch one call of TorchScript.

From numpy arrays to numpy arrays: histories -> states -> scores of all items, filters, the k best
(`serving/fast_search.py`). It computes what `model.answer` and `exact.top_k` do, to about 1e-6, in
their order. It is a copy of the weights as they were when it was made. `fullrank evaluate` and
`recommend` do not use it.

The encoder is packed (`serving/packed_encoders.py`): it differs from the model's own forward pass
in what is left out, not in what is computed: no padding; the last layer computes the last event of
each history alone, all that a list is made of; products by oneDNN over weights that are laid out
for it once. TorchScript runs all of it as one call: it holds no lock of Python meanwhile, so that
an event loop in another thread goes on. Features beside the items are added to their vectors before
that call (`serving/packed_features.py`); where they are fused otherwise, the model's own code reads
them. N events of all B histories; `serving/packed_attention.py` says why signatures look as they
do.

No `from __future__ import annotations` here: TorchScript reads the annotations of what it compiles.
"""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import Any, cast, no_type_check

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.data.batch import Batch, BatchFeatures
from fullrank.data.features import HistoryFeatures
from fullrank.data.histories import Histories
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks import HistoryTask
from fullrank.models.sequential.objectives.tasks.cloze import ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItemTask
from fullrank.serving.fast_search import (
    NONE,
    Best,
    Hidden,
    ScoredLists,
    Searched,
    barring,
    compiled,
    cut,
    end_to_end,
    searched_items,
)
from fullrank.serving.packed_encoders import pack_encoder
from fullrank.serving.packed_features import PackedFeatures
from fullrank.serving.requests import Rows, jagged

COVER = np.zeros(1, np.int64)
"""Stands for an item's number at the covered place, whose vector is put in afterwards (`Ranking.states`)."""
Events = tuple[Tensor, Tensor, list[int], Tensor]
"""Vectors; the row among them of each event, history after history; the lengths of the histories; times."""


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
        """States [B, D] of histories: from vectors [V, D] of all items, [N] items,
        lengths, and [N] times (or none)."""
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
        """Lists for the states of histories, as `Best` gives them."""
        y = self.states(vectors, items, lengths, times)
        if self.cosine:
            y = F.normalize(y, dim=-1, eps=1e-12)
        y = y / self.temperature
        return self.best(y, searched, k, hidden)


class FastEncoder:
    """A trained recommender, compiled for few histories at a time. Many threads may share one."""

    def __init__(self, model: RecommenderModel, ranking: Any):
        """Called by `of`, which compiles `ranking`."""
        self._ranking, self._timed, self._cosine = ranking, model.reads_times, model.cosine
        self._covers, self._roles = isinstance(model.task, ClozeTask), model.reads_features
        self._beside: Any = None
        self._packed: PackedFeatures | None = None
        self._read_beside(model.task)
        self._reads = model.max_length - self._covers
        """Most last events of a history that are read."""
        self._set_vectors(model.items.all().detach().clone())

    def _read_beside(self, task: Any) -> None:
        """Read features as this task does; without padding where they are only added."""
        if self._roles is not None:
            reader = deepcopy(cast(HistoryTask, task))
            self._beside = reader.beside
            self._packed = None if self._covers or reader.features is None else PackedFeatures.of(reader.features)

    def _set_vectors(self, vectors: Float[Tensor, "V D"]) -> None:
        self._vectors = vectors.contiguous()
        self.searched = searched_items(unit(self._vectors) if self._cosine else self._vectors)

    @staticmethod
    def of(model: Any) -> "FastEncoder | None":
        """The model as it is now; None for one of another kind than is known here, which has its own `answer`.

        Known are models on the CPU in 32 bits that search item vectors (of items of any kind) with
        a transformer of softmax or HSTU attention, the filters of FMLP-Rec, or a GRU. Compiling
        takes about a second. Raises `UserError` for NaN weights.
        """
        if type(model) is not RecommenderModel or type(model.task) not in (NextItemTask, LastItemTask, ClozeTask):
            return None
        if model.items.reads_apart:  # one table of vectors serves both ends here
            return None
        if any(parameter.device.type != "cpu" or parameter.dtype != torch.float32 for parameter in model.parameters()):
            return None
        encoder = pack_encoder(model.encoder)
        if encoder is None:
            return None
        cover = model.task.cover if isinstance(model.task, ClozeTask) else None
        ranking = compiled(Ranking(encoder, cover, model.cosine, model.temperature).eval())
        with torch.inference_mode():
            fast = FastEncoder(model, ranking)
            fast._warm_up()
        return fast

    @torch.inference_mode()
    def with_items(
        self,
        vectors: Float[Tensor, "V D"] | None = None,
        barred: Bool[np.ndarray, "V"] | None = None,
        task: Any = None,
    ) -> "FastEncoder":
        """The encoder over other items: `vectors` as `model.items.all()` gives them, then those of new items.

        `task` is that of the model with these items, which features are read by (an item's age is
        made of its first event). `barred` are items that nobody is shown; they cost nothing at a
        request. It shares what is compiled, and without `vectors` the table too.
        """
        other = copy(self)
        if vectors is not None:
            other._set_vectors(vectors)
        if task is not None:
            other._read_beside(task)
        other.searched = barring(other.searched, barred)
        return other

    @torch.inference_mode()
    def states_of(
        self,
        histories: Rows,
        times: Rows | None = None,
        features: HistoryFeatures | None = None,
    ) -> Float[Tensor, "B D"]:
        """Readouts of histories (`model.task.readout`), as `model.searched` takes them.

        Each history is an array of item numbers, oldest first, and none is empty. `times` are for a
        model that reads them; `features`, beside all events, for a model that reads those."""
        return self._ranking.states(*self._reader(histories, times, features)(slice(None)))

    @torch.inference_mode()
    def lists_of(
        self,
        histories: Rows,
        k: int,
        *,
        times: Rows | None = None,
        hidden: Rows | None = None,
        refused: Sequence[Bool[np.ndarray, "V"] | None] | None = None,
        features: HistoryFeatures | None = None,
    ) -> tuple[Float[np.ndarray, "B k"], Int[np.ndarray, "B k"]]:
        """Scores and numbers of the k best items of each history, best first; -inf and -1 in empty places.

        `hidden` are items that each row is not shown (its whole history, where seen items are
        excluded, and what its request excludes; None: nothing is hidden), `refused` a mask of items
        that it is not shown, or None. Raises `UserError` for a NaN score.
        """
        read = self._reader(histories, times, features)

        def part(rows: slice, hidden: Hidden) -> ScoredLists:
            vectors, *events = read(rows)
            return self._ranking(vectors, self.searched, *events, k, hidden)

        return cut(len(histories), k, self.searched, hidden, refused, part)

    def _reader(
        self,
        histories: Rows,
        times: Rows | None,
        features: HistoryFeatures | None,
    ) -> Callable[[slice], Events]:
        """The encoder's inputs, as a function of a slice of the rows."""
        if self._beside is None:
            return lambda rows: self._items_of(histories[rows], None if times is None else times[rows])
        moments = np.concatenate(times) if self._timed and times is not None else None
        whole = Histories(jagged(histories), moments, features=features)
        return lambda rows: self._vectors_of(whole.take(rows))

    def _items_of(self, histories: Rows, times: Rows | None) -> Events:
        """The last events of all histories behind each other."""
        items, moments = [row[-self._reads :] for row in histories], NONE
        lengths = [len(row) for row in items]
        if self._timed and times is not None:
            read = [row[-self._reads :] for row in times]
            moments = end_to_end([part for row in read for part in (row, row[-1:])] if self._covers else read)
        if self._covers:  # a place behind each history; its time is the last event's
            ends = [n + 1 for n in lengths]
            return self._vectors, end_to_end([part for row in items for part in (row, COVER)]), ends, moments
        return self._vectors, end_to_end(items), lengths, moments

    def _vectors_of(self, histories: Histories) -> Events:
        """The last events with features, a vector for each place; rows are padded
        where it is more than a sum."""
        assert self._beside is not None and self._roles is not None
        items, moments = histories.items.last(self._reads), histories.times
        if self._packed is not None:
            at = None if moments is None else items.over(moments).flat()
            vectors = F.embedding(torch.from_numpy(items.flat().astype(np.int64, copy=False)), self._vectors)
            vectors += self._packed.added(items, at, histories.features)
            known = NONE if at is None or not self._timed else torch.from_numpy(at.astype(np.int64, copy=False))
            return vectors, torch.arange(len(vectors)), items.lengths.tolist(), known
        batch = Batch(
            torch.from_numpy(items.padded().astype(np.int64, copy=False)),
            torch.from_numpy(items.lengths),
            times=None if moments is None else torch.from_numpy(items.over(moments).padded().astype(np.int64)),
            features=BatchFeatures.of(histories.features, items, self._roles),
        )
        x, inputs = self._beside(F.embedding(batch.items, self._vectors), batch)
        valid = inputs.valid
        vectors, known = x[valid], NONE if inputs.times is None else inputs.times[valid]
        return vectors, torch.arange(len(vectors)), inputs.lengths.tolist(), known

    def _warm_up(self) -> None:
        """Answer a few times, of few rows and of many: TorchScript settles
        its plan in the first calls."""
        for rows in (1, 1, 1, 8, 8, 8):
            row = np.zeros(min(9, self._reads), np.int64)
            self.lists_of([row] * rows, 1, times=[row] * rows, hidden=[row] * rows)
