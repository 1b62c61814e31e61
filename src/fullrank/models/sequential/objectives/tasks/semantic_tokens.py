"""Every position predicts all K codes of the item after it at once, each by a head of its own (RPG, Sec. 3.2; FAIR).

    head_k(h) = h + SiLU(W_k h + b_k), W_k zero at the start
    p(c_k | h) = softmax over level k of cos(head_k(h), e_{k,c}) / temperature
    loss: the mean over k of the cross-entropies (FAIR writes the sum)

The heads are one batched product. Each level is a group of queries (`code_1` ..) that searches its
own codes, so every loss serves them and each is logged. At inference all codes are scored and an
item is the mean of its codes' log p: the levels are independent given the history, so this is exact
and finds existing items alone (RPG's code validates so).

Differs: the codes of one level are scored with the table that embeds histories, as in RPG;
`scoring` of the recommender says cosine and its temperature. RPG's windows: the last `max_length`
+ 1 events of a history.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, Queries, QueryGroups, States, last
from fullrank.models.sequential.items import ItemIndex, Items
from fullrank.models.sequential.items.semantic import SemanticItems, code_items, levels_of
from fullrank.models.sequential.objectives.tasks import TaskSpec
from fullrank.models.sequential.objectives.tasks.next_item import NextItem, NextItemTask


class SemanticTokens(TaskSpec):
    """Multi-token prediction of semantic ids."""

    kind: Literal["semantic_tokens"] = "semantic_tokens"
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum over the levels' losses."""
    window: Literal["last", "random"] = "last"
    """Stretch of a history longer than max_length that an epoch reads."""

    def build(self, dim: int, max_length: int, items: Items | None = None) -> SemanticTokensTask:
        return SemanticTokensTask(dim, max_length, len(code_items(items, self.kind).sizes), self)


class SemanticTokensTask(NextItemTask):
    """`NextItem`'s rows and views; K queries a position."""

    generates = True
    featureless = "its heads predict codes of items, with which features were not tried"

    def __init__(self, dim: int, max_length: int, levels: int, spec: SemanticTokens):
        super().__init__(dim, max_length, NextItem(window=spec.window))
        self.share = 1 / levels if spec.reduction == "mean" else 1.0
        self.levels = levels
        self.weight = nn.Parameter(torch.zeros(levels, dim, dim))
        self.bias = nn.Parameter(torch.zeros(levels, dim))

    def heads_of(self, states: Float[Tensor, "M D"]) -> Float[Tensor, "M K D"]:
        """The output of every level's head for each state, as one batched product."""
        moved = F.linear(states, self.weight.flatten(0, 1), self.bias.flatten())
        return states[:, None] + F.silu(moved.unflatten(-1, (self.levels, -1)))

    def heads_of_reference(self, states: Float[Tensor, "M D"]) -> Float[Tensor, "M K D"]:
        """`heads_of`, head by head."""
        heads = zip(self.weight, self.bias, strict=True)
        return torch.stack([states + F.silu(states @ weight.T + bias) for weight, bias in heads], 1)

    def counts(self, batch: Batch) -> dict[str, int]:
        known = int((batch.lengths - 1).clamp_min(0).sum())
        return {f"code_{k}": known for k in range(1, self.levels + 1)}

    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        assert isinstance(table, ItemIndex) and isinstance(table.items, SemanticItems)
        rows, positions = batch.valid[:, 1:].nonzero(as_tuple=True)
        items = batch.items[rows, positions + 1]
        codes: Int[Tensor, "M K"] = table.items.codes[items]
        vectors = self.heads_of(states.tokens[rows, positions]).unbind(1)
        return tuple(
            Queries(f"code_{k + 1}", vectors[k], codes[:, k], level, rows, positions, weight=self.share, items=items)
            for k, level in enumerate(levels_of(table))
        )

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B K D"]:
        """One vector for each level, to be searched for among its codes."""
        return self.heads_of(last(states.tokens, inputs))
