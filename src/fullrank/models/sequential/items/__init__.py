"""Item id <-> vector.

The room's contract: a Spec whose ``build(dim, catalog)`` gives an `Items` module. The same vectors are the model's
input and what queries search (tied). A step searches a `ItemIndex`, so that the whole table is made once a step. Items
made of parts, such as codes, are `Perturbable`: noise may then hit a part of an item. Items whose vectors are computed,
such as text, are `Computed`: a step computes each vector once. ``flops(count)`` is what the matrix products of so many
vectors cost forward (look-ups and their sums are none), or there is a sentence ``uncounted``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items.perturb import Noise, perturb
from fullrank.models.sequential.items.shares import shares

Made = TypeVar("Made")


@runtime_checkable
class Items(Protocol):
    size: int
    popularity: Float[Tensor, "V"]
    """Training events of each item; saved with the weights."""

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]: ...
    def all(self) -> Float[Tensor, "V D"]: ...


@runtime_checkable
class Perturbable(Protocol):
    def perturbed(self, ids: Int[Tensor, "B T"], noise: Noise) -> Float[Tensor, "B T D"]:
        """`embed` of items whose parts are masked or replaced (`ops.perturb.perturb` on their digits).

        A masked part is a vector of zeros and still counts: of K parts with one masked, the mean divides by K.
        """
        ...


@runtime_checkable
class Knowing(Protocol):
    """A Spec of items that reads more of an item than the store knows; a run keeps it in its own item table."""

    def known(self, catalog: Catalog) -> Catalog:
        """The catalogue with that. Raises `UserError` where it cannot be had."""
        ...


@runtime_checkable
class Computed(Protocol):
    """Items whose vectors cost something: a step reads them through a view that computes each of them once."""

    def once(self) -> Items: ...


@runtime_checkable
class Extending(Protocol):
    """A Spec of items that reads what a run keeps in its item table of each item, and can find it for new items."""

    def extended(self, catalog: Catalog, old: int) -> Catalog:
        """The grown catalogue, whose first `old` items a run knows, with that of the items behind them."""
        ...


def reading(items: Items) -> Items:
    """The items as one step (or one answer) reads them."""
    return items.once() if isinstance(items, Computed) else items


def perturbed(items: Items, ids: Int[Tensor, "B T"], noise: Noise) -> Float[Tensor, "B T D"]:
    """Vectors of noisy items. Those without parts are masked whole, to zeros, or replaced by another item."""
    if isinstance(items, Perturbable):
        return items.perturbed(ids, noise)
    others, kept = perturb(ids[..., None], (items.size,), noise)
    return items.embed(others[..., 0]) * kept


class ItemIndex:
    """The catalogue that one step searches: `Items` as the scoring sees them (normalised where it is cosine)."""

    def __init__(self, items: Items, *, normalise: bool):
        self.items, self.normalise = items, normalise
        self._made: dict[str, Any] = {}

    @property
    def size(self) -> int:
        return self.items.size

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        if "all" in self._made:
            return self.all()[ids]
        return unit(self.items.embed(ids)) if self.normalise else self.items.embed(ids)

    def all(self) -> Float[Tensor, "V D"]:
        return self.once("all", lambda: unit(self.items.all()) if self.normalise else self.items.all())

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made the first time that it is asked for under this name."""
        if name not in self._made:
            self._made[name] = make()
        made: Made = self._made[name]
        return made

    def log_q(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Log share of the training events; an item without any counts as one event."""
        counts = self.items.popularity
        return shares(counts).log(counts, ids)

    def cumulative(self) -> Float[Tensor, "V"]:
        """The running sum of the shares, in double precision."""
        counts = self.items.popularity
        return shares(counts).cumulative(counts)


def unit(x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
    """Vectors of length one; a zero vector stays zero."""
    return F.normalize(x, dim=-1, eps=1e-12)
