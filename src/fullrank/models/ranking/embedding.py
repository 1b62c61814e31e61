"""Field embeddings: every id of every field is a row of one table, found at its field's offset.

    token_f = table[offset_f + id_f]  (categorical);  mean or sum of such rows  (bag);  x_f w_f, w_f in R^E  (numeric)

One gather serves all categorical fields, where a list of tables needs one per field. A row
whose value is missing has id 0, a bag without values takes that id, a missing number has a
vector of its own; id 1 is every unknown value. Starting values N(0, 1e-4), and Xavier for the
vectors of numbers, are FuxiCTR's.

Behaviour sequences become vectors as `model.sequences` says (`models/ranking/sequences`): pooled
like bags, or attended by the target. Hard search shortens them before anything is looked up.

Fields of another width (`dims`) lie in a table of that width and are projected to the
common one without a bias.

The penalty is l2 / 2 times the squared norm of the rows that occur in the batch, each once (`l2_on:
rows`), or of the whole tables as in FuxiCTR (`table`), and in both of the vectors of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from fullrank.core.checks import check_once
from fullrank.core.constraints import MOST_ENTRIES, Factor, Width, once, only_with
from fullrank.core.errors import UserError, no_such
from fullrank.core.spec import Spec
from fullrank.data.batch import Impressions
from fullrank.models import Flops
from fullrank.models.ranking import Fields, FieldTokens
from fullrank.models.ranking.fused import FusedTable, PlacedVectors, in_order, inside_of, places_of
from fullrank.models.ranking.sequences import SequenceSpec
from fullrank.models.ranking.sequences.pooled import Pooled
from fullrank.models.ranking.sequences.reader import AttendedGroup, SequenceReader, in_parallel, members

Update = Literal["adamw", "lazy_adam", "rowwise_adagrad"]
EVENTS = 50
"""Events of a history whose attention is counted as FLOPs: the longest that a schema keeps where it does not say."""


class Embedding(Spec):
    """A vector for every value of every field."""

    dim: Width = 16
    """Width of a field's vector."""
    dims: Annotated[tuple[tuple[str, Width], ...], once("field", lambda dims: [name for name, _ in dims])] = Field(
        (), max_length=MOST_ENTRIES
    )
    """Fields stored at another width, as (name, width) pairs, and projected to `dim`."""
    std: float = Field(1e-4, gt=0, le=1e3)
    """Standard deviation of starting values."""
    bags: Literal["mean", "sum"] = "mean"
    """Mean or sum of the vectors of a bag's or a sequence's values."""
    l2: Factor = 0.0
    """Weight of the squared norm of the vectors (halved) in the loss."""
    l2_on: Annotated[Literal["rows", "table"] | None, only_with("l2")] = None
    """Whose norm: the rows in the batch (null too), or the whole tables, which needs update=adamw."""
    update: Update = "adamw"
    """How tables learn: with dense gradients in AdamW like all else; or with sparse ones, where only the rows of a
    batch move: lazy_adam (moments of the touched rows alone), rowwise_adagrad (one number of state per row)."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Embedding:
        if self.l2_on == "table" and self.update != "adamw":
            raise UserError(
                f"l2_on=table moves every row in every step: use update=adamw, not {self.update}",
                code="settings-conflict",
            )
        for name, width in self.dims:
            if width == self.dim:
                raise UserError(f"dims: {name!r} needs a width that differs from dim={self.dim}", code="invalid-width")
        return self


class FieldEmbedding(nn.Module):
    """Impressions -> `FieldTokens`, of which only the parts that the ranker reads are made."""

    def __init__(
        self,
        fields: Fields,
        spec: Embedding,
        reads: frozenset[str],
        contexts: Sequence[Sequence[str]] = (),
        sequences: SequenceSpec = Pooled(),
        events: int = 0,
    ):
        """`reads` are the parts of `FieldTokens` that the ranker reads, `events` the
        newest events of each sequence."""
        super().__init__()
        self.fields, self.spec, self.events = tuple(fields), spec, events
        tokens, linear, dim = "tokens" in reads, "linear" in reads, spec.dim
        numbers = len(places_of(fields, "numeric"))
        widths = _widths(fields, spec) if tokens else {}
        groups = [members(group, fields) for group in (sequences.groups(fields) if tokens else ())]
        apart = {member.name for group in groups for member in group}
        fused = partial(FusedTable, fields, mode=spec.bags, sparse=spec.update != "adamw")
        # vectors: a table for each width, that of the tokens first, and projections of the others
        # to it
        self.tables = nn.ModuleList(
            fused({n for n, w in widths.items() if w == width}, width, apart=apart)
            for width in sorted(set(widths.values()), key=lambda width: (width != dim, width))
        )
        self.projections = nn.ParameterDict()
        for position, field in enumerate(fields):
            if (width := widths.get(field.name, dim)) != dim:
                matrix = nn.init.xavier_normal_(torch.empty(width, dim))
                self.projections[str(position)] = nn.Parameter(matrix)
        # the first-order part, and the vectors of numbers
        self.linear_table = fused({field.name for field in fields}, 1) if linear else None
        self.numeric = Numbers(numbers, dim, spec.std, (2 / (1 + dim)) ** 0.5) if tokens and numbers else None
        self.linear_numeric = Numbers(numbers, 1, spec.std, spec.std) if linear and numbers else None
        self.bias = nn.Parameter(torch.zeros(())) if linear else None
        # second vectors of groups of fields
        owners = _owners(fields)
        for names in contexts:
            check_once(names, "a context", "each field stands once", code="repeated-field")
            for name in names:
                if name not in owners:
                    raise _no_table("a context", name, owners)
        self.groups = len(contexts)
        self.contexts = nn.ModuleDict(
            {str(group): fused(set(names), dim) for group, names in enumerate(contexts) if names}
        )
        for table in self._all_tables():
            nn.init.normal_(table.table, std=spec.std)
        # histories that are attended, and how they are read
        self.attended = nn.ModuleList()
        for group in groups:
            sizes = [widths[member.name] for member in group]
            self.attended.append(AttendedGroup(group, sizes, sequences.build(sum(sizes))))
        self.reader = SequenceReader(fields, sequences, [group for group in groups if len(group) > 1])
        read = [*self.reader.searched, *self.reader.together]
        self.parallel = in_parallel([member.bag for member in group] for group in read if len(group) > 1)
        """Groups of bags, by their numbers in a batch, in which value i of each bag is of the same event."""
        self.equally_long = self.parallel if sequences.uneven == "error" else []
        """Groups of `parallel` that must have equally many values in every row."""
        self.padded = False
        """Whether histories are computed with their padding, as the references and exported graphs do."""
        self.most = EVENTS if sequences.most is None else sequences.most

    def _all_tables(self) -> list[FusedTable]:
        extra = [] if self.linear_table is None else [self.linear_table]
        return [*self.tables, *extra, *self.contexts.values()]

    def row_parameters(self) -> list[nn.Parameter]:
        """The tables whose touched rows alone are updated (`update`)."""
        return [] if self.spec.update == "adamw" else [table.table for table in self._all_tables()]

    def looked_up(self) -> int:
        """Parameters of the look-ups: all but the projections, the bias and what attends to histories."""
        parts = [*self._all_tables(), self.numeric, self.linear_numeric]
        return sum(p.numel() for part in parts if part is not None for p in part.parameters())

    def flops(self, events: int | None = None) -> Flops:
        """FLOPs of one impression: projections of fields that are stored at another width, and attention to histories.

        A history has so many `events`; without them 50, or as many as hard search keeps. This is a
        formula, since look-ups of ragged bags cannot run on shapes.
        """
        flops: Flops = {}
        if self.projections:
            places = [*self.projections, *map(str, places_of(self.fields, "sequence") * self.events)]
            flops["projections"] = 2 * sum(self.projections[p].numel() for p in places if p in self.projections)
        if len(self.attended):
            weights = [p.numel() for part in self.attended for p in part.parameters() if p.ndim == 2]
            flops["attention"] = 2 * sum(weights) * (self.most if events is None else events)
        return flops

    def forward(self, batch: Impressions, wanted: frozenset[str] = frozenset()) -> FieldTokens:
        batch = self.reader(batch)
        tokens = self._tokens(batch)
        linear = None if self.linear_table is None else self._linear(batch)
        contexts = tuple(  # the fields of each group in the order of the schema, perhaps none
            in_order(self.contexts[group](batch), {})
            if group in self.contexts
            else batch.numeric.new_zeros(batch.numeric.shape[0], 0, self.spec.dim)  # a graph has no len(batch)
            for group in map(str, range(self.groups))
        )
        return FieldTokens(tokens, linear, wanted, contexts, self._newest(batch) if self.events else None)

    def penalty(self, batch: Impressions) -> Float[Tensor, ""]:
        """l2 / 2 times the squared norm of the vectors."""
        whole, batch = self.spec.l2_on == "table", self.reader(batch)
        parts = [t.table.square().sum() if whole else t.squared(batch) for t in self._all_tables()]
        numbers = [part for part in (self.numeric, self.linear_numeric) if part is not None]
        parts += [vectors.square().sum() for part in numbers for vectors in part.parameters()]
        return torch.stack(parts).sum() * (self.spec.l2 / 2)

    def _tokens(self, batch: Impressions) -> Float[Tensor, "B F E"]:
        """The vector of each field, in the order of the schema."""
        if not len(self.tables) and self.numeric is None:
            return batch.numeric.new_zeros(batch.categorical.shape[0], len(self.fields), 0)
        parts: PlacedVectors = [part for table in self.tables for part in table(batch)]
        if len(self.attended):
            parts += self._attended(batch, parts)
        if self.numeric is not None:
            parts.append((places_of(self.fields, "numeric"), self.numeric(batch.numeric, batch.missing)))
        return in_order(parts, dict(self.projections.items()))

    def _attended(self, batch: Impressions, parts: PlacedVectors) -> PlacedVectors:
        """The vectors of the sequences that are not pooled; `parts` have those of their targets."""
        fields = {position: vectors[:, n] for places, vectors in parts for n, position in enumerate(places)}
        attended: PlacedVectors = []
        for group in self.attended:
            assert isinstance(group, AttendedGroup)
            tables = [self._table(member.name) for member in group.members]
            attended += group(batch, fields, tables, padded=self.padded)
        return attended

    def _newest(self, batch: Impressions) -> Float[Tensor, "B n E"]:
        """The vectors of each sequence's last events, the newest first;
        zeros where a history has fewer."""
        back, newest = torch.arange(self.events, device=batch.categorical.device), []
        for position, bag in zip(places_of(self.fields, "bag", "sequence"), batch.bags, strict=True):
            field = self.fields[position]
            if field.kind == "bag":
                continue
            # [B, n] places of the newest events, below 0 where a history has fewer
            at = bag.lengths[:, None] - 1 - back
            ids = nn.functional.pad(inside_of(bag)[1], (0, 1))  # a bag may have no column
            vectors = self._table(field.name).rows(field.name, ids.gather(1, at.clamp_min(0).long()))
            matrix = self.projections.get(str(position))
            vectors = vectors if matrix is None else vectors @ matrix
            newest.append(torch.where((at >= 0)[..., None], vectors, 0.0))
        return torch.cat(newest, 1)

    def _table(self, name: str) -> FusedTable:
        """The table that holds a field."""
        return next(table for table in self._all_tables() if name in table.starts)

    def _linear(self, batch: Impressions) -> Float[Tensor, "B"]:
        """The first-order part of the logit: the bias, and a weight for each id and number."""
        assert self.linear_table is not None and self.bias is not None
        parts = [part.sum((1, 2)) for _, part in self.linear_table(batch)]
        if self.linear_numeric is not None:
            parts.append(self.linear_numeric(batch.numeric, batch.missing).sum((1, 2)))
        return self.bias + torch.stack(parts).sum(0)


class Numbers(nn.Module):
    """The vectors x_f w_f of numeric fields, and one of its own for each that is missing."""

    def __init__(self, numbers: int, width: int, std: float, weight_std: float):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) * weight_std)
        self.missing = nn.Parameter(torch.randn(numbers, width) * std)

    def forward(self, x: Float[Tensor, "B X"], missing: Tensor) -> Float[Tensor, "B X D"]:
        return torch.where(missing[..., None], self.missing, x[..., None] * self.weight)


def _widths(fields: Fields, spec: Embedding) -> dict[str, int]:
    """Width of each field that has ids; one that shares a table has its owner's."""
    widths = dict.fromkeys(_owners(fields), spec.dim)
    for name, width in spec.dims:
        if name not in widths:
            raise _no_table("embedding.dims", name, widths)
        widths[name] = width
    return {f.name: widths[f.shares or f.name] for f in fields if f.kind != "numeric"}


def _owners(fields: Fields) -> list[str]:
    """Names of the fields that have ids and a table of their own."""
    return [field.name for field in fields if field.kind != "numeric" and field.shares is None]


def _no_table(setting: str, name: str, owners: Iterable[str]) -> UserError:
    return no_such(f"{setting}: no field with a table of its own is called", name, owners, code="unknown-field")
