"""Decoding along a graph of items: only items near those that score well are ever scored (RPG, Sec. 3.4).

Similarity of two items: mean over levels of (1 + cos(e_{c_k}, e_{c'_k})) / 2, with the trained vectors of their codes.
Every item has edges to its `edges` most similar ones, itself among them. From `beams` items the search goes `steps`
times to all neighbours of what it holds, scores these and keeps the best.

Differs: the first items are the same for all users (every so-many-th of the catalogue), where RPG draws them for each.
What filters refuse is walked through and left out of the list. A user for whom too few items were reached gets
the exact list (`padded` counts these users).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.inference.candidates import Candidates, exact_lists
from fullrank.inference.exact import select, top_k
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems

NEIGHBOURS = 256
"""Items whose neighbours are sought together."""


class Graph:
    """The neighbours of every item [V, E], and the search along them."""

    def __init__(self, items: SemanticItems, *, beams: int, edges: int, steps: int):
        self.steps, size = steps, items.size
        self.neighbours = neighbours(items, min(edges, size))
        every = torch.linspace(0, size - 1, min(beams, size), dtype=torch.float64).round().long().unique()
        self.first, self.beams = every.to(self.neighbours.device), min(beams, size)
        self.padded = 0
        """Users so far who got exact lists."""

    @torch.inference_mode()
    def __call__(
        self, answer: CodeScorer, k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
        """The k best of the items reached."""
        users = answer.levels.shape[1]
        held = self.first.expand(users, -1)
        for _ in range(self.steps):
            reached = Candidates.of(answer, self.neighbours[held].flatten(1))
            _, at = select(reached.scores, min(self.beams, reached.scores.shape[1]))
            held = reached.items.gather(1, at)
        scores, ids = reached.best(k, filters)
        short = (ids[:, -1] < 0).nonzero()[:, 0]
        if len(short):
            self.padded += len(short)
            scores[short], ids[short] = exact_lists(answer, short, k, filters)
        return scores, ids


def neighbours(items: SemanticItems, edges: int) -> Int[Tensor, "V E"]:
    """The most similar items of each, best first; an item itself is the first of them, or shares its codes."""
    table = F.normalize(items.table.detach().float(), dim=-1, eps=1e-12)
    alike = [(1 + level @ level.T) / 2 / len(items.sizes) for level in table.split(items.sizes)]
    rows, found = items.codes + items.offsets, []
    for low in range(0, items.size, NEIGHBOURS):
        own = items.codes[low : low + NEIGHBOURS]
        levels = torch.cat([level[own[:, k]] for k, level in enumerate(alike)], 1).T.contiguous()
        found.append(top_k(CodeScorer(levels, items.sizes, rows), edges)[1])
    return torch.cat(found)
