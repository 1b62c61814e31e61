"""Spectral collapse: how much of the score matrix is its first direction, and how close that is to popularity.

Claim (SPRINT, KDD 2026, Lemma 3.1 and Figure 2): the first right singular vector q1 of the users x items score matrix
is nearly the item popularity, and the share sigma_1^2 / sum sigma_k^2 grows with depth. Both are measured here, the
share for the outputs of every layer as well (at each user's last position).

The score matrix X E^T is never formed: with X = Q_x R_x and E = Q_e R_e it has the singular values of R_x R_e^T, which
is D x D. The triangular factors are made block by block in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.effective_rank import LEAST, collapse_share, entropy_rank, stable_rank
from fullrank.analysis.reading import Reading
from fullrank.data.batch import DenseScorer, last

ROWS = 1 << 14
"""Rows of a tall matrix that are made float64 and triangular at once."""
LOADINGS = 10
"""Items named as those that the first direction raises most."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a score matrix, falling, and its first pair of singular vectors."""

    sigma: Float[Tensor, "K"]
    left: Float[Tensor, "U"]
    right: Float[Tensor, "V"]


@dataclass(frozen=True)
class Likeness:
    """The first right singular vector, its free sign turned towards popularity, and how near it is (Lemma 3.1).

    Towards popularity means: its rank correlation is not negative. The cosine can then be: where a model's scores are
    below zero, the direction lowers the unpopular items more than it raises the popular ones.
    """

    right: Float[np.ndarray, "V"]
    cosine: float | None
    spearman: float | None


def likeness(spectrum: Spectrum, popularity: Int[np.ndarray, "V"]) -> Likeness:
    """Cosine and rank correlation of q1 and popularity; None where they do not exist (popularity is constant)."""
    right = spectrum.right.numpy()
    correlation = spearman(right, popularity)
    if correlation is not None and correlation < 0:
        right, correlation = -right, -correlation
    return Likeness(right, _cosine(right, popularity), correlation)


def triangle(x: Float[Tensor, "*n D"], above: Float[Tensor, "k D"] | None = None) -> Float[Tensor, "m D"]:
    """R of the QR factors of [above; x], float64 on the CPU: R^T R is the Gram matrix, its square roots kept exact."""
    flat = x.flatten(0, -2)
    found = above if above is not None else torch.zeros(0, flat.shape[1], dtype=torch.float64)
    for low in range(0, len(flat), ROWS):
        part = flat[low : low + ROWS].detach().cpu().double()
        found = torch.linalg.qr(torch.cat([found, part]), mode="r").R
    return found


def score_spectrum(vectors: Float[Tensor, "U D"], table: Float[Tensor, "V D"]) -> Spectrum:
    """The spectrum of vectors @ table.T; the right vector's sum is not negative."""
    users, items = triangle(vectors), triangle(table)
    left, sigma, right = torch.linalg.svd(users @ items.T)
    scale = sigma[0].clamp_min(LEAST)
    u, v = (users.T @ left[:, 0]) / scale, (items.T @ right[0]) / scale
    q = _times(table, u)
    sign = -1.0 if float(q.sum()) < 0 else 1.0
    return Spectrum(sigma[: vectors.shape[1]], sign * _times(vectors, v), sign * q)


def spectrum_rows(spectrum: Spectrum, popularity: Int[np.ndarray, "V"]) -> list[Row]:
    """Share, ranks, likeness to popularity, the singular values, and the items of the largest loadings."""
    name, sigma, like = "spectrum", spectrum.sigma, likeness(spectrum, popularity)
    found = [
        row(name, "collapse_share", float(collapse_share(sigma))),
        row(name, "stable_rank", float(stable_rank(sigma))),
        row(name, "entropy_rank", float(entropy_rank(sigma))),
        row(name, "width", len(sigma)),
        row(name, "popularity_cosine", like.cosine),
        row(name, "popularity_spearman", like.spearman),
    ]
    found += [row(name, "sigma", float(value), index=k + 1) for k, value in enumerate(sigma)]
    best = np.argsort(-like.right, kind="stable")[:LOADINGS]
    return found + [row(name, "loading", float(like.right[item]), index=int(item)) for item in best]


class Scores:
    """Observer: the score matrix of the sample."""

    def __init__(self, users: int, popularity: Int[np.ndarray, "V"]):
        self.users, self.popularity = users, popularity
        self.vectors: Tensor | None = None
        self.table: Tensor | None = None
        self.temperature = 1.0

    def see(self, reading: Reading) -> None:
        if not isinstance(reading.answer, DenseScorer):
            return
        vectors = (reading.answer.vectors / reading.answer.temperature).cpu()
        if self.vectors is None:
            self.vectors, self.table = torch.zeros(self.users, vectors.shape[1]), reading.answer.table
            self.temperature = reading.answer.temperature
        self.vectors[torch.from_numpy(reading.at)] = vectors.float()

    def spectrum(self) -> Spectrum | None:
        if self.vectors is None or self.table is None:
            return None
        return score_spectrum(self.vectors, self.table)

    def rows(self) -> list[Row]:
        found = self.spectrum()
        if found is None:
            return [left_out("spectrum", "its scores are no inner product of user and item vectors")]
        return spectrum_rows(found, self.popularity)


class Layers:
    """Observer: the outputs of every layer at each user's last position, as one users x width matrix a layer.

    Layer 0 is what the first block is given, layer L what the last one returns.
    """

    def __init__(self) -> None:
        self.triangles: list[Tensor] = []

    def see(self, reading: Reading) -> None:
        if reading.states is None or reading.inputs is None:
            return
        tops = [last(layer, reading.inputs) for layer in reading.states.layers]
        above: list[Tensor] | list[None] = self.triangles or [None] * len(tops)
        self.triangles = [triangle(top, old) for top, old in zip(tops, above, strict=True)]

    def rows(self) -> list[Row]:
        if not self.triangles:
            return [left_out("layers", "it has no layers")]
        found = []
        for layer, factor in enumerate(self.triangles):
            sigma = torch.linalg.svdvals(factor)
            figures = {
                "sigma_1": sigma[0],
                "collapse_share": collapse_share(sigma),
                "stable_rank": stable_rank(sigma),
                "entropy_rank": entropy_rank(sigma),
            }
            found += [row("layers", name, float(value), layer=layer) for name, value in figures.items()]
        return found


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation; equal values share their mean rank. None where one side is constant."""
    left, right = _ranks(a), _ranks(b)
    return _cosine(left - left.mean(), right - right.mean())


def _ranks(values: np.ndarray) -> Float[np.ndarray, "n"]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place]


def _cosine(a: np.ndarray, b: np.ndarray) -> float | None:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else None


def _times(matrix: Float[Tensor, "n D"], vector: Float[Tensor, "D"]) -> Float[Tensor, "n"]:
    """matrix @ vector in float64 on the CPU, some rows at a time."""
    parts = [matrix[low : low + ROWS].detach().cpu().double() @ vector for low in range(0, len(matrix), ROWS)]
    return torch.cat(parts)
