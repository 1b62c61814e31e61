"""Every code is predicted from the history and the codes before it: generative retrieval (TIGER, arXiv:2305.05065).

An event is K tokens, the codes of its item, and a history is one row of them, read by a causal encoder in one pass:

    x_{tK + k} = e_{k, c_k(t)} + l_k        the vector of item t's code of level k, and that of the level
    p(c_k | history, c_1 .. c_{k-1}) = softmax over level k of s(h, e_{k,c}) / temperature

where h is the state of the token before. All items of a history but the first are targets at once (teacher forcing), so
a row of T events trains (T - 1) K predictions; TIGER's encoder and decoder read a history anew for each of them. The
loss is that of any recommender, level by level (`code_1` ..): `label_smoothing` is the loss's own, and the temperature
of `scoring` is LETTER's of the ranking-guided loss (arXiv:2405.07314, Eq. 7).

Differs: a decoder alone instead of TIGER's encoder and decoder; no user token; the codes that are searched have the
vectors of those that are read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from fullrank.data.batch import Batch, ItemVectors, Queries, States, last
from fullrank.models.initial import small
from fullrank.models.sequential.items import ItemIndex, Items
from fullrank.models.sequential.items.semantic import SemanticItems, code_items, levels_of
from fullrank.models.sequential.objectives.tasks import TaskSpec
from fullrank.models.sequential.objectives.tasks.next_item import NextItem, NextItemTask


class Generate(TaskSpec):
    """Generation of semantic ids, code by code."""

    kind: Literal["generate"] = "generate"
    reduction: Literal["mean", "sum"] = "mean"
    """Of the levels' losses."""
    window: Literal["last", "random"] = "last"
    """Which stretch of a history longer than max_length an epoch reads."""

    def positions(self, max_length: int, items: Items) -> int:
        return (max_length + 1) * len(code_items(items, self.kind).sizes)

    def build(self, dim: int, max_length: int, items: Items | None = None) -> GenerateTask:
        return GenerateTask(dim, max_length, len(code_items(items, self.kind).sizes), self)


class GenerateTask(NextItemTask):
    """`NextItem`'s rows, K tokens an event."""

    generates = True
    code_by_code = True

    def __init__(self, dim: int, max_length: int, levels: int, spec: Generate):
        super().__init__(dim, max_length, NextItem(window=spec.window))
        self.share = 1 / levels if spec.reduction == "mean" else 1.0
        self.levels = self.tokens_per_event = levels
        self.level_vectors = small(levels, dim)

    def counts(self, batch: Batch) -> dict[str, int]:
        known = int((batch.lengths - 1).clamp_min(0).sum())
        return {f"code_{k}": known for k in range(1, self.levels + 1)}

    def training_inputs(self, items: Items, batch: Batch) -> tuple[Float[Tensor, "B T D"], Batch]:
        x, inputs = self.inference_inputs(items, batch)
        # nothing follows the last code of a row: it is a target alone
        return x[:, :-1], replace(inputs, items=inputs.items[:, :-1], lengths=inputs.lengths - 1)

    def inference_inputs(self, items: Items, batch: Batch) -> tuple[Float[Tensor, "B T D"], Batch]:
        own = code_items(items, "generate")
        repeated = batch.items.repeat_interleave(self.levels, 1)
        # codes that are generated happen at no time, so nothing here has one
        inputs = replace(batch, items=repeated, lengths=batch.lengths * self.levels, times=None)
        return self.tokens(own, own.codes[batch.items]).flatten(1, 2), inputs

    def tokens(self, items: SemanticItems, codes: Int[Tensor, "*n K"]) -> Float[Tensor, "*n K D"]:
        """What the encoder reads of these codes, one of each level."""
        return items.table[codes + items.offsets] + self.level_vectors

    def token(self, items: SemanticItems, codes: Int[Tensor, "*n"], level: int) -> Float[Tensor, "*n D"]:
        """What the encoder reads of codes of one level."""
        return items.table[codes + items.offsets[level]] + self.level_vectors[level]

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> tuple[Queries, ...]:
        assert isinstance(table, ItemIndex)
        rows, before = batch.valid[:, 1:].nonzero(as_tuple=True)
        items = batch.items[rows, before + 1]
        codes: Int[Tensor, "M K"] = code_items(table.items, "generate").codes[items]
        found = []
        for k, level in enumerate(levels_of(table)):
            at = (before + 1) * self.levels + k - 1
            vectors = states.tokens[rows, at]
            name = f"code_{k + 1}"
            found.append(Queries(name, vectors, codes[:, k], level, rows, at, weight=self.share, items=items))
        return tuple(found)

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"]:
        """The state that the first code is predicted from."""
        return last(states.tokens, inputs)
