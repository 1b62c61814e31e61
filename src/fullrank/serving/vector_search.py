"""Approximate search with an index of item vectors: candidates by 8-bit codes, then exact scores, under any filters.

Items hidden from single users are fetched on top and dropped. Masks go into the search
itself: of cells around centroids so many are read that enough items that may be shown are
among them, since those of a category may lie far from the user. Where a mask leaves few
items, all of them are scored. A user whose list is still not full gets the exact one, so
lists are full while items remain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.inference.code_search import Candidates
from fullrank.inference.exact import TopK, merge, select, top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models import DenseScorer, Scorer
from fullrank.serving.recent import Recent

FEW = 20_000
"""Where a mask leaves at most so many items, all are scored: about a millisecond at width 64."""
OVERFETCH = 400
"""Most hidden items of one user that are fetched on top; more become a mask of their own."""
BLOCK = 1 << 16
"""Items scored at once where a few users need an exact list."""
MOST_PLANS = 64
"""Most masks whose plan is kept; each takes a byte and a bit for each item."""
MOST_SCORED = 1 << 21
"""Most allowed items of a batch that are scored side by side; more are searched exactly, in blocks."""
LONGER = 0.5
"""A list of k reads (k / 10) ** LONGER times as many cells as one of 10, which keeps recall up to k = 500."""
SHARE = 0.3
"""Under a mask that leaves a share s of the items, s ** SHARE times as many items are read as without a mask.

At 0 every mask would cost 1 / s times the search; at 1 recall falls to 0.8 where the items that are
left lie far from the user.
"""


@dataclass(frozen=True)
class Plan:
    """A mask of refused items, prepared for the search."""

    masks: tuple[Tensor, ...]
    """Held, so that their addresses in memory, by which the plan is found, are not used again."""
    left: int
    """Items that may be shown."""
    few: Int[Tensor, "n"] | None
    """All of them, by rising id, where they are few."""
    bits: np.ndarray
    """Held for the selector, which only points to it."""
    selector: Any
    counts: Int[Tensor, "c"] | None
    """Items of each cell that may be shown."""


class VectorSearch:
    """A `Search` with a faiss index of the first `items` rows of a scorer's table."""

    def __init__(self, index: Any, items: int, cells: int, probes: int, rerank: int):
        self.index, self.items, self.cells, self.probes, self.rerank = index, items, cells, probes, rerank
        self._plans: Recent[Plan] = Recent(MOST_PLANS)

    @torch.inference_mode()
    def __call__(self, scorer: Scorer, k: int, filters: BatchFilter | None = None) -> TopK:
        if not isinstance(scorer, DenseScorer) or scorer.size < self.items or scorer.table.shape[1] != self.index.d:
            raise UserError(
                f"this index is of {self.items:,} item vectors of width {self.index.d}, and the model scores "
                f"{_described(scorer)}: build an index from its own item vectors, or search exactly",
                code="index-of-other-vectors",
            )
        queries = (scorer.vectors / scorer.temperature).to(scorer.table.dtype)
        if k < 1 or not bool(queries.isfinite().all()):
            return top_k(scorer, k, filters=filters)  # which refuses them
        exact = DenseScorer(queries, scorer.table)
        scores = queries.new_full((len(queries), k), -torch.inf, dtype=torch.float32)
        ids = torch.full((len(queries), k), -1, device=queries.device)
        for rows, plan in self._groups(filters, len(queries)):
            lists = self._lists(exact, rows, k, filters, plan)
            if len(rows) == len(queries):
                scores, ids = lists
            else:
                scores[rows], ids[rows] = lists
        if scorer.size > self.items:
            scores, ids = _with_newer(exact, self.items, scores, ids, filters)
        return scores, ids

    def nearest(
        self, queries: Float[np.ndarray, "b D"], count: int, k: int = 10, plan: Plan | None = None
    ) -> Int[np.ndarray, "b m"]:
        """The `count` best items by code that a plan lets through, in the cells for
        lists of k; -1 where none is."""
        faiss = the_library()
        probes = min(math.ceil(self.probes * max(1.0, k / 10) ** LONGER), self.cells)
        count, queries = min(count, self.items), np.ascontiguousarray(queries, np.float32)
        if not self.cells or plan is None:
            parameters = faiss.SearchParametersIVF(nprobe=probes) if self.cells else faiss.SearchParameters()
            if plan is not None:
                parameters.sel = plan.selector
            return np.asarray(self.index.search(queries, count, params=parameters)[1])
        cells, values = self._cells_for(torch.from_numpy(queries), probes, plan)
        parameters = faiss.SearchParametersIVF(nprobe=cells.shape[1], sel=plan.selector)
        scores, ids = np.empty((len(queries), count), np.float32), np.empty((len(queries), count), np.int64)
        # faiss's own wrapper takes no parameters here
        of_queries, *pointers = map(faiss.swig_ptr, (queries, cells, values, scores, ids))
        self.index.search_preassigned_c(len(queries), of_queries, count, *pointers, False, parameters)
        return ids

    def _cells_for(
        self, queries: Float[Tensor, "b D"], probes: int, plan: Plan
    ) -> tuple[Int[np.ndarray, "b n"], Float[np.ndarray, "b n"]]:
        """Cells by falling score until they hold enough items that may be shown (-1: skipped), and their scores.

        A mask that leaves a share s of the items needs about 1 / s times the cells, so the best
        `most` are looked at, and all where these hold too few. A cell is read while those before it
        hold fewer than `wanted`; cells without an item that may be shown are skipped, and columns
        that no query reads are cut off.
        """
        assert plan.counts is not None
        share = plan.left / self.items
        wanted = min(probes / self.cells * self.items * share**SHARE, plan.left)
        products, most = queries @ self._centroids.T, math.ceil(min(probes * 2 / share, self.cells))
        while True:
            values, cells = products.topk(most, dim=1)
            shown_counts = plan.counts[cells]
            before = shown_counts.cumsum(1) - shown_counts
            if most == self.cells or bool((before[:, -1] + shown_counts[:, -1] >= wanted).all()):
                break
            most = self.cells
        read = (before < wanted) & (shown_counts > 0)
        width = int(read.any(0).nonzero()[-1]) + 1
        cells = cells.masked_fill(~read, -1)[:, :width]
        return cells.contiguous().numpy(), values[:, :width].contiguous().numpy()

    def _lists(
        self, scorer: DenseScorer, rows: Int[Tensor, "r"], k: int, filters: BatchFilter | None, plan: Plan | None
    ) -> TopK:
        """The lists of rows of the batch that share a plan, from the items of the index."""
        size, whole = len(scorer.vectors), len(rows) == len(scorer.vectors)
        row_filters = filters if filters is None or whole else filters.only(rows, size)
        part = scorer if whole else DenseScorer(scorer.vectors[rows], scorer.table)
        if filters is not None and filters.allowed is not None:
            return self._among_allowed(part, k, row_filters)
        if plan is not None and plan.few is not None:
            few = plan.few.to(rows.device)
            scores = part.vectors @ part.table.index_select(0, few).T
            return Candidates(few.expand(len(rows), -1), scores.float()).best(k, row_filters)
        hidden = 0
        if row_filters is not None and len(row_filters.hidden.rows):
            hidden = int(row_filters.hidden.rows.bincount().max())
        if hidden > OVERFETCH:
            hidden = 0  # the plan of such a user refuses them
        count = max(self.rerank, k + max(k // 2, 10)) + hidden
        with faiss_threads(1):  # a service has its own threads, and batches are small
            candidates = self.nearest(part.vectors.float().cpu().numpy(), count, k, plan)
        scores, ids = _scored(part, torch.from_numpy(candidates).to(rows.device)).best(k, row_filters)
        short = (ids[:, -1] < 0).nonzero()[:, 0]
        if len(short):
            again = None if row_filters is None else row_filters.only(short, len(rows))
            left = DenseScorer(part.vectors[short], part.table[: self.items])
            scores[short], ids[short] = top_k(left, k, filters=again, block=BLOCK)
        return scores, ids

    def _among_allowed(self, scorer: DenseScorer, k: int, filters: BatchFilter | None) -> TopK:
        """Lists of users of whom each has a list of allowed items:
        those are scored, and no other."""
        assert filters is not None and filters.allowed is not None
        rows, items = (part.cpu().numpy() for part in (filters.allowed.rows, filters.allowed.items))
        indexed = items < self.items
        lists = Jagged.from_pairs(rows[indexed], items[indexed], len(scorer.vectors))
        if int(lists.lengths.max(initial=0)) * len(lists) * scorer.table.shape[1] > MOST_SCORED * 64:
            return top_k(DenseScorer(scorer.vectors, scorer.table[: self.items]), k, filters=filters)
        candidates = torch.from_numpy(lists.padded(fill=-1)).to(scorer.table.device)
        return _scored(scorer, candidates).best(k, filters)

    def _groups(self, filters: BatchFilter | None, batch: int) -> Iterator[tuple[Int[Tensor, "r"], Plan | None]]:
        """Rows of the batch that share their masks, with the plan of these."""
        all_rows = torch.arange(batch)
        if filters is None or filters.allowed is not None:
            yield all_rows, None
            return
        device = filters.hidden.rows.device
        heavy = filters.hidden.rows.bincount(minlength=batch).cpu() > OVERFETCH
        member = torch.zeros(batch, len(filters.masks) + 1, dtype=torch.long)
        for number, (rows, _) in enumerate(filters.masks):
            member[rows.cpu(), number] = 1
        member[:, -1] = torch.where(heavy, all_rows + 1, 0)  # a user with many hidden items is a group alone
        common = () if filters.barred is None else (filters.barred,)
        for key, rows in _alike(member):
            masks = common + tuple(
                mask for has_mask, (_, mask) in zip(key[:-1].tolist(), filters.masks, strict=True) if has_mask
            )
            hidden = filters.hidden.items[filters.hidden.rows == int(rows[0])] if int(key[-1]) else None
            yield rows.to(device), self._plan(masks, hidden)

    def _plan(self, masks: tuple[Bool[Tensor, "V"], ...], hidden: Int[Tensor, "p"] | None) -> Plan | None:
        """The plan of masks together, made once while they are in use, and of one
        user's hidden items, made anew."""
        if hidden is not None:
            refused = torch.zeros(self.items, dtype=torch.bool)
            for mask in masks:
                refused |= mask[: self.items].cpu()
            refused[hidden[hidden < self.items].cpu()] = True
            return self._make_plan((), refused)
        if not masks:
            return None

        def make() -> Plan:
            return self._make_plan(masks, torch.stack([mask[: self.items] for mask in masks]).any(0).cpu())

        return self._plans.get(tuple((mask.data_ptr(), len(mask)) for mask in masks), make)

    def _make_plan(self, masks: tuple[Tensor, ...], refused: Bool[Tensor, "v"]) -> Plan:
        faiss = the_library()
        shown = (~refused).numpy()
        left = int(np.count_nonzero(shown))
        if left <= FEW:
            return Plan(masks, left, torch.from_numpy(np.flatnonzero(shown)), np.zeros(0, np.uint8), None, None)
        bits = np.packbits(shown, bitorder="little")
        return Plan(masks, left, None, bits, faiss.IDSelectorBitmap(bits), self._count_cells(shown, left))

    def _count_cells(self, shown: Bool[np.ndarray, "v"], left: int) -> Int[Tensor, "c"] | None:
        """The number of shown items in each cell, by counting those shown or those
        that are not, the fewer ones."""
        if not self.cells:
            return None
        fewer = np.flatnonzero(shown if 2 * left < self.items else ~shown)
        counted = np.bincount(self._cell_of[fewer], minlength=self.cells)
        return torch.from_numpy(counted if 2 * left < self.items else self._sizes - counted)

    @cached_property
    def _centroids(self) -> Float[Tensor, "c D"]:
        return torch.from_numpy(self.index.quantizer.reconstruct_n(0, self.cells))

    @cached_property
    def _sizes(self) -> Int[np.ndarray, "c"]:
        return np.bincount(self._cell_of, minlength=self.cells)

    @cached_property
    def _cell_of(self) -> Int[np.ndarray, "v"]:
        """The cell of each item."""
        faiss = the_library()
        cell_of, lists = np.zeros(self.items, np.int32), self.index.invlists
        for cell in range(self.cells):
            cell_of[faiss.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell))] = cell
        return cell_of


def _alike(member: Int[Tensor, "B g"]) -> Iterator[tuple[Int[Tensor, "g"], Int[Tensor, "r"]]]:
    """Distinct rows of a table, each with the numbers of the rows that equal it."""
    if len(member) == 1 or bool((member == member[0]).all()):
        yield member[0], torch.arange(len(member))
        return
    keys, group = member.unique(dim=0, return_inverse=True)
    for number, key in enumerate(keys):
        yield key, (group == number).nonzero()[:, 0]


def _scored(scorer: DenseScorer, items: Int[Tensor, "b m"]) -> Candidates:
    """Each row's own items with their exact scores; -1, and an item
    that is there again, at -inf."""
    items = items.sort(1).values
    vectors = scorer.table.index_select(0, items.clamp_min(0).flatten()).view(*items.shape, -1)
    scores = torch.bmm(vectors, scorer.vectors[:, :, None])[:, :, 0].float()
    again = torch.nn.functional.pad(items[:, 1:] == items[:, :-1], (1, 0)) | (items < 0)
    return Candidates(items, scores.masked_fill(again, -torch.inf))


def _with_newer(
    scorer: DenseScorer, first: int, scores: Float[Tensor, "B k"], ids: Int[Tensor, "B k"], filters: BatchFilter | None
) -> TopK:
    """Lists with the items from `first` on, which the index does not
    have: all of them are scored."""
    newer = scorer.block(first, scorer.size)
    if bool(newer.isnan().any()):
        return top_k(scorer, scores.shape[1], filters=filters)  # which refuses them
    if filters is not None:
        newer, _ = filters.hide(newer, first, borrowed=False)
    values, newer_ids = select(newer, min(scores.shape[1], newer.shape[1]))
    newer_ids = (newer_ids + first).masked_fill(values == -torch.inf, -1)
    scores, ids = merge((scores, ids), (values.float(), newer_ids), ids.shape[1])
    return scores.contiguous(), ids


def _described(scorer: Scorer) -> str:
    if isinstance(scorer, DenseScorer):
        return f"{scorer.size:,} of width {scorer.table.shape[1]}"
    return "by something else than inner products"


def the_library() -> Any:
    """The package faiss, without its types, which describe other signatures than it has."""
    import faiss

    return faiss


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Have faiss use so many threads inside the block."""
    faiss = the_library()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
