"""Encoders whose state is a function of the last few events: Caser and HGN read a window, not the history.

State t is made of the `window` vectors up to t; before a row's first event there are zeros, which a
mask tells apart. Every window of a row is read in one pass. What such an encoder remembers of a
history is the vectors of its last ``window - 1`` events, and a stream of latent tokens (or of
generated ones) goes on behind them.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models import States
from fullrank.models.sequential.encoders import Cache, Encoder, Stepped


class WindowEncoder(Encoder):
    """One state for each window of a history."""

    causal, continues, branching = True, True, (0, 1)
    featureless = "its window is of items alone"

    def __init__(self, dim: int, window: int):
        super().__init__()
        self.dim, self.window = dim, window

    @abstractmethod
    def read(self, x: Float[Tensor, "B n D"], known: Bool[Tensor, "B n"]) -> Float[Tensor, "B T D"]:
        """The states of all windows of these vectors, n = T + window - 1; not
        `known` is what lies before a row."""

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        y = self.read(*self._padded(x))
        return States(y, (x, y), (self,))

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        padded, known = self._padded(x)
        # event t stands at t + window - 1, so the last window - 1 of n events begin at n
        at = batch.lengths[:, None] + torch.arange(self.window - 1, device=x.device)
        newest = padded.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
        return self(x, batch), Cache(((newest[:, None], known.gather(1, at)[:, None]),), batch)

    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        # the cache is [B, 1, window - 1, D] of the history, then [B, P, window - 1, D] of the
        # streams
        rows, streams, _ = x.shape
        newest, known = cache.layers[0]
        whole = torch.cat([newest.expand(-1, streams, -1, -1), x[:, :, None]], 2)
        there = F.pad(known.expand(-1, streams, -1), (0, 1), value=True)
        y = self.read(whole.flatten(0, 1), there.flatten(0, 1))
        return y.unflatten(0, (rows, streams))[:, :, 0], cache.grown(((whole[:, :, 1:], there[:, :, 1:]),))

    def _padded(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B n D"], Bool[Tensor, "B n"]]:
        """The vectors behind the zeros that the first windows begin with."""
        before = self.window - 1
        known = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return F.pad(x, (0, 0, before, 0)), F.pad(known, (before, 0), value=False)
