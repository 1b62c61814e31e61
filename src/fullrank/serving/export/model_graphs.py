"""Graphs of both families of models: of a recommender and of a ranking model.

The graph of a recommender takes histories, and the features that it reads, and gives the k
best items, with the seen and excluded items masked inside. The vectors of all items are
constants of the graph, made once when it is exported, whatever they were made of (a table,
text, features, codes). For cosine scores the graph holds the unit vectors and their lengths,
so that one table serves both ends.

Into the graph of a ranking model encoded impressions go and click probabilities come out. Bags come
padded, with their lengths, and stay so (`FusedTable.padded`, `FieldEmbedding.padded`). Sequences
that must be equally long share a letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from fullrank.core.errors import UserError
from fullrank.data.batch import Bag, Batch, BatchFeatures, Fields, Impressions
from fullrank.data.events.feature_files import OF_EVENTS
from fullrank.data.events.features import encoder_of
from fullrank.data.features import NO_TIME
from fullrank.data.impressions.schema import FieldInfo
from fullrank.models import Budget, Scorer
from fullrank.models.ranking.embedding import FieldEmbedding
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.attention.hstu import HSTUAttention, bucket_edges
from fullrank.models.sequential.encoders.fmlp import Filter, FMLPBlock
from fullrank.models.sequential.items import ItemIndex, Items, unit
from fullrank.models.sequential.items.event_features import FeatureReader
from fullrank.models.sequential.items.semantic import CodeScorer
from fullrank.models.sequential.model import RecommenderModel
from fullrank.serving.export.graph import EXAMPLE_ROWS, Graph, Port

EXCLUDED = 5
"""Excluded items of the example."""
LENGTHS = (7, 6, 4, 2)
"""Events of the example: the first that the model can read. None equals `EXAMPLE_ROWS` or
`EXCLUDED`, and why see there."""


class FrozenItems(Items):
    """Item vectors as constants, of length one where the scores are cosines."""

    table: Tensor
    norms: Tensor | None
    events: Tensor | None

    def __init__(self, items: Items, *, normalise: bool):
        super().__init__()
        vectors = items.all()
        self.size = len(vectors)
        self.register_buffer("table", (unit(vectors) if normalise else vectors).contiguous())
        self.register_buffer("norms", vectors.norm(dim=-1, keepdim=True) if normalise else None)
        self.register_buffer("events", items.read(torch.arange(self.size)) if items.reads_apart else None)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        vectors = nn.functional.embedding(ids, self.table)
        return vectors if self.norms is None else vectors * nn.functional.embedding(ids, self.norms)

    def read(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        return self.embed(ids) if self.events is None else nn.functional.embedding(ids, self.events)

    def all(self) -> Float[Tensor, "V D"]:
        return self.table


class RecommenderGraph(nn.Module):
    """Items, lengths, excluded items, times and features where the model reads them -> scores and ids of the k best."""

    def __init__(self, model: RecommenderModel, k: int, names: Sequence[str], *, hide_seen: bool, budget: Budget):
        super().__init__()
        self.names = tuple(names)
        """Names of the inputs, in order."""
        self.k, self.hide_seen, self.budget = min(k, model.num_items), hide_seen, budget
        for part in list(model.encoder.modules()):
            if isinstance(part, HSTUAttention) and part.by_time is not None:
                part.bucket_edges = bucket_edges()
            if isinstance(part, FMLPBlock):
                part.register_module("filter", Convolution(part.filter))
        for idle in ("loss", "weighting", "penalties"):  # their tensors would be shipped
            delattr(model, idle)
        by_codes, cosine = model.task.generates, model.cosine
        with torch.no_grad():
            frozen = FrozenItems(model.items, normalise=cosine and not by_codes)
        self.coded, self.normalise = model.items if by_codes else None, cosine and by_codes
        model.items = frozen
        self.model = model

    def forward(self, *given: Tensor) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
        inputs = dict(zip(self.names, given, strict=True))
        items, lengths, excluded = inputs["items"], inputs["lengths"], inputs["excluded"]
        batch = Batch(items, lengths, times=inputs.get("times"))
        if self.model.features is not None:
            event, request, user, answered = (_fields(inputs, name) for name in (*OF_EVENTS, "user", "asked"))
            batch = replace(batch, features=BatchFeatures(event, request, user, answered, inputs.get("asked_at")))
        searched = self.model.items if self.coded is None else self.coded
        index = ItemIndex(searched, normalise=self.normalise)
        scores = _all_scores(self.model.answer(batch, index=index, budget=self.budget)).float()
        hidden = excluded
        if self.hide_seen:
            valid = torch.arange(items.shape[1], device=items.device) < lengths[:, None]
            hidden = torch.cat([torch.where(valid, items, -1), excluded], 1)
        # Hidden items fall to -inf by a minimum; a padding place takes the minimum with +inf,
        # which changes nothing.
        ceiling = torch.where(hidden < 0, torch.inf, -torch.inf)
        scores = scores.scatter_reduce(1, hidden.clamp_min(0), ceiling, "amin")
        values, ids = scores.topk(self.k)
        return values, ids.masked_fill(values == -torch.inf, -1)


def _all_scores(scorer: Scorer) -> Float[Tensor, "B V"]:
    """The scores of all items; of codes by look-ups, which every runtime has."""
    if isinstance(scorer, CodeScorer):
        by_level = [scorer.levels.index_select(0, rows) for rows in scorer.rows.unbind(1)]
        return sum(by_level[1:], by_level[0]).T
    return scorer.block(0, scorer.size)


def _fields(inputs: Mapping[str, Tensor], name: str) -> Fields:
    """The features of events, requests or users of a batch, from the inputs of `feature_ports`."""
    none = inputs["items" if name in OF_EVENTS else "lengths"][..., None][..., :0]
    numbers = inputs.get(f"{name}_numeric", none.float())
    missing, ids = numbers.isnan(), inputs.get(f"{name}_categorical", none)
    bags = (bag for key, bag in inputs.items() if key.startswith(f"{name}_bag_"))
    return Fields(ids, torch.where(missing, 0.0, numbers), missing, tuple(bags))


def feature_inputs(known: BatchFeatures, places: int) -> dict[str, np.ndarray]:
    """The inputs of the features of a batch: rows padded to `places`, lists to the longest of all."""
    parts = {name: fields for name, fields in vars(known).items() if isinstance(fields, Fields)}
    longest = max([1, *(bag.shape[-1] for fields in parts.values() for bag in fields.bags)])
    inputs = {} if known.asked_at is None else {"asked_at": known.asked_at}
    for name, fields in parts.items():
        more = (0, places - fields.ids.shape[1]) if name in OF_EVENTS else ()
        kinds = {"categorical": fields.ids.long(), "numeric": torch.where(fields.missing, torch.nan, fields.numbers)}
        kinds |= {f"bag_{n}": pad(bag.long(), (0, longest - bag.shape[-1])) for n, bag in enumerate(fields.bags)}
        inputs |= {f"{name}_{kind}": pad(x, (0, 0, *more)) for kind, x in kinds.items()}
    return {name: x.numpy() for name, x in inputs.items()}


def feature_ports(reader: FeatureReader) -> list[Port]:
    """The inputs of features, role by role: encoded fields, and the request's time where it is read."""
    ports: list[Port] = []
    for name, part in reader.vectors.items():
        role: Any = "request" if name == "asked" else name
        fields, rows = encoder_of(reader.known, role).fields, ("B", "T") if name in OF_EVENTS else ("B",)
        ports += _field_ports(fields, rows, f"{name}_")
        for n, bag in enumerate(by_input(fields)[2]):
            ports.append(Port(f"{name}_bag_{n}", "int64", (*rows, f"L_{role}_{n}"), f"ids of {bag.name}, padded by 0"))
        if name == "asked" and part.made:
            ports.append(Port("asked_at", "int64", ("B",), f"when it is asked, as times; {NO_TIME} where unknown"))
    return ports


def recommender_graph(model: Any, k: int, *, hide_seen: bool, budget: Budget) -> Graph:
    """The graph of a trained recommender, which keeps parts of `model`: give one that nobody else uses.

    `k` is cut to the catalogue. Of a reasoner the graph takes the steps of `budget`, which has no
    adaptive stopping (`make._fixed_budget`). Raises `UserError` for a recommender without gradient
    descent, which has no graph.
    """
    if not isinstance(model, RecommenderModel):
        raise UserError(
            f"{type(model).__name__} looks its answers up and has no graph; export a recommender that "
            "was trained by gradient descent, such as sasrec",
            code="not-exportable",
        )
    if model.task.code_by_code:
        raise UserError(
            "this recommender generates semantic ids code by code, in a search that no graph holds: serve the run "
            "itself (`fullrank serve RUN`), or export a recipe that predicts all codes at once (rpg, fair)",
            code="not-exportable",
        )
    longest, size = model.max_length, model.num_items
    length = next(candidate for candidate in LENGTHS if candidate <= longest)
    numbered = torch.arange(EXAMPLE_ROWS * length).view(EXAMPLE_ROWS, length)
    lengths = torch.tensor([length, max(length - 1, 1), 1])
    inputs = [
        Port("items", "int64", ("B", "T"), "the history, oldest first: item numbers, right-padded by any of them"),
        Port("lengths", "int64", ("B",), "events of each row, at least 1"),
    ]
    example = [numbered % size, lengths]
    if model.reads_times:
        inputs.append(Port("times", "int64", ("B", "T"), "when each event happened, in seconds since 1970"))
        example.append(1_700_000_000 + 1000 * numbered)
    if model.features is not None:
        ports = feature_ports(model.features)
        inputs += ports
        example += _zeros(ports, length)
    inputs.append(Port("excluded", "int64", ("B", "X"), "item numbers that a row is not shown, -1 where there is none"))
    example.append(torch.full((EXAMPLE_ROWS, EXCLUDED), -1))
    names = [port.name for port in inputs]
    module = RecommenderGraph(model, k, names, hide_seen=hide_seen, budget=budget).eval()
    outputs = (
        Port("scores", "float32", ("B", module.k), "the scores of the best items, best first; -inf where none is left"),
        Port("ids", "int64", ("B", module.k), "their numbers, -1 where none is left"),
    )
    return Graph(module, tuple(inputs), outputs, tuple(example), {"T": longest})


class Convolution(nn.Module):
    """FMLP-Rec's `Filter` as one convolution with a constant kernel: the product of two transforms.

    Transforms of a traced graph fix the length of a history, and ONNX Runtime takes their sizes for
    others. The kernel of a circular filter reaches the events behind a place too.
    """

    kernel: Tensor

    def __init__(self, original: Filter):
        super().__init__()
        self.behind, self.before = 0 if original.causal else original.places - 1, original.places - 1
        ago = torch.arange(self.before, -self.behind - 1, -1)
        self.register_buffer("kernel", original.kernel().detach()[ago % original.places].T[:, None].contiguous())

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        wide = x.float() * batch.valid[..., None] if self.behind else x.float()
        padded = nn.functional.pad(wide.transpose(1, 2), (self.before, self.behind))
        return nn.functional.conv1d(padded, self.kernel, groups=x.shape[2]).transpose(1, 2).to(x.dtype)


def _zeros(ports: Sequence[Port], length: int = 0) -> list[Tensor]:
    """Examples of inputs, where every letter has a size of its own."""
    sizes: dict[str | int, Any] = {"B": EXAMPLE_ROWS, "T": length}
    tensors = []
    for port in ports:
        shape = [
            size if isinstance(size, int) else sizes.setdefault(size, LENGTHS[0] + len(sizes)) for size in port.shape
        ]
        tensors.append(torch.zeros(shape, dtype=getattr(torch, port.dtype)))
    return tensors


VALUES = 4
"""Values of the example's first bag; each bag has one more than the one before, but parallel ones are equally long."""


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


def _field_ports(fields: Sequence[FieldInfo], rows: tuple[str | int, ...] = ("B",), prefix: str = "") -> list[Port]:
    """Inputs of the categorical and of the numeric fields, as far as there are any."""
    categorical, numeric, _ = by_input(fields)
    ports: list[Port] = []
    if categorical:
        names = ", ".join(field.name for field in categorical)
        shape = (*rows, len(categorical))
        ports.append(Port(f"{prefix}categorical", "int64", shape, f"ids of {names}: 0 missing, 1 unknown"))
    if numeric:
        names, shape = ", ".join(field.name for field in numeric), (*rows, len(numeric))
        ports.append(Port(f"{prefix}numeric", "float32", shape, f"{names}, transformed; NaN where missing"))
    return ports


def ranker_graph(model: RankingModule) -> Graph:
    """The graph of a trained ranking model, which keeps parts of `model`: give one that nobody else uses."""
    inputs = _field_ports(model.embedding.fields)
    example, bags = _zeros(inputs), by_input(model.embedding.fields)[2]
    first = {number: group[0] for group in model.embedding.equally_long for number in group}
    for number, field in enumerate(bags):
        leader = first.get(number, number)
        letter = f"L{leader}"
        inputs += [
            Port(f"bag_{number}", "int64", ("B", letter), f"ids of {field.name}, padded at the right by any id"),
            Port(f"bag_lengths_{number}", "int64", ("B",), f"values of {field.name}, 0 where it is missing"),
        ]
        wide: Int[Tensor, "B L"] = torch.zeros(EXAMPLE_ROWS, VALUES + leader, dtype=torch.long)
        example += [wide, torch.tensor([2, 0, 1])]
    outputs = (
        Port("probability", "float32", ("B",), "of a click"),
        Port("logit", "float32", ("B",), "before the sigmoid: apart where probabilities near 0 or 1 no longer are"),
    )
    return Graph(RankerGraph(model).eval(), tuple(inputs), outputs, tuple(example), {})
