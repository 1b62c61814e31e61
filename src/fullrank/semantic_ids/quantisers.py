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
    def restore(cls, tensors: Mapping[str, Tensor]) -> Product:
        words, rotation, mean = require_tensors(tensors, {"codebooks": 3, "rotation": 2, "mean": 1})
        if rotation.shape != (len(mean), len(mean)) or words.shape[0] * words.shape[2] != len(mean):
            raise UserError(
                f"codebooks {tuple(words.shape)} and rotation {tuple(rotation.shape)} do not fit together",
                code="codebooks-damaged",
            )
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
    def restore(cls, tensors: Mapping[str, Tensor]) -> Residual:
        words, mean = require_tensors(tensors, {"codebooks": 3, "mean": 1})
        if words.shape[2] != len(mean):
            raise UserError(
                f"codebooks {tuple(words.shape)} do not fit vectors of width {len(mean)}", code="codebooks-damaged"
            )
        return cls(words, mean)


def require_sizes(books: Float[Tensor, "K C d"], levels: int, size: int) -> None:
    """Raises `UserError` unless these are the codebooks that the learner's spec speaks of."""
    if tuple(books.shape[:2]) != (levels, size):
        raise UserError(
            f"it holds {books.shape[0]} levels of {books.shape[1]} codes, the spec says {levels} of {size}",
            code="codebooks-damaged",
        )


def require_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, int]) -> list[Tensor]:
    """These tensors, each float32, finite and of so many dimensions. Raises `UserError` for what is not."""
    found = []
    for name, dimensions in shapes.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != torch.float32 or tensor.ndim != dimensions or 0 in tensor.shape:
            raise UserError(
                f"it lacks the tensor {name!r} (float32 with {dimensions} dimensions)", code="codebooks-damaged"
            )
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name!r} holds values that are not finite", code="codebooks-damaged")
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
