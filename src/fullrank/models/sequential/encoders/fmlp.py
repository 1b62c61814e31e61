"""FMLP-Rec: learnable filters in the frequency domain for self-attention (Zhou et al., WWW 2022, arXiv:2202.13556).

A block is a filter and a feed-forward, each with dropout, a residual and LayerNorm behind it. The
filter multiplies the Fourier transform of a history along its N = `max_length` places by W,
complex, [N / 2 + 1, D], and transforms back. That is a circular convolution with the kernel w =
F^-1(W) in each dimension on its own:

    y_t = sum_s w_[(t - s) mod N] x_s

Differs: `causal` leaves out the s after t, so that every position of a history is trained on in one
pass. At the last place of a window nothing comes after t, so there the filter of the first block is
the published one. `causal: false` is the published filter in all blocks, for tasks with one answer
a row (`last_item`; the authors train on every prefix of a history). Places before a row's first
event are zeros in every block, where the authors' have position vectors.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts, Width
from fullrank.data.batch import Batch
from fullrank.models import States
from fullrank.models.sequential.encoders import Cache, Encoder, EncoderSpec, Stepped, require_length
from fullrank.models.sequential.encoders.transformer import MLP
from fullrank.ops.dropout import Dropout
from fullrank.ops.starting_values import small, start_small

EPS = 1e-12
"""Added to the variance in every norm, as the authors do."""


class FMLP(EncoderSpec):
    """Blocks of a learnable filter and a feed-forward."""

    kind: Literal["fmlp"] = "fmlp"
    layers: Parts = 2
    """Blocks."""
    causal: bool = True
    """Whether a position sees only what came before it; false is the published filter, circular over a whole row."""
    inner: Width | None = None
    """Inner width of the feed-forward; default four times the width."""
    positions: Literal["learned", "none"] = "learned"
    """Learned position vectors, counted back from the last event, added to the input."""
    dropout: DropoutRate = 0.5
    """Dropout on the input and on the output of each filter and feed-forward."""

    def build(self, dim: int, max_length: int) -> FMLPEncoder:
        return FMLPEncoder(dim, max_length, self)


class Filter(nn.Module):
    """Multiplies the Fourier transform of a history by W."""

    def __init__(self, dim: int, places: int, causal: bool):
        super().__init__()
        self.places, self.causal = places, causal
        self.weight = small(places // 2 + 1, dim, 2)

    def kernel(self) -> Float[Tensor, "n D"]:
        """The kernel w = F^-1(W), by the distance of two events."""
        return torch.fft.irfft(torch.view_as_complex(self.weight.float()), self.places, 0)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        length, wide = x.shape[1], x.float()  # there are no transforms of half precision on a CPU
        if not self.causal:
            spectrum = torch.fft.rfft(wide * batch.valid[..., None], self.places, 1)
            whole = torch.fft.irfft(spectrum * torch.view_as_complex(self.weight.float()), self.places, 1)
            return whole[:, :length].to(x.dtype)
        # twice as many places: what wraps around falls behind the row
        spectra = torch.fft.rfft(wide, 2 * length, 1) * torch.fft.rfft(self.kernel()[:length], 2 * length, 0)
        return torch.fft.irfft(spectra, 2 * length, 1)[:, :length].to(x.dtype)

    def step(
        self, history: Float[Tensor, "B T D"], tokens: Float[Tensor, "B P S D"], batch: Batch
    ) -> Float[Tensor, "B P D"]:
        """The output at the last token of each stream, of the history and of the stream's tokens so far."""
        # by the distance of each event, then of each earlier token, to the stream's last
        # token, modulo the places
        kernel, count = self.kernel(), tokens.shape[2]
        places = torch.arange(history.shape[1], device=history.device)
        ago = batch.lengths[:, None] + count - 1 - places
        seen = batch.valid if not self.causal else batch.valid & (ago < self.places)
        of_history = (kernel[ago % self.places] * seen[..., None] * history).sum(1)
        between = torch.arange(count - 1, -1, -1, device=history.device)
        weights = kernel[between % self.places]
        if self.causal:
            weights = weights * (between < self.places)[:, None]
        return (of_history[:, None] + (weights * tokens).sum(2)).to(history.dtype)


class FMLPBlock(nn.Module):
    """One filter and one feed-forward."""

    def __init__(self, dim: int, places: int, spec: FMLP):
        super().__init__()
        self.filter = Filter(dim, places, spec.causal)
        self.filter_norm, self.feed_forward_norm = nn.LayerNorm(dim, eps=EPS), nn.LayerNorm(dim, eps=EPS)
        self.feed_forward = MLP(dim, spec.inner or 4 * dim, "gelu", True, 0.0)
        self.drop = Dropout(spec.dropout)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B T D"]:
        return self.after(x, self.filter(x, batch))

    def after(self, x: Float[Tensor, "B n D"], filtered: Float[Tensor, "B n D"]) -> Float[Tensor, "B n D"]:
        """The norms and the feed-forward behind the filter."""
        y = self.filter_norm(x + self.drop(filtered))
        return self.feed_forward_norm(y + self.drop(self.feed_forward(y)))


class FMLPEncoder(Encoder):
    """Learned positions, a norm, and blocks."""

    branching, featureless = (1, 1), ""
    uncounted = "its filters run by Fourier transforms, and what is counted are matrix products"

    def __init__(self, dim: int, max_length: int, spec: FMLP):
        super().__init__()
        self.dim, self.max_length, self.causal = dim, max_length, spec.causal
        self.position = nn.Embedding(max_length, dim) if spec.positions == "learned" else None
        self.from_end = True
        self.norm_input, self.drop = nn.LayerNorm(dim, eps=EPS), Dropout(spec.dropout)
        self.blocks = nn.ModuleList(FMLPBlock(dim, max_length, spec) for _ in range(spec.layers))
        self.continues = spec.causal and spec.positions == "none"
        start_small(self)

    def forward(self, x: Float[Tensor, "B T D"], batch: Batch) -> States:
        require_length(x, self.max_length)
        if self.position is not None:
            at = batch.positions(from_end=True)
            x = x + self.position(at.clamp_max(self.max_length - 1))
        layers = [self._embedded(x)]
        for block in self.blocks:
            layers.append(block(layers[-1], batch))
        return States(layers[-1], tuple(layers), tuple(self.blocks))

    def start(self, x: Float[Tensor, "B T D"], batch: Batch) -> tuple[States, Cache]:
        states = self(x, batch)
        return states, Cache(tuple((layer,) for layer in states.layers[:-1]), batch)

    def step(self, x: Float[Tensor, "B P D"], cache: Cache) -> Stepped:
        # the cached inputs of a block are [B, T, D] of the history, then [B, P, S, D] of the
        # streams
        x, layers = self._embedded(x), []
        for block, (history, *before) in zip(self._stack(), cache.layers, strict=True):
            tokens = torch.cat([*before, x[:, :, None]], 2)
            layers.append((history, tokens))
            x = block.after(x, block.filter.step(history, tokens, cache.batch))
        return x, cache.grown(tuple(layers))

    def _stack(self) -> list[FMLPBlock]:
        return cast(list[FMLPBlock], list(self.blocks))

    def _embedded(self, x: Tensor) -> Tensor:
        """The input of the first block, and the form in which a latent token enters."""
        return self.drop(self.norm_input(x))
