"""The reference of cached steps: every step of every stream reads the whole row again, under an explicit mask."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fullrank.data.batch import Batch, States
from fullrank.models.sequential.attention import mask
from fullrank.models.sequential.attention.positions import Places
from fullrank.models.sequential.encoders import Cache
from fullrank.models.sequential.encoders.transformer import TransformerEncoder


@dataclass(frozen=True)
class Row(Cache):
    """All that a step reads: the layers are the history as it was given and the tokens of each stream, [B, S, P, D]."""


class Recomputed(nn.Module):
    """Satisfies `Encoder` with the weights of a transformer."""

    def __init__(self, inner: TransformerEncoder):
        super().__init__()
        self.inner, self.causal, self.reads_times = inner, inner.causal, inner.reads_times

    def forward(self, x: Tensor, batch: Batch) -> States:
        return self.inner(x, batch)

    def start(self, x: Tensor, batch: Batch) -> tuple[States, Row]:
        return self(x, batch), Row(((x, x.new_zeros(len(x), 0, 0, x.shape[2])),), batch)

    def step(self, x: Tensor, row: Row) -> tuple[Tensor, Row]:
        history, earlier = row.layers[0]
        tokens = torch.cat([earlier, x[:, None]], 1) if earlier.numel() else x[:, None]
        last = [self._whole(history, tokens[:, :, m], row.batch)[:, -1] for m in range(x.shape[1])]
        return torch.stack(last, 1), replace(row, layers=((history, tokens),))

    def _whole(self, x: Tensor, tokens: Tensor, batch: Batch) -> Tensor:
        t, s = x.shape[1], tokens.shape[1]
        history = self.inner._entered(x, batch.positions(from_end=self.inner.from_end))
        y = torch.cat([history, self.inner.norm_input(tokens)], 1)
        allowed = torch.zeros(len(x), 1, t + s, t + s, dtype=torch.bool)
        allowed[:, :, :t, :t] = mask(batch, causal=self.causal)
        allowed[:, :, t:, :t] = batch.valid[:, None, None]
        allowed[:, :, t:, t:] = torch.ones(s, s, dtype=torch.bool).tril()
        places = stand(batch, s)
        for block in self.inner._stack():
            attention = block.attention
            seen = block.attention_norm(y) if block.pre else y
            y = block._behind(y, attention.attend(*attention.project(seen, places.queries), allowed, places))
        return self.inner.norm_output(y)


def stand(batch: Batch, steps: int) -> Places:
    """Where the history and the tokens behind its last event stand."""
    at = torch.cat([batch.positions(from_end=False), batch.lengths[:, None] + torch.arange(steps)], 1)
    assert batch.times is not None
    known = Places.of(batch)
    end = batch.times.gather(1, (batch.lengths - 1).clamp_min(0)[:, None]).expand(-1, steps)
    assert known.asked is not None
    return Places(at, at, torch.cat([known.asked, end], 1), torch.cat([batch.times, end], 1))
