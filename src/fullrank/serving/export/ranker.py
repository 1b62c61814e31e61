"""The graph of a ranking model: encoded impressions in, click probabilities out.

Bags come padded, with their lengths; pooling them is written as a gather and a masked sum, which every runtime has, and
so is attention to histories (`FieldEmbedding.padded`). Sequences that must be equally long share a letter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.data.batch import Bag, Impressions
from fullrank.data.impressions.fields import FieldInfo
from fullrank.models.ranking.fused import Found, FusedTable, inside_of
from fullrank.models.ranking.model import RankingModule
from fullrank.serving.export.graph import EXAMPLE_ROWS, Graph, Port

VALUES = 4
"""Values of a bag of the example; each has one more than the one before it, but for those that run in parallel."""


class PaddedTable(nn.Module):
    """A `FusedTable` whose bags stay padded."""

    def __init__(self, inner: FusedTable):
        super().__init__()
        self.inner, self.starts = inner, inner.starts

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """The vectors of some ids of a field."""
        return self.inner.rows(name, ids)

    def forward(self, batch: Impressions) -> Found:
        inner = self.inner
        found: Found = []
        if inner.places:
            found.append((inner.places, F.embedding(inner.row_ids(batch), inner.table)))
        for number, place, start in inner.pooled:
            pooled = pool(batch.bags[number], start, inner.table, mean=inner.mode == "mean")
            found.append(([place], pooled[:, None]))
        return found


def pool(bag: Bag, start: int, table: Float[Tensor, "N E"], *, mean: bool) -> Float[Tensor, "B E"]:
    """The sum (or mean) of each row's vectors, which begin at row `start`; a row without values has the missing one."""
    inside, ids = inside_of(bag)
    vectors = F.embedding(ids + start, table)
    pooled = (vectors * inside[..., None].to(vectors.dtype)).sum(1)
    return pooled / bag.lengths.clamp_min(1)[:, None].to(pooled.dtype) if mean else pooled


class RankerGraph(nn.Module):
    """Categorical, numeric, then ids and lengths of each bag, as far as there are any -> probability and logit."""

    def __init__(self, model: RankingModule):
        super().__init__()
        fields = model.embedding.fields
        self.categorical, self.numbers, self.bags = (len(of_kind(fields, *kinds)) for kinds in KINDS)
        embedding = model.embedding
        embedding.tables = nn.ModuleList(PaddedTable(table) for table in embedding.tables)  # type: ignore[arg-type]
        if embedding.linear_table is not None:
            embedding.linear_table = PaddedTable(embedding.linear_table)  # type: ignore[assignment]
        embedding.padded = True
        for group, table in embedding.contexts.items():
            embedding.contexts[group] = PaddedTable(table)  # type: ignore[arg-type]
        self.model = model

    def forward(self, *given: Tensor) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        left, rows = list(given), given[0].shape[0]
        categorical = left.pop(0) if self.categorical else given[0].new_zeros(rows, 0, dtype=torch.long)
        raw = left.pop(0) if self.numbers else given[0].new_zeros(rows, 0, dtype=torch.float32)
        missing = raw.isnan()
        bags = tuple(Bag(left[2 * n], left[2 * n + 1]) for n in range(self.bags))
        batch = Impressions(categorical, torch.where(missing, 0.0, raw), missing, bags)
        logits = self.model.logits(batch).float()
        return logits.sigmoid(), logits


KINDS = (("categorical",), ("numeric",), ("bag", "sequence"))
"""Kinds of fields by input."""


def of_kind(fields: tuple[FieldInfo, ...], *kinds: str) -> list[FieldInfo]:
    """The fields of some kinds, in the order of the schema: the columns of an input."""
    return [field for field in fields if field.kind in kinds]


def ranker_graph(model: RankingModule) -> Graph:
    """The graph of a trained ranking model, which keeps parts of `model`: give one that nobody else uses."""
    categorical, numeric, bags = (of_kind(model.embedding.fields, *kinds) for kinds in KINDS)
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
