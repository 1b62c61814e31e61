"""Items with a vector of their own and vectors of what is known of them: text, features, codes.

    sum     x = own + c                          c the sum of the parts' vectors
    gate    x = g own + (1 - g) c                g = sigmoid(a log(1 + n) + b), of n training events

with a and b learned for each component, so that the more was seen of an item, the more it stands by
itself. In training an item's own vector is left out of a step with probability `id_dropout`,
so that the parts learn to stand alone; an item without training events has none, which makes new
items warm from their first day.

The trick of leaving ids out: DropoutNet (Volkovs et al., NeurIPS 2017). Text and ids in one item:
UniSRec's transductive form (`items/unisrec.py`), of which `sum` is the general case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Annotated, ClassVar, Literal, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import MOST_PARTS, DropoutRate
from fullrank.core.errors import UserError
from fullrank.core.registry import Room
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import ComputedItems, Items, ItemsSpec, LookedUpItems, TrainingEvents
from fullrank.models.sequential.items.text import Text
from fullrank.ops.starting_values import start_small


class Hybrid(ItemsSpec):
    """Item vectors from ids and from what is known of the items."""

    kind: Literal["hybrid"] = "hybrid"
    reads_new_items: ClassVar[bool] = True
    parts: tuple[Annotated[ItemsSpec, Room("items", without=("hybrid",))], ...] = Field(
        (Text(),), min_length=1, max_length=MOST_PARTS
    )
    """What is read beside the id: kinds of items, such as text, unisrec, {kind: features, ids: false} or semantic."""
    fuse: Literal["sum", "gate"] = "sum"
    """How the item's own vector and those of the parts become one."""
    id_dropout: DropoutRate = 0.1
    """Share of the items of a step that are read without their own vector."""

    def build(self, dim: int, catalog: Catalog) -> HybridItems:
        return HybridItems(dim, catalog, self)

    def add_columns_of_events(self, catalog: Catalog, events: Callable[[], TrainingEvents]) -> Catalog:
        return reduce(lambda known, part: part.add_columns_of_events(known, events), self.parts, catalog)

    def add_columns(self, catalog: Catalog) -> Catalog:
        return reduce(lambda known, part: part.add_columns(known), self.parts, catalog)

    def add_columns_of_run(self, catalog: Catalog, earlier: Catalog) -> Catalog:
        return reduce(lambda known, part: part.add_columns_of_run(known, earlier), self.parts, catalog)

    def add_new_columns(self, catalog: Catalog, old: int) -> Catalog:
        return reduce(lambda known, part: part.add_new_columns(known, old), self.parts, catalog)


class HybridItems(ComputedItems):
    """A table, and other items beside it."""

    at_once = 1 << 14

    def __init__(self, dim: int, catalog: Catalog, spec: Hybrid):
        super().__init__()
        self.id_dropout = spec.id_dropout
        self.embedding = nn.Embedding(catalog.size, dim)
        self.count_items(catalog.popularity)
        self.parts = nn.ModuleList(part.build(dim, catalog) for part in spec.parts)
        for part, items in zip(spec.parts, self.parts, strict=True):
            _require_plain(part, items)
        self.gate = nn.Parameter(torch.tensor([[0.5], [-1.0]]).repeat(1, dim)) if spec.fuse == "gate" else None
        """a and b: an item of a dozen events stands half by itself at the start."""
        reasons = [reason for items in self.parts if (reason := getattr(items, "uncounted", ""))]
        if reasons:
            self.uncounted = reasons[0]
        start_small(self)

    def flops(self, count: int) -> int:
        """FLOPs of so many vectors: those of the parts."""
        return sum(cast(LookedUpItems, items).flops(count) for items in self.parts)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        events = self.popularity[ids]
        there = events > 0
        if self.training and self.id_dropout:
            there = there & (torch.rand(ids.shape, device=ids.device) >= self.id_dropout)
        vectors = self.embedding(ids) * there[..., None]
        known = torch.stack([items.embed(ids) for items in self._parts]).sum(0)
        if self.gate is None:
            return vectors + known
        share = torch.sigmoid(self.gate[0] * events[..., None].log1p() + self.gate[1]) * there[..., None]
        return share * vectors + (1 - share) * known

    @property
    def _parts(self) -> list[Items]:
        return cast(list[Items], list(self.parts))

    def transferred(self, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
        """Let each part move its tensors; the items' own vectors go by external id like those of every table."""
        moved: dict[str, Tensor] = {}
        for number, items in enumerate(self._parts):
            prefix = f"parts.{number}."
            learned = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
            moved |= {prefix + name: x for name, x in items.transferred(learned, old, new).items()}
        return moved


def _require_plain(spec: ItemsSpec, items: nn.Module) -> None:
    """Raise `UserError` for a part that is more than a vector of each item."""
    assert isinstance(items, Items)
    reasons = {
        "other vectors are read of it than are searched": items.reads_apart,
        "its scores depend on times": items.needs_times,
        "it asks for a task of its own": items.requires,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(
                f"model.items.parts: {spec.kind_of()} is no part of a hybrid item, since {reason}: take text, unisrec, "
                "features or semantic",
                code="not-a-part-of-items",
            )
