"""Item id <-> vector.

The room's contract: an `ItemsSpec` whose ``build(dim, catalog)`` gives an `Items` module. The same
vectors are the model's input and what queries search (tied). A step searches an `ItemIndex`, so
that the whole table is made once a step. ``flops(count)`` are the FLOPs of the matrix products
behind so many vectors, forward (look-ups and their sums have none); items whose FLOPs cannot be
counted have a sentence ``uncounted`` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog
from fullrank.models import Requirement
from fullrank.models.sequential.items.perturb import Noise, perturb
from fullrank.ops.picked_rows import distinct_and_places
from fullrank.ops.sharded_rows import RowShard

T = TypeVar("T")
TrainingEvents = tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Int[np.ndarray, "n"] | None]
"""Users, items and times of the events that are trained on, as `Store.trained` gives them."""


class Items(nn.Module, ABC):
    """Vectors of items; also the views of them that a step reads (`CachedItems`)."""

    size: int
    popularity: Tensor
    """[V] training events of each item; saved with the weights."""
    computed = False
    """Whether a vector costs more than a look-up, so that a step should compute each of them once (`for_one_step`)."""
    needs_times = False
    """Whether a score in training depends on when the target happened (`added`), so that batches need times then."""
    requires: tuple[Requirement, ...] = ()
    """Requirements on the model's other parts."""
    reads_apart = False
    """Whether `read` gives other vectors than are searched."""
    shard: RowShard | None = None
    """Which items' vectors this process holds, where several hold them together (`own`)."""

    @abstractmethod
    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        """The vectors of some items."""

    @abstractmethod
    def all(self) -> Float[Tensor, "V D"]:
        """The vectors of all items, in the order of their ids."""

    def count_items(self, popularity: Int[np.ndarray, "V"] | Float[Tensor, "V"]) -> None:
        """Keep how often each item was trained on, as their catalogue counts it; a tensor is kept, not copied."""
        self.size = len(popularity)
        self.register_buffer("popularity", torch.as_tensor(popularity, dtype=torch.float32))

    def own(self) -> Float[Tensor, "v D"]:
        """The vectors of the items that this process holds: of all, unless several
        processes hold them together."""
        return self.all()

    def read(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        """The vectors of some items as events of a history: what an encoder reads."""
        return self.embed(ids)

    def added(
        self,
        vectors: Float[Tensor, "M D"],
        ids: Int[Tensor, "M n"],
        times: Int[Tensor, "M"] | None,
        order: Int[Tensor, "M"] | None,
    ) -> Float[Tensor, "M n"] | None:
        """The term of these items' scores in training beside the inner product with `embed`; None where there is none.

        `vectors` are of queries for events at `times`. With an `order`, what depends on items and
        times alone is that of query ``order[m]`` in the term of query m.
        """
        return None

    def perturbed(self, ids: Int[Tensor, "B T"], noise: Noise) -> Float[Tensor, "B T D"]:
        """`read` of items that are masked, to the padding vector (`Noise.pad`), or replaced by another item.

        Each part of an item made of parts is masked or replaced by itself. A masked part is the
        padding vector and still counts: the mean of K parts divides by K, however many are masked.
        """
        others, unmasked = perturb(ids[..., None], (self.size,), noise)
        return noise.masked(self.read(others[..., 0]), unmasked[..., 0])

    def part_width(self) -> int:
        """The width of a padding vector: of one part where items are made of parts, else of an item's vector."""
        return self.embed(torch.zeros(1, dtype=torch.long, device=self.popularity.device)).shape[-1]

    def code_vectors(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n K D"]:
        """The vectors of each item's codes, for items that are made of such (`semantic.py`)."""
        raise TypeError(f"{type(self).__name__} has no codes")

    def for_one_step(self) -> Items:
        """The items as one step (or one answer) reads them: each vector is computed once
        where that costs something."""
        return CachedItems(self) if self.computed else self

    def transferred(self, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
        """Move the tensors that an earlier run learned to the values (columns, tokens) of the catalogue `new`.

        `tensors` are the run's by the names of this module's state, `old` is its catalogue.
        Tensors that are missing from the answer fit as they are. Raises `UserError` where the
        run's tensors or columns do not fit.
        """
        return {}


def other_items(part: str) -> UserError:
    """The error for a run whose items are not made as those of the model that starts from it."""
    return UserError(
        f"the run's items have another {part}; going on needs the same model spec", code="other-model-spec"
    )


class ItemsSpec(Spec):
    """Base of every kind of items."""

    reads_new_items: ClassVar[bool] = False
    """Whether items that come later have a vector at once, from what `add_new_columns` reads of them."""

    @abstractmethod
    def build(self, dim: int, catalog: Catalog) -> Items: ...

    def build_shard(self, dim: int, catalog: Catalog, shard: RowShard) -> Items:
        """The same items, of which this process holds some.

        Raises `UserError` where they are no table of vectors.
        """
        raise UserError(
            f"items of kind {self.kind_of()} have no table of vectors that processes could share out: set "
            "model.items=table, or build them whole",
            code="items-not-sharded",
        )

    def add_columns_of_events(self, catalog: Catalog, events: Callable[[], TrainingEvents]) -> Catalog:
        """The catalogue with what these items read of the training events, which `events` gives; before `add_columns`.

        Raises `UserError` where it cannot be had.
        """
        return catalog

    def add_columns(self, catalog: Catalog) -> Catalog:
        """The catalogue with what these items read of an item beyond the store; a run keeps it in its item table.

        Raises `UserError` where it cannot be had.
        """
        return catalog

    def add_columns_of_run(self, catalog: Catalog, earlier: Catalog) -> Catalog:
        """`add_columns` in the terms of a run that training starts from, whose items are `earlier`."""
        return self.add_columns(catalog)

    def add_new_columns(self, catalog: Catalog, old: int) -> Catalog:
        """The grown catalogue, whose first `old` items a run knows, with the same of the items behind them."""
        return catalog


class LookedUpItems(Items):
    """Items whose vectors are made of rows of tables, without products."""

    def flops(self, count: int) -> int:
        """FLOPs of so many vectors."""
        return 0


class ComputedItems(Items):
    """Items whose vectors cost more than a look-up; where all are made, some at a time."""

    computed = True
    at_once: int
    """Items that are made together: bounds the memory of what comes between."""

    def all(self) -> Float[Tensor, "V D"]:
        every = torch.arange(self.size, device=self.popularity.device)
        return torch.cat([self.embed(ids) for ids in every.split(self.at_once)])


class ItemsView(Items):
    """Other items as a step reads them; a subclass says what becomes of their vectors."""

    def __init__(self, items: Items):
        super().__init__()
        self.items, self.size, self.popularity = items, items.size, items.popularity

    def all(self) -> Float[Tensor, "V D"]:
        return self.items.all()


class CachedItems(ItemsView):
    """Items as one training step reads them: a vector is computed once, however often the step asks for it.

    For items whose vectors cost something (text). Histories and targets are asked for first, then
    negatives: only what was not asked for before is computed, and memory and time grow with the
    distinct items of the step, not with the catalogue. Throw it away after the step: weights must
    not change while it lives.
    """

    def __init__(self, items: Items):
        super().__init__(items)
        self._ids: Int[Tensor, "m"] | None = None
        self._rows: Int[Tensor, "m"] | None = None
        self._vectors: Float[Tensor, "m D"] | None = None

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        unique, inverse = distinct_and_places(ids, self.size)
        rows, vectors = self._rows_and_vectors(unique)
        return vectors[rows[inverse]]

    def _rows_and_vectors(self, wanted: Int[Tensor, "w"]) -> tuple[Int[Tensor, "w"], Float[Tensor, "m D"]]:
        """The rows of these distinct, rising ids among the vectors so far; those
        that are missing are computed."""
        if self._ids is None or self._rows is None or self._vectors is None:
            self._ids, self._rows = wanted, torch.arange(len(wanted), device=wanted.device)
            self._vectors = self.items.embed(wanted)
            return self._rows, self._vectors
        new = wanted[~torch.isin(wanted, self._ids, assume_unique=True)]
        if len(new):
            more = torch.arange(len(new), device=wanted.device) + len(self._vectors)
            # ids stay sorted, so that they are found by bisection; the vectors stay where they are
            self._ids, order = torch.cat([self._ids, new]).sort()
            self._rows = torch.cat([self._rows, more])[order]
            self._vectors = torch.cat([self._vectors, self.items.embed(new)])
        return self._rows[torch.searchsorted(self._ids, wanted)], self._vectors


class ItemIndex:
    """The catalogue that one step searches: `Items` as the scoring sees them (normalised where it is cosine)."""

    def __init__(self, items: Items, *, normalise: bool):
        self.items, self.normalise = items, normalise
        self._made: dict[str, Any] = {}
        self._order: Int[Tensor, "M"] | None = None

    @property
    def size(self) -> int:
        return self.items.size

    @property
    def shard(self) -> RowShard | None:
        """Which vectors `own` has, where several processes hold them together."""
        return self.items.shard

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        if "all" in self._made:
            return self.all()[ids]
        return self._scaled(self.items.embed(ids))

    def all(self) -> Float[Tensor, "V D"]:
        return self.once("all", lambda: self._scaled(self.items.all()))

    def own(self) -> Float[Tensor, "v D"]:
        """The vectors that this process holds: all, where no others hold some."""
        if self.shard is None:
            return self.all()
        return self.once("own", lambda: self._scaled(self.items.own()))

    def _scaled(self, vectors: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        return unit(vectors) if self.normalise else vectors

    def added(
        self, vectors: Float[Tensor, "M D"], ids: Int[Tensor, "M n"], times: Int[Tensor, "M"] | None
    ) -> Float[Tensor, "M n"] | None:
        """The term of these items' scores beside the inner product (`Items.added`)."""
        return self.items.added(vectors, ids, times, self._order)

    def exchanging(self, order: Int[Tensor, "M"]) -> ItemIndex:
        """The same index, of which `added` gives each query the term of the items of query ``order[m]``."""
        other = copy(self)
        other._order = order
        return other

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Call `make` the first time that this name is read, and answer with the same object from then on."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

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


_AT_ONCE = 1 << 22
"""Counts that are added up together: bounds what is held beside them."""


class Shares:
    """Shares of the training events, for the correction by log q and for draws by popularity, of counts [V].

    An item without events counts as one event. What takes time linear in the catalogue, the sum of
    the counts and their running sum, is made once for as long as the counts stay: a training step
    that reads a few thousand items costs the same whatever the catalogue's size.
    """

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
            # in double precision: millions of shares are added, and draws by bisection
            # need them to rise to 1
            running = (counts.clamp_min(1.0) / self.total).log().double().exp().cumsum(0)
            self._cumulative = running / running[-1]
        return self._cumulative


_SHARES = WeakTensorKeyDictionary()


def shares(counts: Float[Tensor, "V"]) -> Shares:
    """The shares of these counts, made anew where they have changed."""
    cached: Shares | None = _SHARES.get(counts)
    if cached is None or cached.version != _version(counts):
        cached = Shares(counts)
        keep_shares(counts, cached)
    return cached


def keep_shares(counts: Float[Tensor, "V"], known: Shares) -> None:
    """Let `shares` answer with these.

    Shares of counts without a version (made under inference mode) are not cached.
    """
    if known.version is not None:
        _SHARES[counts] = known


def _version(counts: Tensor) -> int | None:
    """How often a tensor was changed; None for one made under inference
    mode, which does not count."""
    return None if counts.is_inference() else counts._version
