"""Items made of their semantic ids: an item's vector is put together from the vectors of its K codes.

`parts: mean` (RPG and FAIR: the mean of K vectors of the full width) and `sum` (TIGER's input);
`concat` (RecJPQ, Petrov and Macdonald, WSDM 2024, arXiv:2312.06165: K vectors of width D / K, one
behind the other). Parameters grow with the codebooks and not with the catalogue, and an item that
comes later has a vector as soon as it has codes.

A run keeps the codes in its own item table, in the columns `codes` and `code_sizes`
(`add_columns`), so it needs the folder that `fullrank encode` wrote only once. Rows of the code
table: code c of level k is row offset_k + c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.checks import divided
from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog, derived_column
from fullrank.models.sequential.items import ItemIndex, Items, ItemsSpec, LookedUpItems, unit
from fullrank.models.sequential.items.perturb import Noise, perturb
from fullrank.ops.picked_rows import code_scores
from fullrank.ops.starting_values import small
from fullrank.semantic_ids.reader import CODES, SIZES, Codes


@dataclass(frozen=True)
class CodeScorer:
    """Satisfies `models.Scorer`, for existing items alone. A block takes users x items of memory, whatever K is."""

    levels: Float[Tensor, "N B"]
    """Scores of every code of every level, one level below the other, users side by side."""
    sizes: tuple[int, ...]
    """Codes of each level; their sum is N."""
    rows: Int[Tensor, "V K"]
    """The rows of each item's codes."""

    @property
    def size(self) -> int:
        return len(self.rows)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        return code_scores(self.levels, self.rows[low:high]).T


def log_probabilities(logits: Sequence[Float[Tensor, "B _"]]) -> Float[Tensor, "N B"]:
    """`CodeScorer.levels` of items scored by the mean log-probability of their codes (RPG, Eq. 6)."""
    return torch.cat([level.float().log_softmax(-1) for level in logits], 1).T.contiguous() / len(logits)


class Semantic(ItemsSpec):
    """Item vectors from codes."""

    kind: Literal["semantic"] = "semantic"
    codes: str | None = None
    """Folder that `fullrank encode` wrote; null where the item table has the codes already, as a run's own does."""
    parts: Literal["mean", "sum", "concat"] = "mean"
    """How the vectors of an item's codes become one."""

    def add_columns(self, catalog: Catalog) -> Catalog:
        """The catalogue with each item's codes. Raises `UserError` where they lack some items."""
        return catalog if self.codes is None else Codes.open(self.codes).attach(catalog)

    def build(self, dim: int, catalog: Catalog) -> SemanticItems:
        codes, sizes = read_codes(catalog)
        if self.parts == "concat":
            remedy = f"codes, an equal part for each: set model.dim to a multiple of {len(sizes)}, or parts=mean"
            divided(dim, len(sizes), "parts=concat: the width", remedy)
        return SemanticItems(dim, catalog, codes, sizes, self)


class SemanticItems(LookedUpItems):
    """Vectors put together from a table with a row for each code of each level."""

    codes: Tensor
    offsets: Tensor

    def __init__(self, dim: int, catalog: Catalog, codes: Int[Tensor, "V K"], sizes: tuple[int, ...], spec: Semantic):
        super().__init__()
        self.sizes, self.parts = sizes, spec.parts
        self.register_buffer("codes", codes)
        self.count_items(catalog.popularity)
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0), persistent=False)
        self.table = small(sum(sizes), dim // len(sizes) if spec.parts == "concat" else dim)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        return self._joined(self.codes[ids] + self.offsets)

    def all(self) -> Float[Tensor, "V D"]:
        return self._joined(self.codes + self.offsets)

    def perturbed(self, ids: Int[Tensor, "B T"], noise: Noise) -> Float[Tensor, "B T D"]:
        """`embed` with noise on the digits; a masked one is the padding vector and is counted in the mean."""
        digits, unmasked = perturb(self.codes[ids], self.sizes, noise)
        rows = digits + self.offsets
        if self.parts == "concat":
            return noise.masked(self.table[rows], unmasked).flatten(-2)
        flat, share = rows.flatten(0, 1), 1 / rows.shape[-1] if self.parts == "mean" else 1.0
        weights = unmasked.flatten(0, 1).to(self.table.dtype) * share
        # weights are for mode=sum alone
        joined = F.embedding_bag(flat, self.table, mode="sum", per_sample_weights=weights).view(*ids.shape, -1)
        return joined if noise.pad is None else joined + (~unmasked).sum(-1, keepdim=True) * share * noise.pad

    def code_vectors(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n K D"]:
        """The vector of each code of these items, where they are of the whole width."""
        return self.table[self.codes[ids] + self.offsets]

    def perturbed_codes(self, ids: Int[Tensor, "B T"], noise: Noise) -> Float[Tensor, "B T K D"]:
        """`code_vectors` with noise on the digits."""
        digits, unmasked = perturb(self.codes[ids], self.sizes, noise)
        return noise.masked(self.table[digits + self.offsets], unmasked)

    def part_width(self) -> int:
        return self.table.shape[1]

    def _joined(self, rows: Int[Tensor, "*n K"]) -> Float[Tensor, "*n D"]:
        """The items' vectors, put together from these rows of the code table."""
        if self.parts == "concat":
            return self.table[rows].flatten(-2)
        flat, mode = rows.reshape(-1, rows.shape[-1]), "mean" if self.parts == "mean" else "sum"
        return F.embedding_bag(flat, self.table, mode=mode).view(*rows.shape[:-1], self.table.shape[1])


def code_items(items: Items | None, task: str) -> SemanticItems:
    """The items of a task that predicts codes.

    Raises `UserError` where they are not codes of the model's width.
    """
    if not isinstance(items, SemanticItems) or items.parts == "concat":
        raise UserError(
            f"the task {task!r} predicts codes of the model's own width: set model.items.kind=semantic with parts=mean "
            "or parts=sum",
            code="items-not-codes",
        )
    return items


@dataclass(frozen=True, eq=False)
class CodeLevel:
    """One level of semantic ids as what queries search (`models.ItemVectors`): its codes are the items."""

    items: SemanticItems
    number: int
    vectors: Float[Tensor, "C D"]

    @property
    def size(self) -> int:
        return len(self.vectors)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        return self.vectors[ids]

    def all(self) -> Float[Tensor, "C D"]:
        return self.vectors

    def log_q(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Log share of the training events of items with this code; a code without any counts as one event."""
        codes = self.items.codes[:, self.number]
        counts = torch.bincount(codes, self.items.popularity, minlength=self.size).to(self.vectors.dtype).clamp_min(1.0)
        return (counts / counts.sum()).log()[ids]


def levels_of(index: ItemIndex) -> tuple[CodeLevel, ...]:
    """Each level of the codes of an index, normalised where the index is."""
    items = index.items
    assert isinstance(items, SemanticItems)
    table = unit(items.table) if index.normalise else items.table
    return tuple(CodeLevel(items, k, vectors) for k, vectors in enumerate(table.split(items.sizes)))


def score_by_codes(vectors: Float[Tensor, "B K D"], index: ItemIndex) -> CodeScorer:
    """The items' mean log-probability of their codes, where vector k asks for the code of level k."""
    levels, rows = index_codes(index)
    logits = [vectors[:, k] @ level.vectors.T for k, level in enumerate(levels)]
    return CodeScorer(log_probabilities(logits), tuple(level.size for level in levels), rows)


def index_codes(index: ItemIndex) -> tuple[tuple[CodeLevel, ...], Int[Tensor, "V K"]]:
    """The levels of an index and the rows of each item's codes, which `score_by_codes` reads; made once."""
    items = index.items
    assert isinstance(items, SemanticItems)
    return (
        index.once("levels", lambda: levels_of(index)),
        index.once("rows", lambda: items.codes + items.offsets),
    )


def score_by_parts(vectors: Float[Tensor, "B D"], items: SemanticItems) -> CodeScorer:
    """The products of these vectors with every item's, code by code: an item's vector
    is a sum of its codes' parts."""
    tables = items.table.detach().split(items.sizes)
    if items.parts == "concat":
        parts = vectors.unflatten(-1, (len(tables), -1)).unbind(1)
    else:
        parts = (vectors / len(tables) if items.parts == "mean" else vectors,) * len(tables)
    levels = torch.cat([table @ part.T for table, part in zip(tables, parts, strict=True)])
    return CodeScorer(levels, items.sizes, items.codes + items.offsets)


def read_codes(catalog: Catalog) -> tuple[Int[Tensor, "V K"], tuple[int, ...]]:
    """Codes [V, K] and the sizes of their levels.

    Raises `UserError` where the columns are missing or hold no codes.
    """
    how = "make them by `fullrank encode STORE --out FOLDER`, then set model.items.codes=FOLDER"
    cells = derived_column(catalog.frame, CODES, "codes", pl.Array, pl.UInt16, how)
    sizes = derived_column(catalog.frame, SIZES, "codes", pl.Array, pl.Int32, how)
    most = tuple(int(n) for n in sizes[0])
    codes = torch.tensor(cells.to_numpy(), dtype=torch.long).reshape(catalog.size, -1)
    if codes.shape[1] != len(most) or bool((codes >= torch.tensor(most)).any()):
        raise UserError(
            f"the column {CODES!r} does not fit {SIZES!r}: {codes.shape[1]} codes, sizes {list(most)}",
            code="codes-damaged",
        )
    return codes, most
