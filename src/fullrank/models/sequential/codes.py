"""A model's answer code by code: log p(c_k | history, c_1 .. c_{k-1}), the history read once.

The keys of the history are kept and those of each beam as it grows, so that a further code costs one token a beam
(`Encoder.step`). `GeneratedScorer.block` scores items by the log-probability of all their codes, one by one: exact, and
what a beam is held to; a search scores only what it reaches (`inference/trie_beam.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.models.sequential.encoders import Cache, Encoder
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.items.semantic import CodeLevel, SemanticItems

if TYPE_CHECKING:
    from fullrank.models.sequential.objectives.tasks.generate import GenerateTask

STREAMS = 1 << 14
"""Most streams (users x items) that `block` has alive at once."""


@dataclass(frozen=True)
class GeneratedScorer:
    """Satisfies `contracts.Scorer`: an item's score is the log-probability of its codes."""

    encoder: Encoder
    task: GenerateTask
    items: SemanticItems
    levels: tuple[CodeLevel, ...]
    start: Float[Tensor, "B D"]
    """The state behind the history, which the first code is predicted from."""
    cache: Cache
    temperature: float
    cosine: bool

    @property
    def size(self) -> int:
        return self.items.size

    def first(self) -> Float[Tensor, "B C"]:
        """log p of each code of the first level."""
        return self._log_p(self.start, 0)

    def after(self, codes: Int[Tensor, "B P"], level: int, cache: Cache) -> tuple[Float[Tensor, "B P C"], Cache]:
        """log p of each code of the level behind `level`, after these codes of it in P streams; and the cache."""
        state, cache = self.encoder.step(self.task.token(self.items, codes, level), cache)
        return self._log_p(state, level + 1), cache

    @torch.inference_mode()
    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        users = len(self.start)
        parts = self.items.codes[low:high].split(max(STREAMS // max(users, 1), 1))
        return torch.cat([self.score_tuples(codes) for codes in parts], 1)

    def score_tuples(self, codes: Int[Tensor, "n K"]) -> Float[Tensor, "B n"]:
        """log p of these tuples of codes for every user, by teacher forcing."""
        users, cache = len(self.start), self.cache
        total = self.first()[:, codes[:, 0]]
        for level in range(codes.shape[1] - 1):
            log_p, cache = self.after(codes[:, level].expand(users, -1), level, cache)
            wanted = codes[:, level + 1].expand(users, -1)[..., None]
            total = total + log_p.gather(2, wanted)[..., 0]
        return total

    def _log_p(self, states: Float[Tensor, "*n D"], level: int) -> Float[Tensor, "*n C"]:
        vectors = unit(states) if self.cosine else states
        return (vectors / self.temperature @ self.levels[level].vectors.T).float().log_softmax(-1)
