"""Filters: the items that a user may be recommended, from seen items and the `exclude` and `allow` of a request.

They hold before a list is cut, so a list stays full while enough items remain, whatever searches
it. Nothing here makes a table of users x items: lists of single users are flat pairs (user, item),
those for all one mask of V items, and what many users share, such as "in stock", one mask of V
items with the rows that it is for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.errors import unknown
from fullrank.core.jagged import Jagged
from fullrank.metrics import SeenPolicy


@dataclass(frozen=True)
class Filters:
    """The items that a request excludes and allows, for all of its U users."""

    excluded: Jagged | None = None
    """[U rows] items that a user is not shown."""
    barred: Bool[np.ndarray, "V"] | None = None
    """Items that no user is shown."""
    allowed: Jagged | None = None
    """[U rows] the only items that a user may be shown."""
    masks: tuple[tuple[Int[np.ndarray, "_"], Bool[np.ndarray, "V"]], ...] = ()
    """(rows, items that these rows are not shown), once for each different mask. A row may be in several."""

    def take(self, rows: Int[np.ndarray, "B"]) -> Filters:
        """The filters of the users in these rows."""
        if self.excluded is None and self.allowed is None and not self.masks:
            return self
        excluded, allowed = (None if lists is None else lists.take(rows) for lists in (self.excluded, self.allowed))
        groups = ((np.flatnonzero(np.isin(rows, group)), refused) for group, refused in self.masks)
        masks = tuple((group, refused) for group, refused in groups if len(group))
        return replace(self, excluded=excluded, allowed=allowed, masks=masks)

    def of_batch(self, seen: Jagged | None, device: torch.device | str = "cpu") -> BatchFilter | None:
        """The filters of a batch as tensors; None where nothing is hidden.

        `seen` are the items that these users have seen; None: they may be shown again.
        """
        hidden = [lists for lists in (seen, self.excluded) if lists is not None]
        if not hidden and self.barred is None and self.allowed is None and not self.masks:
            return None
        rows, items = (
            parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])
            for parts in ([lists.row_of() for lists in hidden], [lists.flat() for lists in hidden])
        )
        allowed = None if self.allowed is None else _Pairs.of(self.allowed.row_of(), self.allowed.flat(), device)
        barred = None if self.barred is None else torch.from_numpy(self.barred).to(device)
        masks = tuple((_tensor(group).to(device), torch.from_numpy(mask).to(device)) for group, mask in self.masks)
        return BatchFilter(_Pairs.of(rows, items, device), barred, allowed, masks)


@dataclass(frozen=True)
class BatchFilter:
    """The filters of one batch of B users, applied by every search."""

    hidden: _Pairs
    """Items that single users are not shown: seen and excluded ones."""
    barred: Bool[Tensor, "V"] | None = None
    allowed: _Pairs | None = None
    masks: tuple[tuple[Int[Tensor, "_"], Bool[Tensor, "V"]], ...] = ()
    """(rows, items that these rows are not shown)."""

    @staticmethod
    def of(rows: Int[np.ndarray, "p"], items: Int[np.ndarray, "p"], device: torch.device | str = "cpu") -> BatchFilter:
        """Hidden pairs alone, in any order; a pair may occur several times."""
        return BatchFilter(_Pairs.of(rows, items, device))

    def only(self, users: Int[Tensor, "b"], of: int) -> BatchFilter:
        """The filters of some of the batch's `of` rows, which become the rows of a batch of their own."""
        allowed = None if self.allowed is None else self.allowed.only(users, of)
        row_of = _places(users, of)
        groups = ((row_of[rows], refused) for rows, refused in self.masks)
        masks = tuple((rows[rows >= 0], refused) for rows, refused in groups if bool((rows >= 0).any()))
        return BatchFilter(self.hidden.only(users, of), self.barred, allowed, masks)

    def refuses(self, items: Int[Tensor, "B m"]) -> Bool[Tensor, "B m"]:
        """Whether row b may not be shown items[b, j]."""
        refused = self.hidden.has(items)
        if self.barred is not None:
            refused = refused | self.barred[items]
        if self.allowed is not None:
            refused = refused | ~self.allowed.has(items)
        for rows, mask in self.masks:
            refused[rows] |= mask[items[rows]]
        return refused

    def hide(
        self, scores: Float[Tensor, "B n"], low: int, *, borrowed: bool = True
    ) -> tuple[Float[Tensor, "B n"], Undo | None]:
        """The scores of items low .. low + n - 1 with -inf where they are refused.

        Where single pairs alone are hidden, that is done in place (a copy of the block would cost
        as much as ranking it). Of scores that are `borrowed` from the model, what was covered is
        given back, to be put back by `undo`.
        """
        high = low + scores.shape[1]
        copied = self.barred is not None or self.allowed is not None or bool(self.masks)
        if self.barred is not None:
            scores = scores.masked_fill(self.barred[low:high], -torch.inf)
        if self.allowed is not None:
            rows, columns = self.allowed.within(low, high)
            shown = torch.full_like(scores, -torch.inf)
            shown[rows, columns] = scores[rows, columns]
            scores = shown
        elif self.masks and self.barred is None:
            scores = scores.clone()  # of an expanded row, too, a table of its own
        for rows, refused in self.masks:
            # The smaller of score and +-inf: twice as fast as `masked_fill` where masks
            # hold no long stretches.
            cap = torch.where(refused[low:high], -torch.inf, torch.inf).to(scores.dtype)
            scores[rows] = torch.minimum(scores[rows], cap)
        rows, columns = self.hidden.within(low, high)
        if not len(rows):
            return scores, None
        if not copied and 0 in scores.stride():  # an expanded row: one place in memory serves several users
            scores, copied = scores.clone(), True
        undo = (rows, columns, scores[rows, columns]) if borrowed and not copied else None
        scores[rows, columns] = -torch.inf
        return scores, undo


Undo = tuple[Tensor, Tensor, Tensor]
"""Rows, columns, and the scores that stood there."""


@dataclass(frozen=True)
class _Pairs:
    """Pairs (row of the batch, item id), sorted by item so that the pairs of an item block are one slice."""

    rows: Int[Tensor, "p"]
    items: Int[Tensor, "p"]
    beyond: int
    """No item is this one or a larger one: a block that ends here or later needs no search for where it ends."""

    @staticmethod
    def of(rows: Int[np.ndarray, "p"], items: Int[np.ndarray, "p"], device: torch.device | str) -> _Pairs:
        order = np.argsort(items, kind="stable")
        beyond = int(items[order[-1]]) + 1 if len(order) else 0
        return _Pairs(_tensor(rows[order]).to(device), _tensor(items[order]).to(device), beyond)

    def within(self, low: int, high: int) -> tuple[Int[Tensor, "p"], Int[Tensor, "p"]]:
        """Rows, and columns of the block of items low .. high-1."""
        if low == 0 and high >= self.beyond:
            return self.rows, self.items
        first, last = torch.searchsorted(self.items, self.items.new_tensor([low, high])).tolist()
        return self.rows[first:last], self.items[first:last] - low

    def only(self, users: Int[Tensor, "b"], of: int) -> _Pairs:
        rows = _places(users, of)[self.rows]
        return _Pairs(rows[rows >= 0], self.items[rows >= 0], self.beyond)

    def has(self, items: Int[Tensor, "B m"]) -> Bool[Tensor, "B m"]:
        users = len(items)
        return self.has_pairs(torch.arange(users, device=items.device)[:, None], items, users)

    def has_pairs(self, rows: Int[Tensor, "*#n"], items: Int[Tensor, "*n"], users: int) -> Bool[Tensor, "*n"]:
        """Whether these pairs are among them, of a batch of so many users.

        A pair is one number, item * users + row: sorted, a binary search finds those that are asked
        for.
        """
        keys = (self.items * users + self.rows).sort().values
        if not len(keys):
            return torch.zeros_like(items, dtype=torch.bool)
        wanted = items * users + rows
        positions = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        return keys[positions] == wanted


def seen_policy(policy: object) -> SeenPolicy:
    """The policy, or a `UserError` that names the allowed ones."""
    for allowed in get_args(SeenPolicy):
        if isinstance(policy, str) and policy == allowed:
            return allowed
    raise unknown("seen policy", str(policy), get_args(SeenPolicy))


def _places(users: Int[Tensor, "b"], of: int) -> Int[Tensor, "B"]:
    """The index of each of the batch's `of` rows among `users`, which are
    some of them; -1 of the others."""
    numbers = torch.arange(len(users), device=users.device)
    return torch.full((of,), -1, device=users.device).index_copy_(0, users, numbers)


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
