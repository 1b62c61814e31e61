"""Quick exact search: the k best of all items for 1 to 64 vectors on the CPU, as one call of TorchScript.

The order is that of `exact.top_k`: score descending, then id. It differs in speed for few rows: the
product is oneDNN's over a table that is laid out for it once (2 to 3 times as fast as MKL's from
four rows up, on an AMD EPYC), items that nobody is shown are hidden by a summand of it, and lists
are cut without going back to Python.

No `from __future__ import annotations` here: TorchScript reads the annotations of what it compiles.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fullrank.inference.batches import SCORES
from fullrank.inference.exact import nan_scores, of_length, select
from fullrank.serving.packed_attention import SMALL_PRODUCT, can_pack, lay_out

GROUP = 16
"""Items per group whose maximum is looked at first; fastest of 8, 16, 32, 64 at 12 thousand items and 8 rows."""
DIRECT = 32_768
"""Scores of a batch below which a plain selection is as fast."""
TIED, UNDEFINED = 1, 2
"""Problems of a batch's lists: equal scores among them, or a NaN; 0 where all are in order."""
NONE = torch.zeros(0, dtype=torch.long)
ScoredLists = tuple[Tensor, Tensor, int, Tensor]
"""Scores and ids of lists, 0 or their problem, and the scores of all items that they were taken from."""


class Searched(NamedTuple):
    """The items that are searched."""

    table: Tensor
    """[V, D] vectors."""
    laid_out: Tensor
    """The vectors as oneDNN reads them."""
    added: Tensor | None
    """[V] summand of all rows' scores (-inf: shown to nobody)."""


class Hidden(NamedTuple):
    """The items hidden from single rows: items[i] from row rows[i], all items of masks[i] from row masked[i]."""

    rows: Tensor
    items: Tensor
    masked: list[int]
    masks: list[Tensor]


@no_type_check  # nor a checker of shapes, which wraps functions while tests run
class Best(nn.Module):
    """Vectors -> lists, as TorchScript compiles it."""

    __constants__ = ("packs", "group", "direct", "small")

    def __init__(self) -> None:
        super().__init__()
        self.packs, self.group, self.direct, self.small = can_pack(), GROUP, DIRECT, SMALL_PRODUCT

    def forward(
        self, vectors: Tensor, searched: Searched, k: int, hidden: Hidden
    ) -> tuple[Tensor, Tensor, int, Tensor]:
        """Scores and ids of the k best items of vectors [B, D], 0 or `TIED` or `UNDEFINED`, and all scores."""
        table, laid_out, added = searched
        if self.packs and vectors.shape[0] * table.numel() >= self.small:
            scores: Tensor = torch.ops.mkldnn._linear_pointwise(vectors, laid_out, added, "none", [], "none")
        else:
            scores = F.linear(vectors, table, added)
        hide = torch.full((), -float("inf"))
        for i in range(len(hidden.masked)):
            scores[hidden.masked[i]].masked_fill_(hidden.masks[i], hide)
        if hidden.items.numel() > 0:
            scores.index_put_((hidden.rows, hidden.items), hide)
        values, ids = self.largest(scores, min(k + 1, scores.shape[1]))
        # a number and no tensor: deciding by a comparison costs less here than in Python
        problem = 0
        if bool(((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > hide)).any()):
            problem = 1
        if bool(values[:, 0].isnan().any()):
            problem = 2
        values, ids = values[:, :k], ids[:, :k]
        return values, ids.masked_fill(values == hide, -1), problem, scores

    def largest(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of each row [B, V], descending; which of equal values is left
        open (as `exact._largest`)."""
        groups = x.shape[1] // self.group
        if x.numel() <= self.direct or groups <= k:
            return x.topk(k)
        covered = groups * self.group
        maxima = x[:, :covered].unflatten(1, (self.group, groups)).amax(1)
        winners = maxima.topk(k, sorted=False)[1]
        ids = (winners[:, :, None] + torch.arange(0, covered, groups)).flatten(1)
        if covered < x.shape[1]:
            ids = torch.cat([ids, torch.arange(covered, x.shape[1]).expand(x.shape[0], -1)], 1)
        values, at = x.gather(1, ids).topk(k)
        return values, ids.gather(1, at)


@torch.inference_mode()
def searched_items(table: Float[Tensor, "V D"]) -> Searched:
    """A table of item vectors, laid out for the search."""
    table = table.detach().contiguous()
    return Searched(table, lay_out(table), None)


def barring(searched: Searched, barred: Bool[np.ndarray, "V"] | None) -> Searched:
    """The searched items without `barred` ones, which cost a request nothing; nothing is laid out anew."""
    added = None
    if barred is not None and barred.any():
        added = torch.zeros(len(barred)).masked_fill_(torch.from_numpy(barred), -torch.inf)
    return searched._replace(added=added)


def cut(
    rows: int,
    k: int,
    searched: Searched,
    hidden: Sequence[np.ndarray] | None,
    refused: Sequence[np.ndarray | None] | None,
    compute: Callable[[slice, Hidden], ScoredLists],
) -> tuple[np.ndarray, np.ndarray]:
    """Lists of so many rows, as many at a time as keep rows x items within bounds; `compute` gives those."""
    most = max(SCORES // len(searched.table), 1)
    parts = []
    for low in range(0, rows, most):
        part = slice(low, low + most)
        filters = Hidden(*_pairs(hidden[part] if hidden else ()), *_masks(refused[part] if refused else ()))
        parts.append(_ordered(k, compute(part, filters)))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([scores for scores, _ in parts]), np.concatenate([ids for _, ids in parts])


def _ordered(k: int, lists: ScoredLists) -> tuple[np.ndarray, np.ndarray]:
    values, ids, problem, scores = lists
    if problem == TIED:
        values, ids = select(scores, k)
    elif problem == UNDEFINED:
        raise nan_scores()
    values, ids = of_length(k, values, ids)
    return values.numpy(), ids.numpy()


def compiled(module: nn.Module) -> Any:
    """A module as TorchScript; the module itself, which computes the same, where
    torch can no longer compile it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"\0", bool))  # masks may be arrays that nobody may write: torch warns once
        try:
            return torch.jit.script(module)
        except (RuntimeError, AttributeError, NotImplementedError):
            return module


def end_to_end(rows: Sequence[np.ndarray]) -> Tensor:
    """Arrays of whole numbers behind each other, as a tensor."""
    flat = rows[0] if len(rows) == 1 else np.concatenate(rows)
    return torch.from_numpy(np.ascontiguousarray(flat, np.int64))


def _pairs(hidden: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """The rows and the items of all pairs that are hidden."""
    if not len(hidden):
        return NONE, NONE
    counts = [len(row) for row in hidden]
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts)), end_to_end(hidden)


def _masks(refused: Sequence[np.ndarray | None]) -> tuple[list[int], list[Tensor]]:
    """The rows that have a mask, and their masks."""
    rows = [at for at, mask in enumerate(refused) if mask is not None]
    return rows, [torch.from_numpy(mask) for mask in refused if mask is not None]
