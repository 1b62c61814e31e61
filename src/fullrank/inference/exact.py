"""Exact top-k by streaming over item blocks: memory is one users x block table, whatever the catalogue's size.

Within a block, the maxima of groups of `GROUP` items are searched first (again by their own groups'
maxima), and only the winning groups' items after them: one vectorised pass over the block instead
of a selection over it. The k largest values are exact; which of several equal values `torch.topk`
returns is not promised, so rows with equal values are found afterwards and put right: order is
score descending, then item id ascending.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.inference.filters import BatchFilter
from fullrank.models import DenseScorer, Scorer
from fullrank.models.sequential.items.table import ShardedScorer

GROUP = 8
"""Items per group; fastest of 4, 8, 16, 32 at 12 thousand items on one core."""
DIRECT = 256
"""Below this many values a plain selection is as fast."""
LARGEST_BLOCK = 1 << 24
"""Ids within a block are kept exactly in float32 where ties are put right."""
TopK = tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]
"""Scores and ids of the best items of each row; empty places hold -inf and -1."""


def exact(scorer: Scorer, k: int, filters: BatchFilter | None, block: int) -> TopK:
    """The best of all items, whether one process holds them or several do."""
    if isinstance(scorer, ShardedScorer):
        return sharded_top_k(scorer, k, filters=filters, block=block)
    return top_k(scorer, k, filters=filters, block=block)


@torch.inference_mode()
def top_k(scorer: Scorer, k: int, *, filters: BatchFilter | None = None, block: int = 8192, first: int = 0) -> TopK:
    """The k best items of each row: scores (float32) and ids, by score descending, then id ascending.

    `first` is the id of the scorer's first item, where it knows a stretch of a catalogue alone.

    What `filters` refuse is never returned, nor are items that the model scores -inf; where fewer
    than k items remain the rest of the row is -1 / -inf. Raises `UserError` on a NaN score.
    """
    assert k > 0 and 0 < block <= LARGEST_BLOCK  # k was checked by `ListOptions`, the block is our own
    best: tuple[Tensor, Tensor] | None = None
    floor: Tensor | None = None
    score = block_scorer(scorer, block)
    for low in range(0, scorer.size, block):
        high = min(low + block, scorer.size)
        scores, undo = score(low, high), None
        if filters is not None:
            scores, undo = filters.hide(scores, first + low, borrowed=score == scorer.block)
        values, ids = select(scores, k, floor)
        if undo is not None:  # the scores are the model's own
            rows, columns, hidden = undo
            scores[rows, columns] = hidden
        refuse_nan(values, f"users among the items {first + low} to {first + high - 1}")
        ids = ids + (first + low)
        best = (values, ids) if best is None else merge(best, (values, ids), k)
        floor = best[0][:, -1:] if best[0].shape[1] == k else None
        del scores  # before the next block is made, so that one block is alive and not two
    if best is None:
        raise UserError("the model has no items to rank", code="no-items")
    values, ids = of_length(k, *best)
    return values.float(), ids


def of_length(k: int, values: Float[Tensor, "B m"], ids: Int[Tensor, "B m"]) -> TopK:
    """The first k items of each row, with empty places (-inf, -1) where there are fewer or they score -inf."""
    ids, missing = ids.masked_fill(values == -torch.inf, -1), k - values.shape[1]
    if missing > 0:
        values, ids = F.pad(values, (0, missing), value=-torch.inf), F.pad(ids, (0, missing), value=-1)
    return values, ids


def block_scorer(scorer: Scorer, block: int) -> Callable[[int, int], Float[Tensor, "B n"]]:
    """The scores of items low .. high-1, valid until the next call.

    A `DenseScorer` is multiplied into one buffer: a fresh table of several MB for each block costs
    about as much in page faults as in arithmetic, and leaves holes in the heap, so that memory
    would grow with the number of blocks.
    """
    if type(scorer) is not DenseScorer or scorer.vectors.dtype != scorer.table.dtype:
        return scorer.block
    vectors = scorer.vectors / scorer.temperature
    buffer = vectors.new_empty(len(vectors) * min(block, scorer.size))

    def multiply(low: int, high: int) -> Tensor:
        out = buffer[: len(vectors) * (high - low)].view(len(vectors), high - low)
        return torch.mm(vectors, scorer.table[low:high].T, out=out)

    return multiply


def select(scores: Float[Tensor, "B n"], k: int, floor: Float[Tensor, "B 1"] | None = None) -> TopK:
    """The m = min(k, n) largest of each row, by value descending, then column ascending.

    Values up to `floor` are of no interest: where all rows have fewer larger ones, m is smaller.
    """
    values, ids = _largest(scores, min(k + 1, scores.shape[1]), floor)
    least = scores.new_full((1, 1), -torch.inf) if floor is None else floor
    same = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > least)
    tied = same.any(1).nonzero()[:, 0]
    values, last = values[:, :k], values[:, k:]
    ids = ids[:, :k]
    if not len(tied):
        return values, ids
    values, ids = values.contiguous(), ids.contiguous()
    values[tied], ids[tied] = _ordered(values[tied], ids[tied])
    if last.shape[1]:
        crossing = ((last == values[:, -1:]) & (last > least)).nonzero()[:, 0]
        if len(crossing):
            values[crossing], ids[crossing] = _repair(scores[crossing], values[crossing], ids[crossing])
    return values, ids


def _largest(x: Float[Tensor, "B n"], k: int, floor: Float[Tensor, "B 1"] | None = None, ordered: bool = True) -> TopK:
    """The k largest values, descending if `ordered`; which of equal values is returned is left open.

    The k groups with the largest maxima hold the k largest values: a value in any other group is at
    most those maxima. Groups are strided (column j, j+m, j+2m, ...), so that their maxima are taken
    along contiguous memory. With a floor, only as many groups are opened as exceed it in the row
    that has most of them.
    """
    groups = x.shape[1] // GROUP
    if x.shape[1] <= DIRECT or groups <= k:
        values, ids = x.topk(k, sorted=ordered)
        return values, ids
    covered = groups * GROUP
    maxima = x[:, :covered].unflatten(1, (GROUP, groups)).amax(1)  # [B, groups]
    opened = k if floor is None else min(k, int((~(maxima <= floor)).sum(1).max()))  # NaN counts as larger
    _, winners = _largest(maxima, opened, ordered=False)
    # [B, opened * GROUP] the columns of the groups that are opened
    ids = (winners[:, :, None] + torch.arange(0, covered, groups, device=x.device)).flatten(1)
    if covered < x.shape[1]:
        rest = torch.arange(covered, x.shape[1], device=x.device)
        ids = torch.cat([ids, rest.expand(len(x), -1)], 1)
    values, at = x.gather(1, ids).topk(min(k, ids.shape[1]), sorted=ordered)
    return values, ids.gather(1, at)


def _ordered(values: Float[Tensor, "B m"], ids: Int[Tensor, "B m"]) -> TopK:
    """Rows sorted by value descending, then id ascending."""
    ids, by_id = ids.sort(1)
    return _by_value(values.gather(1, by_id), ids)


def _by_value(values: Float[Tensor, "B m"], ids: Int[Tensor, "B m"], k: int | None = None) -> TopK:
    """The first k of rows sorted by value descending; equal values stay in their order."""
    values, at = values.sort(dim=1, descending=True, stable=True)
    return values[:, :k], ids.gather(1, at[:, :k])


def _repair(scores: Float[Tensor, "B n"], values: Float[Tensor, "B k"], ids: Int[Tensor, "B k"]) -> TopK:
    """Rows whose k-th value also occurs outside the list: of equal values, those
    with the smallest ids are in."""
    k = values.shape[1]
    last = values[:, -1:]
    # Keys fall from column to column, so the largest keys of columns that score
    # `last` are the smallest ids.
    columns = torch.arange(scores.shape[1], 0, -1, device=scores.device, dtype=torch.float32)
    keys, equal = _largest(torch.where(scores == last, columns, 0.0), k)
    tied = torch.where(keys > 0, last, -torch.inf)
    above = values.masked_fill(values == last, -torch.inf)
    return _by_value(torch.cat([above, tied], 1), torch.cat([ids, equal], 1), k)


def merge(best: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], k: int) -> TopK:
    """The k best of two ordered lists.

    The block's ids are larger, so a stable sort keeps equal scores in order of their ids.
    """
    return _by_value(torch.cat([best[0], block[0]], 1), torch.cat([best[1], block[1]], 1), k)


def refuse_nan(values: Float[Tensor, "B m"], what: str) -> None:
    """Raise `UserError` for rows with NaN. NaN sorts above every number, so it is among the values that were selected.

    `what` says of what the rows are.
    """
    bad = int(values.isnan().any(1).sum())
    if bad:
        raise nan_scores(f" for {bad} of {len(values)} {what}")


def nan_scores(of: str = "") -> UserError:
    """The error of a model that gave NaN; `of` says for which rows."""
    return UserError(
        f"the model gave NaN scores{of}: its weights have probably diverged; lower the learning rate or clip "
        "gradients, and train again",
        code="nan-scores",
        public=True,
    )


@torch.inference_mode()
def sharded_top_k(scorer: ShardedScorer, k: int, *, filters: BatchFilter | None = None, block: int = 8192) -> TopK:
    """Exact top-k among items that several processes hold together: each ranks its own, and the lists are merged.

    All processes ask for the same users together, and each gets the whole lists in the order of one
    process. What goes between them is k scores and ids of a user, not the scores of a block. Raises
    `UserError` as `top_k` does.
    """
    shard = scorer.shard
    own_lists = top_k(scorer.local, k, filters=filters, block=block, first=shard.low)
    whole = []
    for part in own_lists:
        parts = [torch.empty_like(part) for _ in range(shard.world)]
        dist.all_gather(parts, part.contiguous(), group=shard.group)
        whole.append(torch.cat(parts, 1))
    values, ids = whole
    return _by_value(values, ids, k)  # ids rise from process to process, so equal scores stay in order of their ids
