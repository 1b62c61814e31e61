"""Decoding by a beam over levels: the best tuples of codes, level by level, then the items that have them.

Levels are independent given the history, so the beam keeps `beams` best partial sums and adds one level after another.
Most tuples of long codes belong to no item. Found items come first, in order of their scores; a user for whom too few
were found gets the rest of the list from exact scores (`padded` counts these users). Items of one tuple have one score:
the more popular comes first, as in `semantic_ids/reader.py`, up to the order of ids that all lists share.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.inference.candidates import Candidates, exact_lists
from fullrank.inference.filters import BatchFilter
from fullrank.models.sequential.items.semantic import CodeScorer, SemanticItems
from fullrank.semantic_ids.reader import Tuples


class Beam:
    """The tuples that exist, and the search among all that could."""

    def __init__(self, items: SemanticItems, *, beams: int):
        self.tuples, self.beams = Tuples(items.codes.cpu(), items.popularity.long().cpu().numpy()), beams
        self.largest = int((self.tuples.offsets[1:] - self.tuples.offsets[:-1]).max())
        self.padded = 0
        """Users so far whose lists were filled up from exact scores."""

    @torch.inference_mode()
    def __call__(
        self, answer: CodeScorer, k: int, filters: BatchFilter | None
    ) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"]]:
        codes = product_beam(answer.levels.split(answer.sizes), self.beams)
        scores, ids = Candidates.of(answer, self._items(codes)).best(k, filters)
        scores, ids, padded = filled_up(answer, scores, ids, filters)
        self.padded += padded
        return scores, ids

    def _items(self, codes: Int[Tensor, "B n K"]) -> Int[Tensor, "B m"]:
        """The items of these tuples; -1 where there are none."""
        flat = self.tuples.find(codes.flatten(0, 1).cpu())
        first, steps = self.tuples.offsets[flat.clamp_min(0)], torch.arange(self.largest)
        place = first[:, None] + steps
        there = (flat[:, None] >= 0) & (place < self.tuples.offsets[flat.clamp_min(0) + 1][:, None])
        found = self.tuples.items[place.clamp_max(len(self.tuples.items) - 1)].masked_fill(~there, -1)
        return found.view(len(codes), -1).to(codes.device)


def filled_up(
    answer: CodeScorer, scores: Float[Tensor, "B K"], ids: Int[Tensor, "B K"], filters: BatchFilter | None
) -> tuple[Float[Tensor, "B K"], Int[Tensor, "B K"], int]:
    """Lists with empty places (-1) filled from exact scores, behind what was found; and how many users that were.

    What was found stays in front, whatever it scores: the rest is what the search did not think of.
    """
    short = (ids[:, -1] < 0).nonzero()[:, 0]
    if not len(short):
        return scores, ids, 0
    k = ids.shape[1]
    exact = exact_lists(answer, short, 2 * k, filters)
    known = (exact[1][:, :, None] == ids[short][:, None]).any(2)
    rest = exact[0].masked_fill(known, -torch.inf), exact[1].masked_fill(known, -1)
    whole = [torch.cat([own[short], other], 1) for own, other in zip((scores, ids), rest, strict=True)]
    order = (whole[1] < 0).sort(dim=1, stable=True).indices[:, :k]
    scores[short], ids[short] = whole[0].gather(1, order), whole[1].gather(1, order)
    return scores, ids, len(short)


def product_beam(levels: tuple[Float[Tensor, "_ B"], ...], beams: int) -> Int[Tensor, "B n K"]:
    """The n <= `beams` tuples with the largest sums, kept level by level."""
    sums, codes = levels[0].new_zeros(levels[0].shape[1], 1), levels[0].new_zeros(levels[0].shape[1], 1, 0).long()
    for level in levels:
        size = len(level)
        every = (sums[:, :, None] + level.T[:, None]).flatten(1)
        sums, at = every.topk(min(beams, every.shape[1]), dim=1)
        before = codes.gather(1, (at // size)[:, :, None].expand(-1, -1, codes.shape[2]))
        codes = F.pad(before, (0, 1))
        codes[:, :, -1] = at % size
    return codes
