"""The two forms of codebooks: a part of the rotated vector for each level, or the rest that the levels before leave."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.core.errors import UserError


class Product:
    """Level k describes the k-th part of (x - mean) @ rotation (Jégou et al. 2011; rotated: Ge et al. 2013)."""

    def __init__(self, codebooks: Float[Tensor, "K C d"], rotation: Float[Tensor, "D D"], mean: Float[Tensor, "D"]):
        self.codebooks, self.rotation, self.mean = codebooks, rotation, mean
        self.sizes, self.dim = (codebooks.shape[1],) * len(codebooks), len(mean)

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        parts = self._parts(x)
        return torch.stack([nearest_codeword(parts[:, k], words) for k, words in enumerate(self.codebooks)], 1)

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        parts = self.codebooks[torch.arange(len(self.codebooks)), codes]
        return parts.flatten(1) @ self.rotation.T + self.mean

    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        return torch.cdist(self._parts(x)[:, -1], self.codebooks[-1]).pow(2)

    def tensors(self) -> dict[str, Tensor]:
        return {"codebooks": self.codebooks, "rotation": self.rotation, "mean": self.mean}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], levels: int, size: int) -> Product:
        """The quantiser whose `tensors` these are, of so many levels and codes. Raises `UserError` for others."""
        (mean,) = require_tensors(tensors, {"mean": "D"})
        parts = {"K": levels, "C": size, "D": len(mean), "d": len(mean) / levels}
        words, rotation = require_tensors(tensors, {"codebooks": "KCd", "rotation": "DD"}, **parts)
        return cls(words, rotation, mean)

    def _parts(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "N K d"]:
        # In float64: rounding of the product must not depend on how many rows it has.
        turned = (x - self.mean).double() @ self.rotation.double()
        return turned.float().unflatten(1, (len(self.codebooks), -1))


class Residual:
    """Level k describes what is left of x - mean after the levels before it (Juang and Gray 1982)."""

    def __init__(self, codebooks: Float[Tensor, "K C D"], mean: Float[Tensor, "D"]):
        self.codebooks, self.mean = codebooks, mean
        self.sizes, self.dim = (codebooks.shape[1],) * len(codebooks), len(mean)

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        rest, found = x - self.mean, []
        for words in self.codebooks:
            found.append(nearest_codeword(rest, words))
            rest = rest - words[found[-1]]
        return torch.stack(found, 1)

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        return self.codebooks[torch.arange(len(self.codebooks)), codes].sum(1) + self.mean

    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        levels = torch.arange(len(self.codebooks) - 1)
        rest = x - self.mean - self.codebooks[levels, codes[:, :-1]].sum(1)
        return torch.cdist(rest, self.codebooks[-1]).pow(2)

    def tensors(self) -> dict[str, Tensor]:
        return {"codebooks": self.codebooks, "mean": self.mean}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], levels: int, size: int) -> Residual:
        """The quantiser whose `tensors` these are, of so many levels and codes. Raises `UserError` for others."""
        return cls(*require_tensors(tensors, {"codebooks": "KCD", "mean": "D"}, K=levels, C=size))


def require_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, str], **sizes: float) -> list[Tensor]:
    """These tensors, float32 and finite, each with a dimension for every letter of its shape.

    A letter is one number wherever it stands; `sizes` are those that are known. Raises `UserError` for what is not so.
    """
    found = []
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
        found.append(tensor)
    return found


ROWS = 4096


def nearest_codeword(x: Float[Tensor, "n d"], codebook: Float[Tensor, "C d"], rows: int = ROWS) -> Int64[Tensor, "n"]:
    """Index of the codeword with the least squared distance, `rows` vectors at a time."""
    half = codebook.pow(2).sum(1) / 2
    found = [_refined(part, codebook, torch.addmm(half, part, codebook.T, alpha=-1)) for part in x.split(rows)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)


def nearest_codeword_reference(x: Float[Tensor, "n d"], codebook: Float[Tensor, "C d"]) -> Int64[Tensor, "n"]:
    """The same by the distances themselves."""
    far = (x.double()[:, None] - codebook.double()).pow(2).sum(-1)
    return far.argmin(1)


def _refined(
    x: Float[Tensor, "n d"], codebook: Float[Tensor, "C d"], scores: Float[Tensor, "n C"]
) -> Int64[Tensor, "n"]:
    two = scores.topk(min(2, len(codebook)), largest=False).indices.sort(1).values
    far = (x.double()[:, None] - codebook.double()[two]).pow(2).sum(-1)
    return two.gather(1, far.argmin(1, keepdim=True)).squeeze(1)
