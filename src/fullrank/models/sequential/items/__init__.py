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

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items.perturb import Noise, perturb
from fullrank.ops.distinct import distinct_and_places

_AT_ONCE = 1 << 22
"""Counts that are added up together: bounds what is held beside them."""


class Shares:
    """Of counts [V]; an item without events counts as one event. Holds what is made of all of them."""

    def __init__(self, counts: Float[Tensor, "V"], cumulative: Float[Tensor, "V"] | None = None):
        """`cumulative`: the running sum, where somebody has it already (in a mapped file, say)."""
        self.total = torch.stack([part.clamp_min(1.0).sum() for part in counts.split(_AT_ONCE)]).sum()
        self.version = _version(counts)
        self._cumulative = cumulative

    def log(self, counts: Float[Tensor, "V"], ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Log share of some items."""
        return (counts[ids].clamp_min(1.0) / self.total).log()

    def cumulative(self, counts: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
        """Share of the items up to each, in double precision; the last is 1."""
        if self._cumulative is None:
            running = (counts.clamp_min(1.0) / self.total).log().double().exp().cumsum(0)
            self._cumulative = running / running[-1]
        return self._cumulative


_KEPT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def shares(counts: Float[Tensor, "V"]) -> Shares:
    """The shares of these counts, made anew where they have changed."""
    kept: Shares | None = _KEPT.get(counts)
    if kept is None or kept.version != _version(counts):
        kept = Shares(counts)
        keep(counts, kept)
    return kept


def keep(counts: Float[Tensor, "V"], made: Shares) -> None:
    """Have `shares` give these. Counts without a version (made under inference mode) are not kept."""
    if made.version is not None:
        _KEPT[counts] = made


def _version(counts: Tensor) -> int | None:
    return None if counts.is_inference() else counts._version


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


class Once:
    """Satisfies `Items`. To be thrown away after the step: weights must not change while it lives."""

    def __init__(self, items: Items):
        self.items, self.size, self.popularity = items, items.size, items.popularity
        self._ids: Int[Tensor, "m"] | None = None
        self._rows: Int[Tensor, "m"] | None = None
        self._vectors: Float[Tensor, "m D"] | None = None

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        wanted, place = distinct_and_places(ids, self.size)
        rows, vectors = self._held(wanted)
        return vectors[rows[place]]

    def all(self) -> Float[Tensor, "V D"]:
        return self.items.all()

    def _held(self, wanted: Int[Tensor, "w"]) -> tuple[Int[Tensor, "w"], Float[Tensor, "m D"]]:
        """The rows of these distinct, rising ids among the vectors so far; what lacks is computed."""
        if self._ids is None or self._rows is None or self._vectors is None:
            self._ids, self._rows = wanted, torch.arange(len(wanted), device=wanted.device)
            self._vectors = self.items.embed(wanted)
            return self._rows, self._vectors
        fresh = wanted[~torch.isin(wanted, self._ids, assume_unique=True)]
        if len(fresh):
            more = torch.arange(len(fresh), device=wanted.device) + len(self._vectors)
            self._ids, order = torch.cat([self._ids, fresh]).sort()
            self._rows = torch.cat([self._rows, more])[order]
            self._vectors = torch.cat([self._vectors, self.items.embed(fresh)])
        return self._rows[torch.searchsorted(self._ids, wanted)], self._vectors
