"""Spectral collapse: how much of the score matrix is its first direction, and how close that is to popularity.

Claim (SPRINT, KDD 2026, Lemma 3.1 and Figure 2): the first right singular vector q1 of the users x
items score matrix is nearly the item popularity, and the share sigma_1^2 / sum sigma_k^2 grows with
depth. Both are measured here, and the share for the outputs of every layer at each user's last
position, whose output becomes the scores (`layers`).

The score matrix X E^T is never formed: with X = Q_x R_x and E = Q_e R_e it has the singular values
of R_x R_e^T, which is D x D. The triangular factors are made block by block in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import (
    Activations,
    Claim,
    Diagnostic,
    Figure,
    Row,
    RunResult,
    Runs,
    Sample,
    lines,
    readable,
)
from fullrank.metrics import ItemCounts
from fullrank.models import DenseScorer, last
from fullrank.ops.singular_values import LEAST, collapse_share, entropy_rank, stable_rank

ROWS = 1 << 14
"""Rows of a tall matrix that are made float64 and triangular at once."""
RANKS = {"collapse_share": collapse_share, "stable_rank": stable_rank, "entropy_rank": entropy_rank}
LOADINGS = 10
"""Number of items, those that the first direction raises most, that have a row."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a score matrix, falling, and its first pair of singular vectors."""

    sigma: Float[Tensor, "K"]
    left: Float[Tensor, "U"]
    right: Float[Tensor, "V"]


@dataclass(frozen=True)
class Likeness:
    """The first right singular vector, its sign chosen for popularity, and its likeness to it (Lemma 3.1).

    With this sign the rank correlation is not negative. The cosine can be: where a model's scores
    are below zero, the direction lowers the unpopular items more than it raises the popular ones.
    """

    right: Float[np.ndarray, "V"]
    cosine: float | None
    spearman: float | None


def popularity_likeness(spectrum: Spectrum, popularity: ItemCounts) -> Likeness:
    """Cosine and rank correlation of q1 and popularity; None where that is constant."""
    right = spectrum.right.numpy()
    correlation = spearman(right, popularity)
    if correlation is not None and correlation < 0:
        right, correlation = -right, -correlation
    return Likeness(right, _cosine(right, popularity), correlation)


def triangle(x: Float[Tensor, "*n D"], above: Float[Tensor, "k D"] | None = None) -> Float[Tensor, "m D"]:
    """R of the QR factors of [above; x], float64 on the CPU.

    R has the singular values of [above; x], without the loss of digits that its Gram matrix R^T R
    has.
    """
    flat = x.flatten(0, -2)
    factor = above if above is not None else torch.zeros(0, flat.shape[1], dtype=torch.float64)
    for low in range(0, len(flat), ROWS):
        part = flat[low : low + ROWS].detach().cpu().double()
        factor = torch.linalg.qr(torch.cat([factor, part]), mode="r").R
    return factor


def stacked(above: Sequence[Tensor], layers: Sequence[Tensor]) -> list[Tensor]:
    """Add a batch of each layer to its triangle; `above` is empty at first."""
    return [triangle(x, *above[layer : layer + 1]) for layer, x in enumerate(layers)]


def score_spectrum(vectors: Float[Tensor, "U D"], table: Float[Tensor, "V D"]) -> Spectrum:
    """The spectrum of vectors @ table.T; the right vector's sum is not negative."""
    users, items = triangle(vectors), triangle(table)
    left, sigma, right = torch.linalg.svd(users @ items.T)
    scale = sigma[0].clamp_min(LEAST)
    # [D] combinations of columns: table @ u is the right singular vector q1, vectors @ v the left
    # one
    u, v = (users.T @ left[:, 0]) / scale, (items.T @ right[0]) / scale
    q = _times(table, u)
    sign = -1.0 if float(q.sum()) < 0 else 1.0
    return Spectrum(sigma[: vectors.shape[1]], sign * _times(vectors, v), sign * q)


def rank_figures(sigma: Float[Tensor, "K"]) -> dict[str, Tensor]:
    """Share of the first direction and effective ranks, by their names in rows."""
    return {name: rank(sigma) for name, rank in RANKS.items()}


class ScoreMatrix:
    """The score matrix of a sample as its two factors, collected batch by batch."""

    def __init__(self, sample: Sample):
        self.sample = sample
        self.vectors: Tensor | None = None
        self.table: Tensor | None = None
        self.temperature = 1.0

    def observe(self, batch: Activations) -> None:
        if not isinstance(batch.scorer, DenseScorer):
            return
        vectors = (batch.scorer.vectors / batch.scorer.temperature).cpu()
        if self.vectors is None:
            self.vectors, self.table = torch.zeros(len(self.sample), vectors.shape[1]), batch.scorer.table
            self.temperature = batch.scorer.temperature
        self.vectors[torch.from_numpy(batch.users)] = vectors.float()

    def spectrum(self) -> Spectrum | None:
        if self.vectors is None or self.table is None:
            return None
        return score_spectrum(self.vectors, self.table)


class SpectralCollapse(Diagnostic):
    """Share of the first direction, ranks, likeness to popularity, largest loadings."""

    name = "spectrum"
    claim_of = Claim(
        "Items of the first singular vector of {}",
        "The items with the largest part in the strongest pattern of all scores, and their places by "
        "popularity. If they are the most popular ones, the pattern is popularity.",
        table=True,
    )
    internal = True
    claim = Claim(
        "Singular values of the scores",
        "All scores that a model gives (users by items) are a sum of patterns; the curve shows how strong each is, "
        "the first being 1. A curve that drops at once means one pattern decides, and everybody gets nearly the "
        "same list. The collapse share is the share of the variance that is the first pattern; Spearman's "
        "correlation compares the order it puts items in with how often they were used (1: a popularity ranking).",
        columns={
            "collapse share": "collapse_share", "Spearman correlation with popularity": "popularity_spearman",
            "as a cosine": "popularity_cosine", "effective rank": "entropy_rank", "of": "width", "largest": "sigma",
        },
    )  # fmt: skip

    def begin(self) -> None:
        self.scores = ScoreMatrix(self.context.sample)

    def observe(self, batch: Activations) -> None:
        self.scores.observe(batch)

    def rows(self) -> list[Row]:
        spectrum = self.scores.spectrum()
        if spectrum is None:
            return self.left_out("its scores are no inner product of user and item vectors")
        sigma, like = spectrum.sigma, popularity_likeness(spectrum, self.context.sample.popularity)
        likeness = {"popularity_cosine": like.cosine, "popularity_spearman": like.spearman}
        rows = self.rows_of(rank_figures(sigma) | {"width": len(sigma)} | likeness)
        rows += [self.row("sigma", value, index=k) for k, value in enumerate(sigma, 1)]
        best = np.argsort(-like.right, kind="stable")[:LOADINGS]
        return rows + [self.row("loading", like.right[item], index=int(item)) for item in best]

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        curves = []
        for run in there:
            sigma = run.diagnosis.values(cls.name, "sigma", "index")
            curves += [(run.label, k, value / (sigma[1] or 1)) for k, value in sigma.items()]
        chart = lines("pattern, by falling strength", "strength (first = 1)", log="y", rows=curves)
        return claim.figure(*claim.read(there, cls.name), chart)

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure | None:
        """The items that the first direction raises most, with their titles."""
        loadings, catalog = result.diagnosis.values(cls.name, "loading", "index"), result.catalog
        if not loadings or not all(0 <= item < catalog.size for item in loadings):
            return None
        rank = (-catalog.popularity).argsort(kind="stable").argsort()
        rows = []
        for item, loading in loadings.items():
            title = "" if catalog.titles is None else readable(catalog.titles[item] or "")
            events = int(catalog.popularity[item])
            rows.append((readable(str(catalog.ids[item])), title, events, int(rank[item]) + 1, loading))
        return claim.figure(("item", "title", "training events", "place by popularity", "part in the pattern"), rows)


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation; equal values share their mean rank. None where `a` or `b` is constant."""
    left, right = _ranks(a), _ranks(b)
    return _cosine(left - left.mean(), right - right.mean())


def _ranks(values: np.ndarray) -> Float[np.ndarray, "n"]:
    _, distinct, counts = np.unique(values, return_inverse=True, return_counts=True)
    # the m values that are equal have the ranks end - m + 1 ... end
    return (np.cumsum(counts) - (counts - 1) / 2)[distinct]


def _cosine(a: np.ndarray, b: np.ndarray) -> float | None:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm > 0 else None


def _times(matrix: Float[Tensor, "n D"], vector: Float[Tensor, "D"]) -> Float[Tensor, "n"]:
    """matrix @ vector in float64 on the CPU, some rows at a time."""
    parts = [matrix[low : low + ROWS].detach().cpu().double() @ vector for low in range(0, len(matrix), ROWS)]
    return torch.cat(parts)


DEPTH = "layer (0: input)"


class Layers(Diagnostic):
    """The outputs of every layer at each user's last position, as one users x width matrix a layer.

    Layer 0 is the input of the first block, layer L the output of the last one.
    """

    name = "layers"
    internal = True
    claim = Claim(
        "Effective rank of the states by layer",
        "After each layer every user is a point; these curves say how those points spread. A falling rank and "
        "a rising share mean that users are squeezed towards one line: the model tells them apart less and less.",
        (
            lines(DEPTH, "collapse share", zero=True),
            lines(DEPTH, "effective rank", zero=True),
            lines(DEPTH, "largest singular value", log="y"),
        ),
        key="layer",
        at=DEPTH,
        columns={
            "collapse share": "collapse_share", "effective rank": "entropy_rank", "largest singular value": "sigma_1"
        },
    )  # fmt: skip

    def begin(self) -> None:
        self.triangles: list[Tensor] = []

    def observe(self, batch: Activations) -> None:
        if batch.states is None or batch.inputs is None:
            return
        tops = [last(layer, batch.inputs) for layer in batch.states.layers]
        self.triangles = stacked(self.triangles, tops)

    def rows(self) -> list[Row]:
        if not self.triangles:
            return self.left_out("it has no layers")
        rows = []
        for layer, sigma in enumerate(map(torch.linalg.svdvals, self.triangles)):
            rows += self.rows_of({"sigma_1": sigma[0]} | rank_figures(sigma), layer=layer)
        return rows
