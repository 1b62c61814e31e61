"""The tensors that cross rooms, and the letters of their shapes. A capital means one thing in the whole library:

    B  rows of a batch: users, or impressions    V  items of the catalogue
    T  positions of a history                    M  queries of a loss
    D  width of a model                          N  negatives of a query
    H  heads of an attention                     G  groups of queries
    K  levels of a semantic id                   F  categorical fields of an impression
    C  codes of a level                          X  numeric fields (or features)
    P  parallel streams of a reasoner            L  longest bag of a batch
    S  steps of a reasoner                       W  width of a layer of a ranker

Of tables and stores: E events or values, U users, R rows of a table or a ragged array. A lower-case
letter is a size of no meaning beyond its function: k the length of a list, n a number of things, p
one of pairs; e the width of a head's queries and keys, f that of its values.

Rows are right-padded. Validity is `lengths`, never a reserved item id: item ids are 0 .. V-1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from fullrank.core.jagged import Jagged
from fullrank.data.features import NO_TIME, Encoded, HistoryFeatures


@dataclass(frozen=True)
class ColumnSums:
    """The attention that each key of a layer received: column sums of its weights (SPRINT penalises them)."""

    module: torch.nn.Module
    sums: Float[Tensor, "B H T"]
    """Absolute weights (or bounds of them) summed over the valid queries; zero at padded keys."""
    valid: Bool[Tensor, "B T"]
    rows: Float[Tensor, "B H T"] | None = None
    """The same summed over the keys, zero at padded queries; None where rows sum to one."""
    queries: int | None = None
    """Number of queries, where they are of another sequence (cross-attention); None where they are the keys' own."""


@dataclass(frozen=True)
class Captures:
    """Records of a forward pass for penalties or for a cache: modules fill the fields that are not None."""

    columns: list[ColumnSums] | None = None
    """Attention that each key received, layer by layer."""
    after_dropout: bool = False
    """Whether columns are sums of the weights after dropout."""
    memory: dict[torch.nn.Module, tuple[Tensor, Tensor]] | None = None
    """The keys and values of each attention, [B, H, T, e]."""


@dataclass(frozen=True)
class Fields:
    """Encoded features of rows, or of positions in rows; columns in the order of the fields of each kind."""

    ids: Int[Tensor, "*n F"]
    """An id within its own field: 0 missing, 1 unknown, 2 and up known."""
    numbers: Float[Tensor, "*n X"]
    """The numbers; 0 where missing."""
    missing: Bool[Tensor, "*n X"]
    bags: tuple[Int[Tensor, "*n L"], ...] = ()
    """The ids of each list, then zeros."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.ids, self.numbers, self.missing, *self.bags

    @staticmethod
    def of(tensors: Iterable[Tensor]) -> Fields:
        """The inverse of `tensors`."""
        ids, numbers, missing, *bags = tensors
        return Fields(ids, numbers, missing, tuple(bags))

    def map(self, change: Callable[[Tensor], Tensor]) -> Fields:
        """Apply a change of rows to every tensor."""
        return Fields.of(map(change, self.tensors))

    def unknown(self, *shape: int) -> Fields:
        """The same fields for rows or positions of this shape, all missing."""
        gone = self.map(lambda x: x.new_zeros(*shape, x.shape[-1]))
        return replace(gone, missing=torch.ones_like(gone.missing))

    def joined(self, other: Fields) -> Fields:
        """Concatenate the positions of rows [B T]; bags are padded to the longer width."""

        def concatenated(a: Tensor, b: Tensor) -> Tensor:
            width = max(a.shape[-1], b.shape[-1])
            return torch.cat([pad(x, (0, width - x.shape[-1])) for x in (a, b)], 1)

        return Fields.of(map(concatenated, self.tensors, other.tensors))


@dataclass(frozen=True)
class BatchFeatures:
    """Features beside the items of a batch; None where there are none."""

    event: Fields | None = None
    """[B T] of events: known with each event, and not before."""
    request: Fields | None = None
    """[B T] of the request that each event answered."""
    user: Fields | None = None
    """[B] of the user of each row."""
    asked: Fields | None = None
    """The request to be answered: [B] as it is loaded, [B T] the request behind each position once
    a task has made inputs of a batch."""
    asked_at: Int[Tensor, "B"] | Int[Tensor, "B T"] | None = None
    """The time of that request, seconds since 1970, `NO_TIME` where unknown; None where a model may not know it."""

    @staticmethod
    def of(known: HistoryFeatures | None, rows: Jagged, roles: Collection[str]) -> BatchFeatures:
        """The features of some roles of the events of these rows, of their requests and of their users.

        `known` has the tables of events beside `rows.values`, and a user and a request for each
        row; None: no features. One gather from each table serves all rows, without padding.
        """
        if known is None:
            return BatchFeatures()
        places, lengths = rows.places(), rows.lengths
        fields = {
            role: to_fields(table.take(places), lengths)
            for role, table in (("event", known.event), ("request", known.request))
            if table is not None and role in roles
        } | {
            name: to_fields(features.table.take(features.rows))
            for name, role, features in (("user", "user", known.user), ("asked", "request", known.asked))
            if features is not None and role in roles
        }
        return BatchFeatures(**fields, asked_at=None if known.asked_at is None else torch.as_tensor(known.asked_at))

    def at_places(self, change: Callable[[Tensor], Tensor]) -> BatchFeatures:
        """Apply a change of the positions in rows to the features of events and of their requests."""
        return replace(
            self, event=self.event and self.event.map(change), request=self.request and self.request.map(change)
        )

    def before_targets(self, times: Int[Tensor, "B T"] | None) -> BatchFeatures:
        """Features of training rows less their last event, which is a target alone: behind position
        t stands the request of event t + 1, and nothing else of that event."""
        requests = self.request and self.request.map(lambda x: x[:, 1:])
        read = self.at_places(lambda x: x[:, :-1])
        return replace(read, asked=requests, asked_at=None if times is None else times[:, 1:])

    def before_answers(self, times: Int[Tensor, "B T"] | None, lengths: Int[Tensor, "B"], width: int) -> BatchFeatures:
        """Features of whole histories: behind each position stands the next event's request, behind
        the last one the request to be answered (missing where it is not known)."""
        rows, asked_at = lengths.shape[0], None  # len() of a tensor would fix it in a graph
        # position t of a row reads t + 1; its last event reads column `width`, where the
        # request to be answered stands
        at = torch.arange(1, width + 1, device=lengths.device).expand(rows, -1)
        at = torch.where(at < lengths[:, None], at, width)
        row = torch.arange(rows, device=lengths.device)[:, None]
        if (requests := self.asked or self.request) is not None:
            past, new = self.request or requests.unknown(rows, width), self.asked or requests.unknown(rows)
            requests = past.joined(new.map(lambda x: x[:, None])).map(lambda x: x[row, at])
        if times is not None:
            new_at = torch.full_like(lengths, NO_TIME) if self.asked_at is None else self.asked_at
            asked_at = torch.cat([times, new_at[:, None]], 1)[row, at]
        return replace(self, asked=requests, asked_at=asked_at)

    def map(self, change: Callable[[Tensor], Tensor]) -> BatchFeatures:
        """Apply a change of rows to every tensor."""
        moved: dict[str, Any] = {
            name: change(part) if isinstance(part, Tensor) else part.map(change)
            for name, part in vars(self).items()
            if part is not None
        }
        return replace(self, **moved)


def to_fields(encoded: Encoded, lengths: Int[np.ndarray, "B"] | None = None) -> Fields:
    """Encoded rows as tensors: a row each, or padded rows of these lengths, whose other positions are missing."""

    def padded(values: np.ndarray, fill: Any = 0) -> Tensor:
        return torch.from_numpy(values if lengths is None else Jagged.from_lengths(values, lengths).padded(fill=fill))

    missing = np.isnan(encoded.numeric)
    numbers = np.where(missing, np.float32(0), encoded.numeric)
    bags = tuple(padded(bag.padded().astype(np.int32, copy=False)) for bag in encoded.bags)
    return Fields(padded(encoded.categorical), padded(numbers), padded(missing, True), bags)


@dataclass(frozen=True)
class Batch:
    """Histories of users. Randomness is a function of `seed`, `step` and `rows`."""

    items: Int[Tensor, "B T"]
    lengths: Int[Tensor, "B"]
    rows: Int[Tensor, "B"] | None = None
    """Number that names each row wherever it is drawn again: randomness depends on it, never on its
    position in the batch."""
    users: Int[Tensor, "B"] | None = None
    """The user of each row; None where every row is a user of its own."""
    user_keys: Int[Tensor, "B"] | None = None
    """A number made of each row's user id, the same wherever the user appears, where the model
    reads users; -1 for an unknown user."""
    times: Int[Tensor, "B T"] | None = None
    """Seconds since 1970, where the data has times and the model reads them."""
    features: BatchFeatures | None = None
    """Features beside the items, where the model reads them."""
    hidden: Bool[Tensor, "B T"] | None = None
    """Positions that a task covers up."""
    wanted: Bool[Tensor, "B T"] | None = None
    """Events that a task is to predict, where types of targets were chosen; None is all."""
    answer: int = 0
    """Tokens at the end of each row that belong to the answer: codes of the item behind the
    history, of which the next is predicted (teacher forcing). An encoder that reads both sides must
    not show them to the others."""
    seed: int = 0
    step: int = 0
    counts: Mapping[str, int] | None = None
    """Queries per group over all shards of one optimizer step; None means this batch alone."""
    empty_shard: bool = False
    """A shard without rows of its own: it takes part in the step and adds nothing."""
    captures: Captures | None = None
    """Records that modules fill for a penalty or a cache; None where nobody needs any."""
    views: int = 1
    """Number of times that the rows are repeated, each under other dropout: rows [0, B / views) are the first view."""

    @staticmethod
    def shapes(rows: int, length: int) -> Batch:
        """A batch of shapes without numbers (the meta device), with times: what counting FLOPs needs."""
        whole = torch.empty(rows, length, dtype=torch.long, device="meta")
        return Batch(whole, torch.empty(rows, dtype=torch.long, device="meta"), times=whole)

    @property
    def row_ids(self) -> Int[Tensor, "B"]:
        """`rows`, or the positions in the batch where that is None."""
        return torch.arange(len(self.items), device=self.items.device) if self.rows is None else self.rows

    @property
    def valid(self) -> Bool[Tensor, "B T"]:
        return torch.arange(self.items.shape[1], device=self.items.device) < self.lengths[:, None]

    @property
    def history(self) -> Int[Tensor, "B"]:
        """The tokens of each row's history, without those of the answer."""
        return (self.lengths - self.answer).clamp_min(0)

    def positions(self, *, from_end: bool) -> Int[Tensor, "B T"]:
        """0 for the first event of a row (or, from the end, for the last valid one)."""
        at = torch.arange(self.items.shape[1], device=self.items.device).expand(self.items.shape)
        return (self.lengths[:, None] - 1 - at).clamp_min(0) if from_end else at

    def to(self, device: torch.device | str) -> Batch:
        return self._moved(lambda x: x.to(device))

    def select(self, rows: Int[Tensor, "b"]) -> Batch:
        """Select rows, as one view."""
        return replace(self._moved(lambda x: x[rows]), views=1)

    def first_view(self) -> Batch:
        """The rows as they were loaded, where they are read several times."""
        if self.views == 1:
            return self
        return self.select(torch.arange(len(self.items) // self.views, device=self.items.device))

    def repeated(self, views: int) -> Batch:
        """Repeat the rows as several views, one view after the other."""
        return replace(self._moved(lambda x: x.repeat(views, *[1] * (x.ndim - 1))), views=views)

    def _moved(self, change: Callable[[Tensor], Tensor]) -> Batch:
        moved: dict[str, Any] = {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        features = None if self.features is None else self.features.map(change)
        return replace(self, **moved, features=features)


@dataclass(frozen=True)
class Bag:
    """A field with several values in a row: a set, or a behaviour sequence (oldest first). Right-padded with 0."""

    ids: Int[Tensor, "B L"]
    """As in `Impressions.categorical`; what `lengths` leaves out is padding."""
    lengths: Int[Tensor, "B"]
    """0 where the row has no value."""

    def to(self, device: torch.device | str) -> Bag:
        return Bag(self.ids.to(device), self.lengths.to(device))


@dataclass(frozen=True)
class Impressions:
    """Impressions as fields. Columns follow the order of the schema's fields of that kind."""

    categorical: Int[Tensor, "B F"]
    """An id within its own field: 0 missing, 1 unknown (rare, or never seen in training), 2 and up known."""
    numeric: Float[Tensor, "B X"]
    """Transformed as the schema says; 0 where missing, never NaN."""
    missing: Bool[Tensor, "B X"]
    """Where a numeric value is missing."""
    bags: tuple[Bag, ...] = ()
    """One for each bag or sequence of the schema."""
    labels: Float[Tensor, "B"] | None = None
    """1 clicked, 0 not; None where unknown."""
    rows: Int[Tensor, "B"] | None = None
    """Row number in the store; randomness is a function of it, `seed` and `step`."""
    groups: Int[Tensor, "B"] | None = None
    """The group of each impression, for metrics by group; None without a group column."""
    step: int = 0
    seed: int = 0
    count: int | None = None
    """Rows over all shards of one optimizer step; None means this batch alone."""
    empty_shard: bool = False
    """A shard without rows of its own: it takes part in the step and adds nothing."""

    def __len__(self) -> int:
        return len(self.categorical)

    def to(self, device: torch.device | str) -> Impressions:
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, bags=tuple(bag.to(device) for bag in self.bags), **moved)
