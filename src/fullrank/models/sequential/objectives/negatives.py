"""Sampled negatives: a mixture of sources with the exact probability of each item under the mixture.

Draws are a function of their place (seed, step, row, position), so shards and resumed runs
draw the same ones. In-batch negatives are the targets of the queries at hand: under DDP
those of this process alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.constraints import Factor, ListLength, some_of
from fullrank.core.random import uniform_draws
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.models import ItemVectors, Queries
from fullrank.models.sequential.items import ItemIndex
from fullrank.ops.kernels import product_dtype
from fullrank.ops.picked_rows import distinct_and_places, picked_dots, shared_dots


class Negatives(Spec):
    """How negatives are drawn: with replacement from a mixture."""

    count: ListLength = 128
    """Negatives per query."""
    uniform: Annotated[Factor, some_of("popularity", "in_batch")] = 1.0
    """Weight of the uniform source in the mixture."""
    popularity: Factor = 0.0
    """Weight of the training distribution."""
    in_batch: Factor = 0.0
    """Weight of the targets of the batch."""
    share: Literal["query", "row", "batch"] = "row"
    """One draw for each query, for each row, or for the batch."""
    exclude: Literal["none", "target", "history"] = "target"
    """Negatives that do not count: none, those equal to the query's target, or also those in the row's events."""


def draw(spec: Negatives, q: Queries, batch: Batch) -> Int[Tensor, "R N"]:
    """The ids of drawn items: R is M, B or 1, as `share` says."""
    keys = _row_keys(spec, q, batch)
    u = uniform_draws(batch.seed, batch.step, keys, 2 * spec.count)
    # `source` draws a source of the mixture, `value` an item of it
    source, value = u[:, : spec.count], u[:, spec.count :]
    # shares of uniform, popularity, in-batch: a source draws where `source` falls into its share
    weights = _weights(spec)
    ids = (value * q.table.size).long().clamp_max(q.table.size - 1)
    if weights[1] > 0:
        popular = torch.searchsorted(_cumulative(q.table, keys.device), value.contiguous(), right=True)
        ids = torch.where(source >= weights[0], popular.clamp_max(q.table.size - 1), ids)
    if weights[2] > 0 and len(q.targets):
        targets = q.targets[(value * len(q.targets)).long().clamp_max(len(q.targets) - 1)]
        ids = torch.where(source >= weights[0] + weights[1], targets, ids)
    return ids


def log_probability(spec: Negatives, q: Queries, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Log probability that one draw of the mixture gives an item."""
    weights = _weights(spec)
    p = torch.full(ids.shape, weights[0] / q.table.size, device=ids.device, dtype=torch.float32)
    if weights[1] > 0:
        p = p + weights[1] * q.table.log_q(ids).exp()
    if weights[2] > 0:
        share = torch.bincount(q.targets, minlength=q.table.size) / max(1, len(q.targets))
        p = p + weights[2] * share[ids]
    return p.clamp_min(1e-30).log()  # finite for items that no source draws


def per_query(spec: Negatives, drawn: Tensor, q: Queries) -> Tensor:
    """Drawn rows as one row per query, [M, N, ...]."""
    if spec.share == "query":
        return drawn
    return drawn[q.rows] if spec.share == "row" else drawn.expand(len(q.rows), *drawn.shape[1:])


def scores(spec: Negatives, drawn: Int[Tensor, "R N"], q: Queries) -> Float[Tensor, "M N"]:
    """Score of every query's negatives, in fp32."""
    products, term = _products(spec, drawn, q), added_scores(q, per_query(spec, drawn, q))
    return (products if term is None else products + term) / q.temperature


def added_scores(q: Queries, ids: Int[Tensor, "M n"]) -> Float[Tensor, "M n"] | None:
    """Score terms beside the inner product; None where the table's items add nothing."""
    return q.table.added(q.vectors, ids, q.times) if isinstance(q.table, ItemIndex) else None


def _products(spec: Negatives, drawn: Int[Tensor, "R N"], q: Queries) -> Float[Tensor, "M N"]:
    """Inner products of every query with its negatives."""
    if spec.share == "query":
        ids, index = distinct_and_places(drawn, q.table.size)
        return picked_dots(q.vectors, q.table.embed(ids), index)
    if spec.share == "batch":
        return (q.vectors @ q.table.embed(drawn)[0].T).float()
    # queries of one row share its negatives: one product per row, on rows padded to the longest
    starts = torch.searchsorted(q.rows, q.rows)
    column = torch.arange(len(q.rows), device=q.rows.device) - starts
    empty = q.vectors.new_zeros(len(drawn), int(column.max()) + 1 if len(column) else 0, q.vectors.shape[1])
    padded = empty.index_put((q.rows, column), q.vectors)
    if q.vectors.is_cpu and product_dtype(q.vectors) == torch.bfloat16:
        ids, index = distinct_and_places(drawn, q.table.size)
        products = shared_dots(padded, q.table.embed(ids), index)
    else:
        products = padded @ q.table.embed(drawn).mT
    return products[q.rows, column].float()


def counted_negatives(spec: Negatives, ids: Int[Tensor, "M N"], q: Queries, batch: Batch) -> Bool[Tensor, "M N"]:
    """False for the negatives that do not count."""
    if spec.exclude == "none":
        return torch.ones_like(ids, dtype=torch.bool)
    good = ids != q.targets[:, None]
    if spec.exclude == "history":
        events = torch.where(batch.valid, batch.items, -1).sort(1).values[q.rows]
        # a sorted row holds an id where the search for it ends, or nowhere
        at = torch.searchsorted(events, ids.contiguous()).clamp_max(events.shape[1] - 1)
        good &= events.gather(1, at) != ids
    return good


def _cumulative(table: ItemVectors, device: torch.device) -> Float[Tensor, "V"]:
    """Share of the training events of the items up to each; the last is 1."""
    if isinstance(table, ItemIndex):  # it keeps the sum for as long as the counts stay
        return table.cumulative()
    running = table.log_q(torch.arange(table.size, device=device)).double().exp().cumsum(0)
    return running / running[-1]


def _weights(spec: Negatives) -> tuple[float, float, float]:
    """Shares of the mixture: uniform, popularity, in-batch."""
    total = spec.uniform + spec.popularity + spec.in_batch
    return spec.uniform / total, spec.popularity / total, spec.in_batch / total


def _row_keys(spec: Negatives, q: Queries, batch: Batch) -> Int[Tensor, "R"]:
    """A number for each row of draws; draws are a function of it, the seed and the step."""
    # a number of the group's name, so that two groups of queries in one row draw different
    # negatives
    group = sum(ord(letter) * 31**i for i, letter in enumerate(q.name)) % 1_000_003
    if spec.share == "batch":
        return torch.full((1,), group, device=q.targets.device)
    # a row has fewer than 65,536 positions, and a group's number is below 1,000,003: no
    # two keys are one number
    keys = batch.row_ids if spec.share == "row" else batch.row_ids[q.rows] * 65_536 + q.positions
    return keys * 1_000_003 + group
