"""The graph of a ranking model: encoded impressions in, click probabilities out.

Bags come padded, with their lengths, and stay so (`FusedTable.padded`, `FieldEmbedding.padded`). Sequences that must be
equally long share a letter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.data.batch import Bag, Impressions
from fullrank.data.impressions.schema import FieldInfo
from fullrank.models.ranking.embedding import FieldEmbedding
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModule
from fullrank.serving.export.graph import EXAMPLE_ROWS, Graph, Port

VALUES = 4
"""Values of a bag of the example; each has one more than the one before it, but for those that run in parallel."""


def impressions_of(
    categorical: Int[Tensor, "B F"], numeric: Float[Tensor, "B X"], bags: tuple[Bag, ...]
) -> Impressions:
    """The batch of a model from the inputs of its graph, where NaN is a missing number."""
    missing = numeric.isnan()
    return Impressions(categorical, torch.where(missing, 0.0, numeric), missing, bags)


class RankerGraph(nn.Module):
    """Categorical, numeric, then ids and lengths of each bag, as far as there are any -> probability and logit."""

    def __init__(self, model: RankingModule):
        super().__init__()
        self.categorical, self.numbers, self.bags = map(len, by_input(model.embedding.fields))
        for part in model.embedding.modules():
            if isinstance(part, FieldEmbedding | FusedTable):
                part.padded = True
        self.model = model

    def forward(self, *given: Tensor) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        left, rows = list(given), given[0].shape[0]
        categorical = left.pop(0) if self.categorical else given[0].new_zeros(rows, 0, dtype=torch.long)
        raw = left.pop(0) if self.numbers else given[0].new_zeros(rows, 0, dtype=torch.float32)
        bags = tuple(Bag(left[2 * n], left[2 * n + 1]) for n in range(self.bags))
        logits = self.model.logits(impressions_of(categorical, raw, bags)).float()
        return logits.sigmoid(), logits


KINDS = (("categorical",), ("numeric",), ("bag", "sequence"))
"""Kinds of fields by input."""


def by_input(fields: Sequence[FieldInfo]) -> list[list[FieldInfo]]:
    """The categorical fields, the numeric ones, and bags and sequences, each in the order of the schema."""
    return [[field for field in fields if field.kind in kinds] for kinds in KINDS]


def ranker_graph(model: RankingModule) -> Graph:
    """The graph of a trained ranking model, which keeps parts of `model`: give one that nobody else uses."""
    categorical, numeric, bags = by_input(model.embedding.fields)
    inputs: list[Port] = []
    example: list[Tensor] = []
    if categorical:
        names = ", ".join(field.name for field in categorical)
        inputs.append(Port("categorical", "int64", ("B", len(categorical)), f"ids of {names}: 0 missing, 1 unknown"))
        example.append(torch.zeros(EXAMPLE_ROWS, len(categorical), dtype=torch.long))
    if numeric:
        names = ", ".join(field.name for field in numeric)
        inputs.append(Port("numeric", "float32", ("B", len(numeric)), f"{names}, transformed; NaN where missing"))
        example.append(torch.zeros(EXAMPLE_ROWS, len(numeric)))
    first = {number: group[0] for group in model.embedding.equally_long for number in group}
    for number, field in enumerate(bags):
        own = first.get(number, number)
        letter = f"L{own}"
        inputs += [
            Port(f"bag_{number}", "int64", ("B", letter), f"ids of {field.name}, padded at the right by any id"),
            Port(f"bag_lengths_{number}", "int64", ("B",), f"values of {field.name}, 0 where it is missing"),
        ]
        wide: Int[Tensor, "B L"] = torch.zeros(EXAMPLE_ROWS, VALUES + own, dtype=torch.long)
        example += [wide, torch.tensor([2, 0, 1])]
    outputs = (
        Port("probability", "float32", ("B",), "of a click"),
        Port("logit", "float32", ("B",), "before the sigmoid: apart where probabilities near 0 or 1 no longer are"),
    )
    return Graph(RankerGraph(model).eval(), tuple(inputs), outputs, tuple(example), {})
