"""Items from what is known of them: id vector + categorical vectors + a linear map of numbers, summed.

A column of lists (the category levels of an item with its brand, tags) adds the vector of each of
its values. They share a table, so a value has one vector wherever in a list it stands. Numbers are
standardised, a missing one is 0 with an indicator of its own. Without the id vector, an item is
known by its features alone, so a new item has a useful vector on its first day.

`combine: beside` is FDSA's (Zhang et al., IJCAI 2019): the vector's first half is the id's,
its second the mean of the values' vectors a_k (numbers are one of them), weighed by
softmax(w . a_k). Differs: there an item is searched by its id alone; a bias, which the
softmax would cancel, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.core.checks import halved
from fullrank.core.constraints import DropoutRate, only_with, some_of
from fullrank.core.errors import UserError
from fullrank.core.spec import later
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.item_features import CategoricalFeature, CategoryLists
from fullrank.models.sequential.items import Items, ItemsSpec, other_items
from fullrank.ops.dropout import Dropout
from fullrank.ops.starting_values import start_small


class Features(ItemsSpec):
    """Item vectors from features."""

    kind: Literal["features"] = "features"
    categorical: Annotated[tuple[str, ...], some_of("numeric", code="no-feature-columns")] = ()
    """Columns of the item table with a vector for each value; of a column of lists the sum of its values' vectors."""
    numeric: tuple[str, ...] = ()
    """Columns of the item table that are numbers."""
    ids: bool = True
    """Add a vector of the item's own."""
    dropout: DropoutRate = 0.0
    """Dropout on the whole vector."""
    combine: Annotated[Literal["sum", "beside"], only_with("ids")] = later("sum")
    """Add everything up, or id and features side by side, half of the width each, for the encoder `fdsa`."""

    def build(self, dim: int, catalog: Catalog) -> FeatureItems:
        return FeatureItems(dim, catalog, self)


class FeatureItems(Items):
    uncounted = "the map of numbers is computed for every place of a step, and negatives are asked for in several ways"
    codes: Tensor
    numbers: Tensor

    def __init__(self, dim: int, catalog: Catalog, spec: Features):
        super().__init__()
        self.spec = spec
        columns = [coded_column(catalog, name) for name in spec.categorical]
        single = [torch.as_tensor(c.codes) for c in columns if isinstance(c, CategoricalFeature)]
        codes = torch.stack(single, 1) if single else torch.zeros(catalog.size, 0, dtype=torch.long)
        self.register_buffer("codes", codes)
        self.lists = [i for i, c in enumerate(columns) if isinstance(c, CategoryLists)]
        self.single = [i for i in range(len(columns)) if i not in self.lists]
        for i in self.lists:
            self.register_buffer(f"codes_{i}", torch.as_tensor(columns[i].codes))
        self.count_items(catalog.popularity)
        whole, self.beside = dim, spec.combine == "beside"
        if self.beside:
            dim = halved(dim, "features: combine=beside")
        self.tables = nn.ModuleList(nn.Embedding(c.cardinality, dim) for c in columns)
        self.embedding = nn.Embedding(self.size, whole - dim if self.beside else dim) if spec.ids else None
        # a single value is its own mean
        several = len(self.lists) > 0 or len(columns) + bool(spec.numeric) > 1
        self.attend = nn.Linear(dim, 1, bias=False) if self.beside and several else None
        self.linear: nn.Linear | None = None
        if spec.numeric:
            numbers = torch.as_tensor(catalog.numeric(spec.numeric).matrix)
            self.register_buffer("numbers", numbers)
            self.linear = nn.Linear(numbers.shape[1], dim)
        self.drop = Dropout(spec.dropout)
        start_small(self)
        start_small(self.tables)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        if self.beside and self.embedding is not None:
            return self.drop(torch.cat([self.embedding(ids), self._attended(ids)], -1))
        parts = self._value_vectors(ids)
        parts += [(vectors * known[..., None]).sum(-2) for vectors, known in self._list_vectors(ids)]
        if self.embedding is not None:
            parts.append(self.embedding(ids))
        if self.linear is not None:
            parts.append(self.linear(self.numbers[ids]))
        return self.drop(torch.stack(parts).sum(0))

    def _value_vectors(self, ids: Int[Tensor, "*n"]) -> list[Tensor]:
        """The vector of each column of single values."""
        codes = self.codes[ids]
        return [self.tables[i](codes[..., column]) for column, i in enumerate(self.single)]

    def _list_vectors(self, ids: Int[Tensor, "*n"]) -> Iterator[tuple[Tensor, Tensor]]:
        """The vectors of each column of lists, and which are of values:
        padding (-1) reads some row."""
        for i in self.lists:
            codes = getattr(self, f"codes_{i}")[ids]
            yield self.tables[i](codes.clamp_min(0)), codes >= 0

    def _attended(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n e"]:
        """The mean of the values' vectors, each weighed by what it is."""
        vectors = [vector[..., None, :] for vector in self._value_vectors(ids)]
        there = [torch.ones_like(self.codes[ids], dtype=torch.bool)]
        for values, known in self._list_vectors(ids):
            vectors.append(values)
            there.append(known)
        if self.linear is not None:
            vectors.append(self.linear(self.numbers[ids])[..., None, :])
            there.append(torch.ones_like(ids, dtype=torch.bool)[..., None])
        values = torch.cat(vectors, -2)
        if self.attend is None:
            return values[..., 0, :]
        scores = self.attend(values)[..., 0].masked_fill(~torch.cat(there, -1), float("-inf"))
        return (scores.softmax(-1)[..., None] * values).sum(-2)

    def all(self) -> Float[Tensor, "V D"]:
        return self.embed(torch.arange(self.size, device=self.codes.device))

    def transferred(self, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
        """Move an earlier run's vectors of features to the codes and scales of the catalogue `new`.

        A value's vector goes with the value (values that the run never saw start as in a fresh
        model), and the linear map is corrected for the change of mean and scale: equal features
        have equal vectors before and after.
        """
        moved, fresh = {}, self.state_dict()
        for i, name in enumerate(self.spec.categorical):
            key = f"tables.{i}.weight"
            table, learned = fresh[key].clone(), tensors[key]
            rows, sources = _same_values(name, old, new)
            if learned.shape != (coded_column(old, name).cardinality, table.shape[1]):
                raise other_items(f"{key} than the column {name!r} has values")
            table[rows] = learned[sources]
            moved[key] = table
        if self.linear is not None:
            weight, bias = tensors["linear.weight"], tensors["linear.bias"]
            if weight.shape != self.linear.weight.shape:
                raise other_items("number of numeric columns")
            scales = _scales(self.spec.numeric, old, new)
            moved["linear.weight"], moved["linear.bias"] = _rescaled(weight, bias, *scales)
        return moved


def coded_column(catalog: Catalog, name: str) -> CategoricalFeature | CategoryLists:
    """The codes of a column: one of each item, or several."""
    return catalog.categories(name) if catalog.holds_lists(name) else catalog.categorical(name)


def _same_values(name: str, old: Catalog, new: Catalog) -> tuple[list[int], list[int]]:
    """Codes in `new` and in `old` of the values that a column has in
    both, with missing (0) first."""
    a, b = coded_column(old, name).values, coded_column(new, name).values
    if len(a) and len(b) and a.dtype.is_integer() != b.dtype.is_integer():
        raise UserError(
            f"the items' column {name!r} was {a.dtype} in the run and is now {b.dtype}; give it the same type",
            code="column-type-changed",
        )
    codes = {value: code for code, value in enumerate(a, 1)}
    both = [(0, 0), *((code, codes[value]) for code, value in enumerate(b, 1) if value in codes)]
    return [after for after, _ in both], [before for _, before in both]


def _scales(names: tuple[str, ...], old: Catalog, new: Catalog) -> tuple[Tensor, Tensor, Tensor]:
    """[F] float64 each: old scale, new scale, new mean - old mean; a standardised
    value is (raw - mean) * scale."""
    scaling = []
    for catalog in (old, new):
        values = catalog.numeric(names).values
        for i, name in enumerate(names):
            raw = catalog.frame[name].cast(float).fill_nan(None)
            mean = cast(float, raw[: catalog.base].mean()) or 0.0
            offset = (raw - mean).fill_null(0.0).to_numpy()
            # read off the item furthest from the mean, where rounding of its
            # standardised value matters least
            far = int(np.abs(offset).argmax())
            scaling.append((mean, float(values[far, i]) / offset[far] if offset[far] else 0.0))
    means, scales = torch.tensor(scaling, dtype=torch.float64).view(2, len(names), 2).unbind(2)
    return scales[0], scales[1], means[1] - means[0]


def _rescaled(
    weight: Float[Tensor, "D F2"], bias: Float[Tensor, "D"], old: Tensor, new: Tensor, moved: Tensor
) -> tuple[Float[Tensor, "D F2"], Float[Tensor, "D"]]:
    """Change a linear map to new scales, so that it stays the same function of the raw numbers.

    `weight` is of the F values, then of the F missing indicators. With raw = z / new + new mean, a
    known number's part w (raw - old mean) old is w (old / new) z + w old moved. The constant goes
    into the bias; a missing number has no such part, so its indicator takes it back.
    """
    value, missing = weight.double().chunk(2, 1)
    ratio = torch.where(new > 0, old / torch.where(new > 0, new, 1.0), 0.0)  # 0 where the new data is constant
    constant = value * (old * moved)
    both = torch.cat([value * ratio, missing - constant], 1)
    return both.to(weight.dtype), (bias.double() + constant.sum(1)).to(bias.dtype)
