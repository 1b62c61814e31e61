"""Recurrent encoder of GRU4Rec (Hidasi et al., arXiv:1511.06939).

Differs: trained on whole histories of users instead of session-parallel mini-batches.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts, Width
from fullrank.data.batch import Batch
from fullrank.models import Flops, States
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec, Stepped
from fullrank.ops.dropout import Dropout


class GRU(EncoderSpec):
    """Gated recurrent units over the history."""

    kind: Literal["gru"] = "gru"
    layers: Parts = 1
    """Stacked recurrent layers."""
    hidden: Width | None = None
    """Width of the recurrent state; default the model's width. Where it differs, a linear map leads back."""
    dropout: DropoutRate = 0.1
    """Dropout on the input and between layers."""

    def build(self, dim: int, max_length: int) -> GRUEncoder:
        return GRUEncoder(dim, self)


class GRUEncoder(Encoder):
    causal, continues, branching, featureless = True, True, (0, 1), ""
    flop_parts = {"gru": "recurrence", "back": "projections"}

    def __init__(self, dim: int, spec: GRU):
        super().__init__()
        self.dim, hidden = dim, spec.hidden or dim
        between = spec.dropout if spec.layers > 1 else 0.0
        self.gru = nn.GRU(dim, hidden, spec.layers, batch_first=True, dropout=between)
        self.back = nn.Linear(hidden, dim) if hidden != dim else nn.Identity()
        self.drop = Dropout(spec.dropout)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        y, _ = self.gru(self.drop(x))
        y = self.back(y)
        return States(y, (x, y), (self.gru,))

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        # right padding runs the recurrence past a row's end, so the state is taken by
        # a run over packed rows
        packed = nn.utils.rnn.pack_padded_sequence(
            self.drop(x), batch.lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False
        )
        y, state = self.gru(packed)
        full, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        tokens = self.back(full)
        return States(tokens, (x, tokens), (self.gru,)), Cache(((state.movedim(1, 0)[:, None],),), batch)

    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        # the cached state is [B, 1, layers, hidden] of the history, then [B, P, layers,
        # hidden] of the streams
        rows, streams, _ = x.shape
        (state,) = cache.layers[0]
        state = state.expand(-1, streams, -1, -1).flatten(0, 1).transpose(0, 1).contiguous()
        y, state = self.gru(self.drop(x).flatten(0, 1)[:, None], state)
        states = state.transpose(0, 1).unflatten(0, (rows, streams))
        return self.back(y[:, 0]).unflatten(0, (rows, streams)), cache.grown(((states,),))

    def flops(self, length: int, answer: int = 0) -> Flops:
        # one position times their number, which is the same: torch counts a
        # recurrence step by step, slowly
        return {part: None if count is None else length * count for part, count in super().flops(1).items()}
