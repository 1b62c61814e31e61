"""The forms of codebooks that turn vectors into codes and back.

    Product      a part of the rotated vector for each level
    Residual     for each level the rest that the levels before leave
    Autoencoder  residual codebooks in the latent space of an encoder, and a decoder back

Behind an encoder, codes are nearest codewords of the latent vector, level by level; what they
describe is what the decoder makes of their sum. `rqvae.py` and `letter.py` learn it. Weights and
biases stand beside the codebooks in the folder, so that new items are encoded by the same network.

Sources: RQ-VAE (Lee et al., CVPR 2022; of audio: Zeghidour et al. 2021), for items by TIGER
(arXiv:2305.05065, Section 3.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.semantic_ids import Tensors


class Codebooks:
    """Codewords of each level, and the mean of the vectors that they describe."""

    def __init__(self, codebooks: Float[Tensor, "K C d"], mean: Float[Tensor, "D"]):
        self.codebooks, self.mean = codebooks, mean
        self.sizes, self.dim = (codebooks.shape[1],) * len(codebooks), len(mean)

    def tensors(self) -> dict[str, Tensor]:
        return {"codebooks": self.codebooks, "mean": self.mean}


class Product(Codebooks):
    """Level k describes the k-th part of (x - mean) @ rotation (Jégou et al. 2011; rotated: Ge et al. 2013)."""

    def __init__(self, codebooks: Float[Tensor, "K C d"], rotation: Float[Tensor, "D D"], mean: Float[Tensor, "D"]):
        super().__init__(codebooks, mean)
        self.rotation = rotation

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        parts = self._parts(x)
        return torch.stack([nearest_codeword(parts[:, k], words) for k, words in enumerate(self.codebooks)], 1)

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        parts = self.codebooks[torch.arange(len(self.codebooks)), codes]
        return parts.flatten(1) @ self.rotation.T + self.mean

    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        return torch.cdist(self._parts(x)[:, -1], self.codebooks[-1]).pow(2)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"rotation": self.rotation}

    @classmethod
    def restore(cls, tensors: Tensors, levels: int, size: int) -> Product:
        """The quantiser whose `tensors` these are, of so many levels and codes. Raises `UserError` for others."""
        (mean,) = require_tensors(tensors, {"mean": "D"})
        parts = {"K": levels, "C": size, "D": len(mean), "d": len(mean) / levels}
        words, rotation = require_tensors(tensors, {"codebooks": "KCd", "rotation": "DD"}, **parts)
        return cls(words, rotation, mean)

    def _parts(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "N K d"]:
        """The rotated vectors, cut into the parts that the levels describe."""
        # in float64: rounding of the product must not depend on how many rows it has
        turned = (x - self.mean).double() @ self.rotation.double()
        return turned.float().unflatten(1, (len(self.codebooks), -1))


class Residual(Codebooks):
    """Level k describes what is left of x - mean after the levels before it (Juang and Gray 1982)."""

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        rest, codes = x - self.mean, []
        for words in self.codebooks:
            codes.append(nearest_codeword(rest, words))
            rest = rest - words[codes[-1]]
        return torch.stack(codes, 1)

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        return self.codebooks[torch.arange(len(self.codebooks)), codes].sum(1) + self.mean

    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        levels = torch.arange(len(self.codebooks) - 1)
        rest = x - self.mean - self.codebooks[levels, codes[:, :-1]].sum(1)
        return torch.cdist(rest, self.codebooks[-1]).pow(2)

    @classmethod
    def restore(cls, tensors: Tensors, levels: int, size: int) -> Residual:
        """The quantiser whose `tensors` these are, of so many levels and codes. Raises `UserError` for others."""
        return cls(*require_tensors(tensors, {"codebooks": "KCD", "mean": "D"}, K=levels, C=size))


def require_tensors(tensors: Tensors, shapes: Mapping[str, str], **sizes: float) -> list[Tensor]:
    """These tensors, float32 and finite, each with a dimension for every letter of its shape.

    A letter is one number wherever it stands; `sizes` are those that are known. Raises
    `UserError` for what is not so.
    """
    required = []
    for name, letters in shapes.items():
        tensor = tensors.get(name, torch.empty(0))
        fits = tensor.ndim == len(letters) and all(
            size > 0 and sizes.setdefault(letter, size) == size
            for letter, size in zip(letters, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype != torch.float32 or not tensor.isfinite().all():
            wanted = ", ".join(f"{sizes.get(letter, letter)}" for letter in letters)
            raise UserError(
                f"it lacks the tensor {name!r} of the shape ({wanted}), float32 and finite: given is "
                + (f"{tensor.dtype} of {tuple(tensor.shape)}" if name in tensors else "none"),
                code="codebooks-damaged",
            )
        required.append(tensor)
    return required


ROWS = 4096
"""Vectors that are encoded or decoded at once."""


def nearest_codeword(x: Float[Tensor, "n d"], codebook: Float[Tensor, "C d"], rows: int = ROWS) -> Int64[Tensor, "n"]:
    """Index of the codeword with the least squared distance, `rows` vectors at a time.

    A product finds the two nearest; which of them it is, float64 decides, of equally near ones the
    first.
    """
    half, codes = codebook.pow(2).sum(1) / 2, [torch.zeros(0, dtype=torch.long, device=x.device)]
    for part in x.split(rows):
        scores = torch.addmm(half, part, codebook.T, alpha=-1)
        two = scores.topk(min(2, len(codebook)), largest=False).indices.sort(1).values
        far = (part.double()[:, None] - codebook.double()[two]).pow(2).sum(-1)
        codes.append(two.gather(1, far.argmin(1, keepdim=True)).squeeze(1))
    return torch.cat(codes)


def nearest_codeword_reference(x: Float[Tensor, "n d"], codebook: Float[Tensor, "C d"]) -> Int64[Tensor, "n"]:
    """`nearest_codeword` by the distances themselves."""
    far = (x.double()[:, None] - codebook.double()).pow(2).sum(-1)
    return far.argmin(1)


Layers = list[tuple[Tensor, Tensor]]
"""Weight [out, in] and bias [out] of each linear layer."""
LEAST_SCALE = 1e-30
"""Vectors that differ by less are taken for equal."""


class Autoencoder(Codebooks):
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
        super().__init__(codebooks, mean)
        self.encoder, self.decoder, self.scale = encoder, decoder, scale
        self.inner = Residual(codebooks, torch.zeros(codebooks.shape[2]))
        self.facts = dict(facts or {})
        """Record of the learning, for the manifest; empty once it is read from there."""

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        return self.inner.encode(self.latent(x))

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        return self.describe(self.quantised(codes))

    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        """Errors in the latent space, where the codes were chosen (LETTER and LC-Rec
        settle collisions there too)."""
        return self.inner.last(self.latent(x), codes)

    def latent(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n d"]:
        """The encoder's vectors. In float64: rounding must not depend on how many rows there are."""
        parts = [run_layers(scaled_vectors(part, self.mean, self.scale), self.encoder) for part in x.split(ROWS)]
        return torch.cat(parts).float()

    def quantised(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n d"]:
        """z_q, the sum of the codewords."""
        return self.inner.decode(codes)

    def describe(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n D"]:
        """The vectors that the decoder makes of latent ones."""
        parts = [run_layers(part.double(), self.decoder) for part in z.split(ROWS)]
        return (torch.cat(parts) * self.scale.double() + self.mean.double()).float()

    def tensors(self) -> dict[str, Tensor]:
        tensors = super().tensors() | {"scale": self.scale}
        for name, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            for number, (weight, bias) in enumerate(layers):
                tensors |= {f"{name}.{number}.weight": weight, f"{name}.{number}.bias": bias}
        return tensors

    @classmethod
    def restore(cls, tensors: Tensors, hidden: Sequence[int], width: int, levels: int, size: int) -> Autoencoder:
        """The quantiser whose `tensors` these are. Raises `UserError` where a shape
        is not as these settings say."""
        shapes = {"codebooks": "KCd", "mean": "D", "scale": "S"}
        words, mean, scale = require_tensors(tensors, shapes, K=levels, C=size, d=width, S=1)
        widths = (len(mean), *hidden, width)
        encoder, decoder = _layers(tensors, "encoder", widths), _layers(tensors, "decoder", widths[::-1])
        return cls(encoder, decoder, words, mean, scale)


def run_layers(x: Tensor, layers: Layers) -> Tensor:
    """Linear layers with ReLU between them, in the precision of x."""
    for number, (weight, bias) in enumerate(layers):
        x = F.linear(x if number == 0 else x.relu(), weight.to(x.dtype), bias.to(x.dtype))
    return x


def initial_layers(widths: Sequence[int], generator: torch.Generator) -> Layers:
    """Layers between these widths, weights and biases uniform in +-1 / sqrt(in), as
    `torch.nn.Linear` draws them."""
    layers: Layers = []
    for inner, outer in itertools.pairwise(widths):
        shapes = ((outer, inner), (outer,))
        weight, bias = ((torch.rand(shape, generator=generator) * 2 - 1) * inner**-0.5 for shape in shapes)
        layers.append((weight, bias))
    return layers


def scaled_vectors(x: Float[Tensor, "n D"], mean: Float[Tensor, "D"], scale: Float[Tensor, "1"]) -> Tensor:
    """(x - mean) / scale in float64: one scale for all dimensions keeps their
    proportions, and with them neighbours."""
    return (x.double() - mean.double()) / scale.double().clamp_min(LEAST_SCALE)


def _layers(tensors: Tensors, name: str, widths: Sequence[int]) -> Layers:
    """The layers of a network from its saved tensors. Raises `UserError`
    where they have other widths."""
    layers: Layers = []
    for number, (inner, outer) in enumerate(itertools.pairwise(widths)):
        shapes = {f"{name}.{number}.weight": "ow", f"{name}.{number}.bias": "o"}
        weight, bias = require_tensors(tensors, shapes, o=outer, w=inner)
        layers.append((weight, bias))
    return layers
