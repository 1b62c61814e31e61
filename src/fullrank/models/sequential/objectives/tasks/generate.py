"""Every code is predicted from the history and the codes before it: generative retrieval (TIGER, arXiv:2305.05065).

An event is K tokens, the codes of its item, and a history is one row of them, read by a
causal encoder in one pass:

    x_{tK + k} = e_{k, c_k(t)} + l_k        the vector of item t's code of level k, and that of the level
    p(c_k | history, c_1 .. c_{k-1}) = softmax over level k of s(h, e_{k,c}) / temperature

where h is the state of the token before. All items of a history but the first are targets at once
(teacher forcing), so a row of T events trains (T - 1) K predictions. An encoder and a decoder
(TIGER's T5, `encoder: seq2seq`) read a history anew for each target: `targets: last` makes every
prefix of a history a row, of which the last item is the target.

The loss is that of any recommender, level by level (`code_1` ..): `label_smoothing` is the
loss's own, and the temperature of `scoring` is LETTER's of the ranking-guided loss
(arXiv:2405.07314, Eq. 7).

`user_tokens` puts one token more before the history, the user's: row (key modulo rows) of a table,
where the key is a hash of the id (TIGER has 2,000 rows). A user who was not trained on reads what
the others of that row have taught it; a user without an id reads zeros.

To answer, the history is read once. Its keys are kept, and those of each beam as it grows, so that
a further code costs one token a beam (`Encoder.step`). `GeneratedScorer.block` scores items by the
log-probability of all their codes, one by one: that is exact, and what a beam is measured by. A
search scores only what it reaches (`inference/trie_beam.py`).

Differs: the codes that are searched have the vectors of those that are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.constraints import CountFromZero, Length, only_with
from fullrank.core.spec import later
from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, Queries, QueryGroups, States, last
from fullrank.models.sequential.encoders import Cache, Encoder
from fullrank.models.sequential.items import ItemIndex, Items, unit
from fullrank.models.sequential.items.semantic import CodeLevel, SemanticItems, code_items, levels_of
from fullrank.models.sequential.objectives.tasks import Inputs, Segments, Task, TaskSpec
from fullrank.models.sequential.objectives.tasks.last_item import LastItem, LastItemTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItem, NextItemTask
from fullrank.ops.starting_values import small


class Generate(TaskSpec):
    """Generation of semantic ids, code by code."""

    kind: Literal["generate"] = "generate"
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum over the levels' losses."""
    targets: Literal["all", "last"] = later("all")
    """Items of a row that are predicted: all but the first, in one pass of a causal encoder, or the last."""
    per_user: Annotated[Length | None, only_with("targets", "last")] = later(None)
    """Prefixes per user and epoch, drawn without replacement (of `targets=last`); null takes all."""
    user_tokens: CountFromZero = later(0)
    """Rows of the table of users, which are told apart by a hash of their ids (TIGER: 2,000); 0 reads no users."""
    window: Annotated[Literal["last", "random"], only_with("targets", "all")] = "last"
    """Stretch of a history longer than max_length that an epoch reads (of `targets=all`)."""

    def positions(self, max_length: int, items: Items) -> int:
        return (self.user_tokens > 0) + (max_length + 1) * len(code_items(items, self.kind).sizes)

    def build(self, dim: int, max_length: int, items: Items | None = None) -> GenerateTask:
        return GenerateTask(dim, max_length, len(code_items(items, self.kind).sizes), self)


class GenerateTask(Task):
    """Rows of `NextItem` or `LastItem`, K tokens an event."""

    generates = True
    code_by_code = True
    featureless = "an event takes several places of it, one for each code of its item"

    def __init__(self, dim: int, max_length: int, levels: int, spec: Generate):
        super().__init__()
        self.all_items = spec.targets == "all"
        self.causal = True if self.all_items else None
        self.rows: Task = (
            NextItemTask(dim, max_length, NextItem(window=spec.window))
            if self.all_items
            else LastItemTask(max_length, LastItem(per_user=spec.per_user))
        )
        self.share = 1 / levels if spec.reduction == "mean" else 1.0
        self.levels = self.tokens_per_event = levels
        self.level_vectors = small(levels, dim)
        self.users = small(spec.user_tokens, dim) if spec.user_tokens else None
        self.reads_users, self.tokens_before = self.users is not None, int(self.users is not None)

    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> Segments:
        return self.rows.segments(lengths, draw)

    def counts(self, batch: Batch) -> dict[str, int]:
        known = int((batch.lengths - 1).clamp_min(0).sum()) if self.all_items else len(batch.lengths)
        return {f"code_{k}": known for k in range(1, self.levels + 1)}

    def training_inputs(self, items: Items, batch: Batch) -> Inputs:
        x, inputs = self.inference_inputs(items, batch)
        # nothing follows the last code of a row: it is a target alone
        answer = self.levels - 1
        return x[:, :-1], replace(inputs, items=inputs.items[:, :-1], lengths=inputs.lengths - 1, answer=answer)

    def inference_inputs(self, items: Items, batch: Batch) -> Inputs:
        repeated = batch.items.repeat_interleave(self.levels, 1)
        # codes that are generated happen at no time, so nothing here has one
        inputs = replace(batch, items=repeated, lengths=batch.lengths * self.levels, times=None)
        x = (items.code_vectors(batch.items) + self.level_vectors).flatten(1, 2)
        if self.users is None:
            return x, inputs
        before = torch.zeros_like(repeated[:, :1])
        inputs = replace(inputs, items=torch.cat([before, repeated], 1), lengths=inputs.lengths + 1)
        keys = batch.user_keys
        if keys is None:
            user = self.users.new_zeros(len(batch.items), self.users.shape[1])
        else:
            user = self.users[keys % len(self.users)] * (keys >= 0)[:, None]
        return torch.cat([user[:, None].to(x.dtype), x], 1), inputs

    def token(self, items: SemanticItems, codes: Int[Tensor, "*n"], level: int) -> Float[Tensor, "*n D"]:
        """Encoder inputs for codes of one level."""
        return items.table[codes + items.offsets[level]] + self.level_vectors[level]

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        assert isinstance(table, ItemIndex)
        predicted = batch.valid[:, 1:]
        if not self.all_items:
            ends = batch.lengths[:, None] - 1
            predicted = predicted & (torch.arange(1, batch.items.shape[1], device=ends.device) == ends)
            # `counts` has every row
            assert bool(predicted.any(1).all()), "a row of one item has no history"
        rows, before = predicted.nonzero(as_tuple=True)
        items = batch.items[rows, before + 1]
        codes: Int[Tensor, "M K"] = code_items(table.items, "generate").codes[items]
        groups = []
        for k, level in enumerate(levels_of(table)):
            # code k of the event after `before` is predicted by the token in front of it
            at = self.tokens_before + (before + 1) * self.levels + k - 1
            vectors = states.tokens[rows, at]
            name = f"code_{k + 1}"
            groups.append(Queries(name, vectors, codes[:, k], level, rows, at, weight=self.share, items=items))
        return tuple(groups)

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"]:
        """The state that the first code is predicted from."""
        return last(states.tokens, inputs)


STREAMS = 1 << 14
"""Most streams (users x items) that `block` has alive at once."""


@dataclass(frozen=True)
class GeneratedScorer:
    """Satisfies `models.Scorer`: an item's score is the log-probability of its codes."""

    encoder: Encoder
    task: GenerateTask
    items: SemanticItems
    levels: tuple[CodeLevel, ...]
    start: Float[Tensor, "B D"]
    """The state behind the history, which the first code is predicted from."""
    cache: Cache
    temperature: float
    cosine: bool

    @property
    def size(self) -> int:
        return self.items.size

    def first(self) -> Float[Tensor, "B C"]:
        """log p of each code of the first level."""
        return self._log_p(self.start, 0)

    def after(self, codes: Int[Tensor, "B P"], level: int, cache: Cache) -> tuple[Float[Tensor, "B P C"], Cache]:
        """log p of each code of the level behind `level`, after these codes of it in P streams; and the cache."""
        state, cache = self.encoder.step(self.task.token(self.items, codes, level), cache)
        return self._log_p(state, level + 1), cache

    @torch.inference_mode()
    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        users = len(self.start)
        parts = self.items.codes[low:high].split(max(STREAMS // max(users, 1), 1))
        return torch.cat([self.score_tuples(codes) for codes in parts], 1)

    def score_tuples(self, codes: Int[Tensor, "n K"]) -> Float[Tensor, "B n"]:
        """log p of these tuples of codes for every user, by teacher forcing."""
        users, cache = len(self.start), self.cache
        total = self.first()[:, codes[:, 0]]
        for level in range(codes.shape[1] - 1):
            log_p, cache = self.after(codes[:, level].expand(users, -1), level, cache)
            wanted = codes[:, level + 1].expand(users, -1)[..., None]
            total = total + log_p.gather(2, wanted)[..., 0]
        return total

    def _log_p(self, states: Float[Tensor, "*n D"], level: int) -> Float[Tensor, "*n C"]:
        """log p of each code of a level, predicted from these states."""
        vectors = unit(states) if self.cosine else states
        return (vectors / self.temperature @ self.levels[level].vectors.T).float().log_softmax(-1)
