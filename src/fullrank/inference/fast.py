"""Quick inference for a service: lists of 1 to 64 short histories on the CPU, each batch one call of TorchScript.

From numpy arrays to numpy arrays: histories -> states (`inference/packed.py`) -> scores of all items -> filters -> the
k best. It computes what `model.answer` and `exact.top_k` do, to about 1e-6, and in their order: score descending, then
id. It is a copy of the weights as they were when it was made. `fullrank evaluate` and `recommend` do not use it.

No `from __future__ import annotations` here: TorchScript reads the annotations of what it compiles.
"""

import warnings
from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.inference.batches import SCORES
from fullrank.inference.exact import select
from fullrank.inference.packed import SMALL_PRODUCT, can_pack, pack_encoder, packed
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.cloze import ClozeTask
from fullrank.models.sequential.objectives.tasks.last_item import LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItemTask

GROUP = 16
"""Items per group whose maximum is looked at first; fastest of 8, 16, 32, 64 at 12 thousand items and 8 rows."""
DIRECT = 32_768
"""Scores of a batch below which a plain selection is as fast."""
TIED, UNDEFINED = 1, 2
"""What is found of a batch's lists: equal scores among them, or a NaN; 0 where all are in order."""


@no_type_check  # nor a checker of shapes, which wraps functions while tests run
class Ranking(nn.Module):
    """Histories behind each other -> states and lists, as TorchScript compiles it."""

    __constants__ = ("covers", "cosine", "packs", "group", "direct", "small")

    def __init__(self, encoder: nn.Module, cover: Tensor | None, cosine: bool, temperature: float):
        super().__init__()
        self.encoder, self.covers, self.cosine, self.temperature = encoder, cover is not None, cosine, temperature
        self.cover = torch.zeros(0) if cover is None else cover.detach().clone()
        self.packs, self.group, self.direct, self.small = can_pack(), GROUP, DIRECT, SMALL_PRODUCT

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
        table: Tensor,
        laid_out: Tensor,
        added: Tensor | None,
        items: Tensor,
        lengths: list[int],
        times: Tensor,
        k: int,
        hidden_rows: Tensor,
        hidden: Tensor,
        masked: list[int],
        masks: list[Tensor],
    ) -> tuple[Tensor, Tensor, int, Tensor]:
        """Scores and ids of the k best, what is found of them, and the scores of all items that they were taken from.

        `table` [V, D] is what is searched, `laid_out` the same for oneDNN, `added` [V] what all rows' scores get
        (-inf: shown to nobody). Row hidden_rows[i] is not shown item hidden[i], row masked[i] none of masks[i].
        """
        states = self.states(vectors, items, lengths, times)
        if self.cosine:
            states = F.normalize(states, dim=-1, eps=1e-12)
        states = states / self.temperature
        if self.packs and len(lengths) * table.numel() >= self.small:
            scores: Tensor = torch.ops.mkldnn._linear_pointwise(states, laid_out, added, "none", [], "none")
        else:
            scores = F.linear(states, table, added)
        hide = torch.full((), -float("inf"))
        for i in range(len(masked)):
            scores[masked[i]].masked_fill_(masks[i], hide)
        if hidden.numel() > 0:
            scores.index_put_((hidden_rows, hidden), hide)
        values, ids = self.largest(scores, min(k + 1, scores.shape[1]))
        # numbers and no tensors: a comparison that is looked at costs less here than in Python
        state = 0
        if bool(((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > hide)).any()):
            state = 1
        if bool(values[:, 0].isnan().any()):
            state = 2
        values, ids = values[:, :k], ids[:, :k]
        return values, ids.masked_fill(values == hide, -1), state, scores

    def largest(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of each row [B, V], descending; which of equal values is left open (as `exact._largest`)."""
        groups = x.shape[1] // self.group
        if x.numel() <= self.direct or groups <= k:
            return x.topk(k)
        covered = groups * self.group
        maxima = x[:, :covered].unflatten(1, (self.group, groups)).amax(1)
        winners = maxima.topk(k, sorted=False)[1]
        ids = (winners[:, :, None] + torch.arange(0, covered, groups)).flatten(1)
        if covered < x.shape[1]:
            ids = torch.cat([ids, torch.arange(covered, x.shape[1]).expand(x.shape[0], -1)], 1)
        values, at = x.gather(1, ids).topk(k)
        return values, ids.gather(1, at)


class FastEncoder:
    """A trained recommender, compiled for few histories at a time. Many threads may share one."""

    def __init__(
        self, ranking: Any, reads: int, covers: bool, timed: bool, vectors: Float[Tensor, "V D"], cosine: bool
    ):
        """Use `of`. `reads` is how many of a history's last events are read."""
        self._ranking, self._reads, self._covers, self._timed, self._cosine = ranking, reads, covers, timed, cosine
        self._vectors = vectors
        self._table = unit(vectors) if cosine else vectors
        self._laid_out = packed(self._table)
        self._added: Tensor | None = None

    @staticmethod
    def of(model: Any) -> "FastEncoder | None":
        """The model as it is now; None for one of another kind than is known here, which has its own `answer`.

        Known are models on the CPU in 32 bits that search item vectors (of items of any kind) with a transformer of
        softmax or HSTU attention, or a GRU. Compiling takes about a second. Raises `UserError` for NaN weights.
        """
        if type(model) is not RecommenderModel or type(model.task) not in (NextItemTask, LastItemTask, ClozeTask):
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
            made = FastEncoder(ranking, reads, cover is not None, model.reads_times, vectors, model.cosine)
            made._warm_up()
        return made

    @property
    def num_items(self) -> int:
        """V, with those that `with_items` added."""
        return len(self._vectors)

    @torch.inference_mode()
    def with_items(
        self, vectors: Float[Tensor, "V D"] | None = None, barred: Bool[np.ndarray, "V"] | None = None
    ) -> "FastEncoder":
        """The same encoder over other items: `vectors` as `model.items.all()` gives them, then those of new items.

        `barred` are items that nobody is shown; they cost nothing at a request. It shares what is compiled.
        """
        made = self
        if vectors is not None:
            made = FastEncoder(
                self._ranking, self._reads, self._covers, self._timed, vectors.contiguous(), self._cosine
            )
        else:
            made = FastEncoder.__new__(FastEncoder)
            made.__dict__.update(self.__dict__)
        made._added = None
        if barred is not None and barred.any():
            made._added = torch.zeros(len(made._vectors)).masked_fill_(torch.from_numpy(barred), -torch.inf)
        return made

    @torch.inference_mode()
    def states(
        self, items: Int[Tensor, "B T"], lengths: Int[Tensor, "B"], times: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B D"]:
        """What `model.task.readout` gives for right-padded histories, as `model.searched` takes it."""
        counts = lengths.tolist()
        rows = [row[:n] for row, n in zip(items.numpy(), counts, strict=True)]
        moments = None if times is None else [row[:n] for row, n in zip(times.numpy(), counts, strict=True)]
        return self.states_of(rows, moments)

    @torch.inference_mode()
    def states_of(
        self, histories: Sequence[Int[np.ndarray, "_"]], times: Sequence[Int[np.ndarray, "_"]] | None = None
    ) -> Float[Tensor, "B D"]:
        """The same for histories as one array of item numbers each, oldest first."""
        made: Tensor = self._called(self._ranking.states, self._vectors, *self._packed(histories, times))
        return made

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
        `UserError` for an empty history, an item outside the catalogue, and a NaN score.
        """
        if k < 1:
            raise UserError(f"k must be at least 1, not {k}", code="invalid-list-length")
        rows, most = len(histories), max(SCORES // self.num_items, 1)
        if rows > most:
            parts = [
                self.lists_of(
                    histories[at : at + most], k, times=None if times is None else times[at : at + most],
                    hidden=None if hidden is None else hidden[at : at + most],
                    refused=None if refused is None else refused[at : at + most],
                )
                for at in range(0, rows, most)
            ]  # fmt: skip
            return np.concatenate([scores for scores, _ in parts]), np.concatenate([ids for _, ids in parts])
        hidden = () if hidden is None else hidden
        masked = [] if refused is None else [at for at, mask in enumerate(refused) if mask is not None]
        masks = [torch.from_numpy(mask) for mask in refused or () if mask is not None]
        values, ids, found, scores = self._called(
            self._ranking, self._vectors, self._table, self._laid_out, self._added,
            *self._packed(histories, times), k, *_pairs(hidden), masked, masks,
        )  # fmt: skip
        if found == TIED:
            values, ids = select(scores, k)
            ids = ids.masked_fill(values == -torch.inf, -1)
        elif found == UNDEFINED:
            raise UserError(
                "the model gave NaN scores: its weights have probably diverged; lower the learning rate or clip "
                "gradients, and train again",
                code="nan-scores",
            )
        missing = k - values.shape[1]
        if missing > 0:
            values, ids = F.pad(values, (0, missing), value=-torch.inf), F.pad(ids, (0, missing), value=-1)
        return values.numpy(), ids.numpy()

    def _packed(
        self, histories: Sequence[np.ndarray], times: Sequence[np.ndarray] | None
    ) -> tuple[Tensor, list[int], Tensor]:
        """The last events of all histories behind each other, how many each has, and their times."""
        if self._timed and times is None:
            raise UserError(
                "this model reads when events happened and the histories have no times: give them", code="missing-times"
            )
        items, moments = [row[-self._reads :] for row in histories], NONE
        if not all(map(len, items)):
            raise UserError(
                f"{sum(not len(row) for row in items)} of {len(items)} histories are empty: leave them out, or give "
                "them the most popular items",
                code="empty-history",
            )
        if self._timed and times is not None:
            read = [row[-self._reads :] for row in times]
            moments = _joined([part for row in read for part in (row, row[-1:])] if self._covers else read)
        if self._covers:  # a place behind each history, whose vector is not an item's
            return _joined([part for row in items for part in (row, COVER)]), [len(row) + 1 for row in items], moments
        return _joined(items), [len(row) for row in items], moments

    def _called(self, compute: Any, *arguments: Any) -> Any:
        try:
            return compute(*arguments)
        except (RuntimeError, IndexError) as error:
            if "out of range" in str(error) or "out of bounds" in str(error):
                raise UserError(
                    f"an item of a history, or one that it is not shown, is not in the catalogue of {self.num_items} "
                    f"items (0 to {self.num_items - 1})",
                    code="item-out-of-range",
                ) from None
            raise

    def _warm_up(self) -> None:
        """TorchScript settles its plan in the first calls, of few rows and of many."""
        for rows in (1, 1, 1, 8, 8, 8):
            row = np.zeros(min(9, self._reads), np.int64)
            self.lists_of([row] * rows, 1, times=[row] * rows, hidden=[row] * rows)


COVER = np.zeros(1, np.int64)
NONE = torch.zeros(0, dtype=torch.long)


def compiled(module: nn.Module) -> Any:
    """As TorchScript; the module itself, which computes the same, where torch can no longer compile it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return torch.jit.script(module)
        except (RuntimeError, AttributeError, NotImplementedError):
            return module


def _joined(rows: Sequence[np.ndarray]) -> Tensor:
    flat = rows[0] if len(rows) == 1 else np.concatenate(rows)
    return torch.from_numpy(np.ascontiguousarray(flat, np.int64))


def _pairs(hidden: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """(row, item) of all that rows are not shown."""
    if not len(hidden):
        return NONE, NONE
    counts = [len(row) for row in hidden]
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts)), _joined(hidden)
