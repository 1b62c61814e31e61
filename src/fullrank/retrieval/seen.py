"""The items that each user of a batch already had, as flat pairs: never a users x items mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fullrank.errors import unknown
from fullrank.metrics import SeenPolicy


@dataclass(frozen=True)
class Seen:
    """Pairs (row of the batch, item id), sorted by item so that the pairs of an item block are one slice."""

    rows: Int[Tensor, "P"]
    items: Int[Tensor, "P"]

    @staticmethod
    def of(rows: Int[np.ndarray, "P"], items: Int[np.ndarray, "P"], device: torch.device | str = "cpu") -> Seen:
        """From pairs in any order; a pair may occur several times."""
        order = np.argsort(items, kind="stable")
        return Seen(_tensor(rows[order]).to(device), _tensor(items[order]).to(device))

    def within(self, low: int, high: int) -> tuple[Int[Tensor, "p"], Int[Tensor, "p"]]:
        """Rows and columns, inside the block of items low .. high-1, that are not to be recommended."""
        first, last = torch.searchsorted(self.items, self.items.new_tensor([low, high])).tolist()
        return self.rows[first:last], self.items[first:last] - low

    def only(self, users: Int[Tensor, "b"], of: int) -> Seen:
        """The pairs of these of the batch's `of` rows, which become its rows."""
        place = torch.full((of,), -1, device=users.device).index_copy_(
            0, users, torch.arange(len(users), device=users.device)
        )
        rows = place[self.rows]
        return Seen(rows[rows >= 0], self.items[rows >= 0])

    def has(self, items: Int[Tensor, "B m"]) -> Bool[Tensor, "B m"]:
        """Whether row b already had items[b, j]."""
        users = len(items)
        keys = (self.items * users + self.rows).sort().values
        if not len(keys):
            return torch.zeros_like(items, dtype=torch.bool)
        wanted = items * users + torch.arange(users, device=items.device)[:, None]
        place = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        return keys[place] == wanted


def checked(policy: str) -> SeenPolicy:
    """The policy, or a `UserError` that names the allowed ones."""
    for allowed in get_args(SeenPolicy):
        if policy == allowed:
            return allowed
    raise unknown("seen-items policy", policy, get_args(SeenPolicy))


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
