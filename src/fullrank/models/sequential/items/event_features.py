"""Features beside the items: what is known of events, of the requests that they answered, and of users.

A place of a history is the vector x of its event's item and the vectors e_1 .. e_n of
the features known there,

    sum      x + e_1 + .. + e_n
    concat   W [x; e_1; ..; e_n] + b, which starts as the sum
    gate     x + sigmoid(W [x; e] + b) * e      with e = e_1 + .. + e_n

Place t is of event t and asks for event t + 1. It reads the features of event t, which are known
with it and not before, those of the request that event t answered, and those of the request that is
to be answered, with vectors of their own (`Batch.features`, as a task makes it of a batch: nothing
else of event t + 1 is in there). A user's features stand at every place, or are one token before
the first event, the sum of their vectors.

A category has a vector for each value, one for all that are unknown and one where it is missing; a
number x the vector x u + v, or one where it is missing; a list the mean of its values' vectors.
`hour`, `weekday`, `day` (of the month, all UTC), `gap` (since the event before; of a request: since
the last event) and `age` (of the event's item, since its first training event) are made of times,
the last two in buckets by powers of two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.checks import known_times
from fullrank.core.constraints import Names
from fullrank.core.errors import UserError, no_effect, no_such
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, BatchFeatures, Fields
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.features import ROLES, FeatureEncoder, Features, Role, encoder_of
from fullrank.data.features import NO_TIME
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.schema import AnyField
from fullrank.models.sequential.items import TrainingEvents
from fullrank.ops.calendar_fields import FIELDS, day_of, hour_of, weekday_of
from fullrank.ops.starting_values import small, start_small

AUTO = "auto"
"""In place of names: every feature that the store declares."""
FIRST_TIME = "first_event_time"
"""Column of a run's item table: when an item's first training event was, in seconds, where it has one."""
BUCKETS = 42
"""Buckets of seconds: 0, then 2^n to 2^(n + 1) - 1; the last takes all from 2^40, 35,000 years."""
CALENDAR = {"hour": hour_of, "weekday": weekday_of, "day": day_of}
"""Features that are made of a single time."""
SIZES = {name: FIELDS[name] for name in CALENDAR} | dict.fromkeys(("gap", "age"), BUCKETS)
"""How many values each feature has that is made of times."""
MADE: dict[Role, tuple[str, ...]] = {"event": tuple(SIZES), "request": (*CALENDAR, "gap"), "user": ()}
"""Features that are made of times, by role."""


class FeatureInput(Spec):
    """Features that a model reads beside the items; `auto` in place of names stands for all that the store declares."""

    event: Names = (AUTO,)
    """Features of past events; beside the store's: hour, weekday, day, gap, age."""
    request: Names = (AUTO,)
    """Features of past requests and of the one that is answered; beside the store's hour, weekday, day and gap, which
    declare that the time of a request is known."""
    user: Names = (AUTO,)
    """Features of the user."""
    fuse: Literal["sum", "concat", "gate"] = "sum"
    """How the vectors of a position become one."""
    user_at: Literal["places", "prefix"] = "places"
    """Features of the user: at every place, or one token before the first event."""

    def build(self, dim: int, catalog: Catalog) -> FeatureReader:
        return FeatureReader(dim, catalog, self)

    def names(self, role: Role, known: FeatureEncoder) -> tuple[list[str], list[str]]:
        """The store's features that are read and those made of times.

        Raises `UserError` for a name of neither.
        """
        declared = [field.name for field in encoder_of(known, role).fields]
        named, of_times = getattr(self, role), [name for name in MADE[role] if name not in declared]
        allowed = [*declared, *of_times, AUTO]
        for name in named:
            if name not in allowed:
                sentence = f"model.features.{role}: the store declares no such feature,"
                raise no_such(sentence, name, allowed, code="unknown-feature")
        read = [name for name in declared if AUTO in named or name in named]
        return read, [name for name in of_times if name in named]

    def add_columns_of_events(self, catalog: Catalog, events: Callable[[], TrainingEvents]) -> Catalog:
        """The catalogue with the first time of each item, where its age is read.

        Raises `UserError` where the store does not have what is read, or has a column of that name.
        """
        of_times = [name for role in ROLES for name in self.names(role, encoder_in(catalog))[1]]
        if not of_times:
            return catalog
        _, items, times = events()
        times = known_times(
            times,
            f"model.features ({', '.join(of_times)})",
            "this store was prepared without a time column",
            "prepare it with one, or leave these features out",
        )
        if "age" not in of_times:
            return catalog
        catalog.require_free(FIRST_TIME)
        first = np.full(catalog.size, np.iinfo(np.int64).max)
        np.minimum.at(first, items, times)
        seen = catalog.popularity > 0
        return catalog.with_columns({FIRST_TIME: pl.Series(np.where(seen, first, 0)).set(pl.Series(~seen), None)})


def encoder_in(catalog: Catalog) -> FeatureEncoder:
    """The fitted features of a catalogue, of no field where the store declares none."""
    return catalog.features or FieldEncoder(Features(), {}, {})


def require_readable(setting: str, spec: Spec, part: Any) -> None:
    """Raise `UserError` for a part of a model that features cannot stand beside."""
    if part.featureless:
        raise UserError(
            f"model.features cannot be read with model.{setting}={spec.kind_of()}, since {part.featureless}: leave one "
            "of the two out (features go with the tasks next_item and last_item, and with the encoders transformer, of "
            "any attention, gru and fmlp)",
            code="features-not-read",
        )


class FieldVectors(nn.Module):
    """The features of one role -> a vector of each."""

    offsets: Tensor
    id_columns: Tensor
    number_columns: Tensor

    def __init__(self, known: FeatureEncoder, read: Sequence[str], of_times: Sequence[str], dim: int):
        super().__init__()
        kinds: tuple[Sequence[AnyField], ...] = known.categorical, known.numeric, known.multivalued
        self.widths = [len(kind) for kind in kinds]
        ids, numbers, bags = ([at for at, field in enumerate(kind) if field.name in read] for kind in kinds)
        rows = {field.name: field.size for field in known.fields} | {name: SIZES[name] + 1 for name in of_times}
        lists = [known.multivalued[at].name for at in bags]
        names = [*(known.categorical[at].name for at in ids), *of_times, *lists]
        offsets = torch.tensor([0, *(rows[name] for name in names)]).cumsum(0)
        self.starts = dict(zip(names, offsets.tolist(), strict=False))
        """Row of the table where each feature that has ids begins."""
        self.made, self.bags = tuple(of_times), [(at, self.starts[name]) for at, name in zip(bags, lists, strict=True)]
        self.numeric = tuple(known.numeric[at].name for at in numbers)
        self.names = (*names, *self.numeric)
        """Names of the features, in the order of the vectors."""
        self.register_buffer("offsets", offsets[: len(ids) + len(of_times)], persistent=False)
        self.register_buffer("id_columns", torch.tensor(ids, dtype=torch.long), persistent=False)
        self.register_buffer("number_columns", torch.tensor(numbers, dtype=torch.long), persistent=False)
        self.table = small(int(offsets[-1]), dim) if names else None
        self.numbers = small(3, len(numbers), dim) if numbers else None
        """For each number its slope, its value at 0, and the vector where it is missing."""

    def forward(self, fields: Fields | None, time_ids: Sequence[Tensor], *shape: int) -> Float[Tensor, "*n f D"]:
        """One vector for each feature.

        `time_ids` are of those made of times; no `fields`: all others are missing.
        """
        fields = self._missing(*shape) if fields is None else fields
        vectors = []
        if self.table is not None:
            ids = torch.cat([fields.ids[..., self.id_columns], *(x[..., None] for x in time_ids)], -1)
            vectors = [F.embedding(ids + self.offsets, self.table)]
            vectors += [_mean_vector(fields.bags[at], self.table, start)[..., None, :] for at, start in self.bags]
        if self.numbers is not None:
            slope, at_zero, none = self.numbers
            numbers, missing = (x[..., self.number_columns, None] for x in (fields.numbers, fields.missing))
            vectors.append(torch.where(missing, none, at_zero + numbers * slope))
        return torch.cat(vectors, -2)

    def _missing(self, *shape: int) -> Fields:
        """The fields of the role, all missing."""
        ids, numbers, bags = self.widths
        zeros = self.offsets.new_zeros
        absent = zeros(*shape, numbers)
        return Fields(zeros(*shape, ids), absent.float(), absent == 0, (zeros(*shape, 1),) * bags)


def _mean_vector(ids: Int[Tensor, "*n L"], table: Float[Tensor, "R D"], start: int) -> Float[Tensor, "*n D"]:
    """The mean over the ids of each list; of an empty one the vector of what is missing."""
    there, rows = ids > 0, ids + start
    if torch.compiler.is_exporting():  # embedding_bag would fix the sizes of the graph
        mean = (F.embedding(rows, table) * there[..., None]).sum(-2) / there.sum(-1, keepdim=True).clamp_min(1)
    else:  # no vector of each value is made
        mean = F.embedding_bag(rows.flatten(0, -2), table, mode="mean", padding_idx=start).view(*ids.shape[:-1], -1)
    return torch.where(there.any(-1, keepdim=True), mean, table[start])


class FeatureReader(nn.Module):
    """Joins the vectors of a batch's items and of its features to those that an encoder reads."""

    first_times: Tensor
    """None where no age is read."""
    powers: Tensor

    def __init__(self, dim: int, catalog: Catalog, spec: FeatureInput):
        super().__init__()
        self.known, parts = encoder_in(catalog), dict[str, FieldVectors]()
        self.names: dict[str, tuple[str, ...]] = {}
        """Names of the features, by role."""
        for role in ROLES:
            read, of_times = spec.names(role, self.known)
            if not (read or of_times):
                continue
            self.names[role] = (*read, *of_times)
            for name in ("request", "asked") if role == "request" else (role,):
                parts[name] = FieldVectors(encoder_of(self.known, role), read, of_times, dim)
        if not parts:
            remedy = "prepare the store with event, request or user features, or name hour, weekday, day, gap or age"
            raise no_effect("model.features", "on a store that declares no features: leave it out", remedy)
        self.prefix = spec.user_at == "prefix"
        if self.prefix and "user" not in parts:
            raise no_effect("model.features.user_at=prefix", "without features of the user")
        self.vectors = nn.ModuleDict(parts)
        self.reads_times = any(part.made for part in parts.values())
        first = None
        if any("age" in part.made for part in parts.values()):
            first = torch.from_numpy(catalog.column(FIRST_TIME).fill_null(NO_TIME).to_numpy(writable=True))
        self.register_buffer("first_times", first, persistent=False)
        self.register_buffer("powers", 2 ** torch.arange(BUCKETS - 1), persistent=False)
        self.fuse, self.map = spec.fuse, cast(nn.Linear | None, None)
        count = sum(len(part.names) for name, part in parts.items() if not (self.prefix and name == "user"))
        if spec.fuse != "sum":
            if not count:
                why = "where the features of the user stand before the history and there are no others"
                raise no_effect(f"model.features.fuse={spec.fuse}", why)
            self.map = nn.Linear((1 + (count if spec.fuse == "concat" else 1)) * dim, dim)
            start_small(self)
            if spec.fuse == "concat":
                self.map.weight = nn.Parameter(torch.eye(dim).repeat(1, 1 + count))

    @property
    def tokens_before(self) -> int:
        """Places before the first event."""
        return int(self.prefix)

    def flops(self, places: int) -> int:
        """FLOPs of so many places: the products, without look-ups."""
        return 0 if self.map is None else 2 * places * self.map.weight.numel()

    def forward(self, x: Float[Tensor, "B T D"], inputs: Batch) -> tuple[Float[Tensor, "B n D"], Batch]:
        """x joined with its features, and its batch: one position more, n = T + 1, with a user's token."""
        known, places = inputs.features or BatchFeatures(), x.shape[:2]
        parts: list[Tensor] = []
        token = None
        for name, module in self.vectors.items():
            part = cast(FieldVectors, module)
            if name == "user":
                vectors = part(known.user, (), x.shape[0])
                if self.prefix:
                    token = vectors.sum(1, keepdim=True).to(x.dtype)
                    continue
                parts.append(vectors[:, None])
            else:
                parts.append(
                    part(getattr(known, name), self._time_ids(part, inputs, known, of_answer=name == "asked"), *places)
                )
        x, inputs = self._fused(x, parts), replace(inputs, features=None)
        return (x, inputs) if token is None else _with_token(x, inputs, token)

    def _fused(self, x: Float[Tensor, "B T D"], parts: Sequence[Float[Tensor, "B #T _ D"]]) -> Float[Tensor, "B T D"]:
        """One vector for each place, of the item's and the features'."""
        if self.map is not None and self.fuse == "concat":
            beside = [part.expand(*x.shape[:2], -1, -1).flatten(2).to(x.dtype) for part in parts]
            return self.map(torch.cat([x, *beside], -1))
        if not parts:
            return x
        added = sum((part.sum(-2) for part in parts[1:]), parts[0].sum(-2)).to(x.dtype)
        if self.map is None:
            return x + added
        added = added.expand_as(x)
        return x + self.map(torch.cat([x, added], -1)).sigmoid() * added

    def _time_ids(
        self, part: FieldVectors, inputs: Batch, known: BatchFeatures, *, of_answer: bool
    ) -> list[Int[Tensor, "B T"]]:
        """Ids of the features that are made of times; those `of_answer` are of the
        request that is to be answered."""
        if not part.made:
            return []
        remedy = "give them, or leave out what is made of times"
        times = known_times(inputs.times, "model.features", "the batch has no times", remedy)
        none = torch.full_like(times, NO_TIME)
        if of_answer:
            return self.made_ids(part, none if known.asked_at is None else known.asked_at, times, inputs.items)
        return self.made_ids(part, times, torch.cat([none[:, :1], times], 1)[:, :-1], inputs.items)

    def made_ids(
        self, part: FieldVectors, at: Int[Tensor, "*n"], since: Int[Tensor, "*n"], items: Int[Tensor, "*n"]
    ) -> list[Int[Tensor, "*n"]]:
        """Ids of the features made of times, for events of `items` at `at`, each after
        one at `since`; 0 if missing."""
        ids = []
        for name in part.made:
            if name in ("gap", "age"):
                start = since if name == "gap" else self.first_times[items]
                seconds = (at - start).clamp_min(0)
                value, there = torch.bucketize(seconds, self.powers, right=True), (at != NO_TIME) & (start != NO_TIME)
            else:
                value, there = CALENDAR[name](at), at != NO_TIME
            ids.append(torch.where(there, value + 1, 0))
        return ids


def _with_token(x: Tensor, inputs: Batch, token: Float[Tensor, "B 1 D"]) -> tuple[Float[Tensor, "B n D"], Batch]:
    """Put a token before the first event, at the time of that event."""
    items = torch.cat([torch.zeros_like(inputs.items[:, :1]), inputs.items], 1)
    times = None if inputs.times is None else torch.cat([inputs.times[:, :1], inputs.times], 1)
    return torch.cat([token, x], 1), replace(inputs, items=items, times=times, lengths=inputs.lengths + 1)
