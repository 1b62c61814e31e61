"""From codes back to items: each tuple of codes stands for a list of items, best known first."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fullrank.semantic_ids.collisions import group_by_codes


class Tuples:
    """The tuples of codes that exist, and their items.

    Tuple t is ``tuples[t]`` (in lexical order), its items are ``items[offsets[t]:offsets[t+1]]``: the more popular
    first, then the smaller id. ``of_item[i]`` is the tuple of item i.
    """

    tuples: Int64[Tensor, "T K"]
    offsets: Int64[Tensor, "T1"]
    items: Int64[Tensor, "V"]
    of_item: Int64[Tensor, "V"]

    def __init__(self, codes: Int64[Tensor, "V K"], popularity: Int64[np.ndarray, "V"]):
        """`popularity`: training events of each item, in the order of the rows of `codes`."""
        tuples, group = group_by_codes(codes)
        order = np.lexsort((np.arange(len(group)), -np.asarray(popularity), group))
        self.tuples, self.of_item = torch.from_numpy(tuples), torch.from_numpy(group.astype(np.int64))
        self.items = torch.from_numpy(order.astype(np.int64))
        self.offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64))
        self._keys()

    def __len__(self) -> int:
        return len(self.tuples)

    def find(self, codes: Int64[Tensor, "M K"]) -> Int64[Tensor, "M"]:
        """The tuple of each row of codes; -1 where no item has these codes."""
        keys = (codes * self._factors).sum(1)
        place = torch.searchsorted(self._sorted, keys).clamp_max(len(self) - 1)
        found = self._order[place]
        return torch.where((self.tuples[found] == codes).all(1), found, -1)

    def members(self, tuple_: int) -> Int64[Tensor, "n"]:
        """The items of one tuple."""
        return self.items[self.offsets[tuple_] : self.offsets[tuple_ + 1]]

    def _keys(self) -> None:
        """One number for each tuple, different for all of them: sums of codes times odd numbers, modulo 2^64."""
        for seed in range(100):
            generator = torch.Generator().manual_seed(seed)
            self._factors = torch.randint(-(2**62), 2**62, (self.tuples.shape[1],), generator=generator) * 2 + 1
            self._sorted, self._order = (self.tuples * self._factors).sum(1).sort()
            if not bool((self._sorted[1:] == self._sorted[:-1]).any()):
                return
        raise AssertionError("a hundred hashes of distinct tuples collided")
