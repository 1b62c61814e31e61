"""The quantiser behind a network: an encoder, residual codebooks in its latent space, and a decoder back.

Codes are nearest codewords of the latent vector, level by level (`quantisers.Residual`); what they describe is what the
decoder makes of their sum. `rqvae.py` and `letter.py` learn it.

Sources: RQ-VAE (Lee et al., CVPR 2022; of audio: Zeghidour et al. 2021), for items by TIGER (arXiv:2305.05065, Section
3.1). Weights and biases stand beside the codebooks in the folder, so that new items are encoded by the same network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.semantic_ids.quantisers import ROWS, Residual, require_tensors

Layers = list[tuple[Tensor, Tensor]]
"""Weight [out, in] and bias [out] of each linear layer."""
LEAST_SCALE = 1e-30
"""Vectors that differ by less are taken for equal."""


class Autoencoder:
    """z = encoder((x - mean) / scale), quantised by residual codebooks; x is described by decoder(z_q) scale + mean."""

    def __init__(
        self,
        encoder: Layers,
        decoder: Layers,
        codebooks: Float[Tensor, "K C d"],
        mean: Float[Tensor, "D"],
        scale: Float[Tensor, "1"],
        facts: Mapping[str, Any] | None = None,
    ):
        self.encoder, self.decoder, self.mean, self.scale = encoder, decoder, mean, scale
        self.codebooks, self.inner = codebooks, Residual(codebooks, torch.zeros(codebooks.shape[2]))
        self.sizes, self.dim = self.inner.sizes, len(mean)
        self.facts = dict(facts or {})
        """How the learning went, for the manifest; empty once it is read from there."""

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        return self.inner.encode(self.latent(x))

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        return self.describe(self.quantised(codes))

    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        """In the latent space, where the codes were chosen (LETTER and LC-Rec settle collisions there too)."""
        return self.inner.last(self.latent(x), codes)

    def latent(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n d"]:
        """What the codebooks divide up. In float64: rounding must not depend on how many rows there are."""
        found = [
            run_layers(scaled_vectors(part, self.mean, self.scale), doubled(self.encoder)) for part in x.split(ROWS)
        ]
        return torch.cat(found).float()

    def quantised(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n d"]:
        """z_q, the sum of the codewords."""
        return self.inner.decode(codes)

    def describe(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n D"]:
        """The vectors that the decoder makes of latent ones."""
        made = [run_layers(part.double(), doubled(self.decoder)) for part in z.split(ROWS)]
        return (torch.cat(made) * self.scale.double() + self.mean.double()).float()

    def tensors(self) -> dict[str, Tensor]:
        own = {"codebooks": self.codebooks, "mean": self.mean, "scale": self.scale}
        return own | dict(_named("encoder", self.encoder)) | dict(_named("decoder", self.decoder))

    @classmethod
    def restore(
        cls, tensors: Mapping[str, Tensor], hidden: Sequence[int], width: int, levels: int, size: int
    ) -> Autoencoder:
        """The quantiser whose `tensors` these are. Raises `UserError` where a shape is not as these settings say."""
        shapes = {"codebooks": "KCd", "mean": "D", "scale": "S"}
        words, mean, scale = require_tensors(tensors, shapes, K=levels, C=size, d=width, S=1)
        widths = (len(mean), *hidden, width)
        encoder, decoder = _found(tensors, "encoder", widths), _found(tensors, "decoder", widths[::-1])
        return cls(encoder, decoder, words, mean, scale)


def run_layers(x: Tensor, layers: Layers) -> Tensor:
    """Linear layers with ReLU between them."""
    for number, (weight, bias) in enumerate(layers):
        x = F.linear(x if number == 0 else x.relu(), weight, bias)
    return x


def initial_layers(widths: Sequence[int], generator: torch.Generator) -> Layers:
    """Layers between these widths, weights and biases uniform in +-1 / sqrt(in), as `torch.nn.Linear` draws them."""
    return [
        ((torch.rand(out, wide, generator=generator) * 2 - 1) * wide**-0.5,
         (torch.rand(out, generator=generator) * 2 - 1) * wide**-0.5)
        for wide, out in zip(widths, widths[1:], strict=False)
    ]  # fmt: skip


def scaled_vectors(x: Float[Tensor, "n D"], mean: Float[Tensor, "D"], scale: Float[Tensor, "1"]) -> Tensor:
    """(x - mean) / scale in float64: one scale for all dimensions keeps their proportions, and with them neighbours."""
    return (x.double() - mean.double()) / scale.double().clamp_min(LEAST_SCALE)


def doubled(layers: Layers) -> Layers:
    return [(weight.double(), bias.double()) for weight, bias in layers]


def layer_weights(*networks: Layers) -> Iterator[Tensor]:
    """Every weight and bias."""
    for layers in networks:
        for pair in layers:
            yield from pair


def _named(name: str, layers: Layers) -> Iterable[tuple[str, Tensor]]:
    for number, (weight, bias) in enumerate(layers):
        yield f"{name}.{number}.weight", weight
        yield f"{name}.{number}.bias", bias


def _found(tensors: Mapping[str, Tensor], name: str, widths: Sequence[int]) -> Layers:
    layers: Layers = []
    for number, (wide, after) in enumerate(zip(widths, widths[1:], strict=False)):
        here = f"{name}.{number}"
        weight, bias = require_tensors(tensors, {f"{here}.weight": "ow", f"{here}.bias": "o"}, o=after, w=wide)
        layers.append((weight, bias))
    return layers
