"""OPQ: optimised product quantisation (Ge et al., CVPR 2013 / TPAMI 2014), the codes of RPG and FAIR.

A rotation of the centred vectors is learned together with K codebooks, one for each part of the
rotated vector: start from principal components with variance spread evenly over the parts (their
OPQ_P), then in turn improve the codebooks by k-means and the rotation by Procrustes (OPQ_NP).

Differs: RPG reads the codes of faiss's index `OPQ{K},IVF1,PQ{K}x8`, whose rotation starts at
random; ours starts as above in both engines. `faiss` (extra `codes`) learns the rotation in C++;
`torch` is the fallback, and the only engine for sizes that are no power of two and for fewer
vectors than dimensions. The last codebooks are the library's own k-means in either case: faiss
draws first codewords blindly, and some never win a vector. faiss uses one thread: two thread pools
on the same cores slow each other down.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fullrank.core.checks import divided
from fullrank.core.constraints import MOST_ROUNDS, Count
from fullrank.core.errors import UserError, package
from fullrank.core.log import Progress
from fullrank.semantic_ids import BookSize, CodesSpec, Levels, Tensors
from fullrank.semantic_ids.kmeans import assign, kmeans, lloyd, require_vectors, sample_rows
from fullrank.semantic_ids.quantisers import Product

FIRST = 10
"""Rounds of k-means before the first improvement of the rotation."""


class Opq(CodesSpec):
    """Optimised product quantisation."""

    kind: Literal["opq"] = "opq"
    levels: Levels = 16
    """K, codes of an item; the width of the vectors must divide by it."""
    size: BookSize = 256
    """Codes of a level; not more than there are vectors to learn from."""
    rounds: int = Field(20, ge=0, le=MOST_ROUNDS)
    """Improvements of the rotation; 0 keeps the principal components."""
    iterations: int = Field(25, ge=1, le=MOST_ROUNDS)
    """Rounds of k-means for the last codebooks."""
    points: Count = 65536
    """Vectors to learn from; more are sampled."""
    engine: Literal["auto", "faiss", "torch"] = "auto"
    """Engine that learns; auto: faiss where it is installed, the size is a power of two, and there are at least as many
    vectors as they are wide."""

    def fit(self, x: Float[Tensor, "n D"], seed: int, tick: Progress) -> Product:
        fitting = x.shape[1] - x.shape[1] % self.levels
        remedy = f"levels; set {f'pca={fitting} or ' if fitting else ''}another number of levels"
        divided(x.shape[1], self.levels, "opq: the width of the vectors", remedy)
        require_vectors(x, self.size, "opq")
        generator = torch.Generator().manual_seed(seed)
        mean = x.double().mean(0).float()
        sample = x[sample_rows(len(x), max(self.points, self.size), generator)] - mean
        rotation = initial_rotation(sample, self.levels)
        turn = _faiss if self.chosen(*sample.shape) == "faiss" else _torch
        if self.rounds:
            rotation = turn(sample, rotation, self, generator, tick)
        words = kmeans(subspaces(sample, rotation, self.levels), self.size, self.iterations, generator)
        tick(self.rounds + 1, self.rounds + 1)
        return Product(words, rotation, mean)

    def restore(self, tensors: Tensors) -> Product:
        return Product.restore(tensors, self.levels, self.size)

    def chosen(self, vectors: int, width: int) -> str:
        """The engine that will learn from so many vectors. Raises `UserError` where the one asked for cannot.

        With fewer vectors than dimensions, faiss would read and write behind its own arrays.
        """
        power_of_two = self.size > 1 and self.size & (self.size - 1) == 0
        installed = importlib.util.find_spec("faiss") is not None
        if self.engine == "faiss":
            package("faiss", "codes", "engine=faiss", ", or set engine=torch")
            if not power_of_two:
                raise UserError(
                    f"faiss learns codebooks of 2, 4, 8, ... codes, not of {self.size}; set engine=torch",
                    code="size-not-power-of-two",
                )
            if vectors < width:
                raise UserError(
                    f"faiss cannot learn a rotation of {width:,} dimensions from {vectors:,} vectors; set "
                    f"engine=torch, or pca={vectors - 1} or fewer",
                    code="too-few-vectors-for-faiss",
                )
        able = installed and power_of_two and vectors >= width
        return "faiss" if self.engine != "torch" and able else "torch"


def initial_rotation(x: Float[Tensor, "n D"], levels: int) -> Float[Tensor, "D D"]:
    """Principal components, dealt out so that the parts have like products of variances
    (OPQ_P, their Section 3.3)."""
    centred = x.double()
    values, directions = torch.linalg.eigh(centred.T @ centred / len(x))
    order = values.argsort(descending=True).tolist()
    # an eigenvector's sign is the solver's whim: the largest entry is made positive
    directions = directions * directions.gather(0, directions.abs().argmax(0)[None]).sign()
    logs = values.clamp_min(1e-12 * float(values.max().clamp_min(1e-30))).log()
    parts: list[list[int]] = [[] for _ in range(levels)]
    totals = [0.0] * levels
    shift = float(logs.min())  # all terms positive: a part grows with each direction that it gets
    for number in order:
        open_parts = [p for p in range(levels) if len(parts[p]) < x.shape[1] // levels]
        best = min(open_parts, key=lambda p: totals[p])
        parts[best].append(number)
        totals[best] += float(logs[number]) - shift
    return directions[:, [number for part in parts for number in part]].float()


def subspaces(x: Float[Tensor, "n D"], rotation: Float[Tensor, "D D"], levels: int) -> Float[Tensor, "K n d"]:
    """The parts of the rotated vectors that the levels describe."""
    return (x @ rotation).unflatten(1, (levels, -1)).transpose(0, 1).contiguous()


def _torch(
    x: Float[Tensor, "n D"], rotation: Float[Tensor, "D D"], spec: Opq, generator: torch.Generator, tick: Progress
) -> Float[Tensor, "D D"]:
    """The rotation after some rounds of: codebooks by one step of k-means,
    rotation by Procrustes (OPQ_NP)."""
    words = kmeans(subspaces(x, rotation, spec.levels), spec.size, FIRST, generator)
    for done in range(spec.rounds):
        turned = subspaces(x, rotation, spec.levels)
        words = lloyd(turned, words, 1)
        code, _ = assign(turned, words)
        described = words.gather(1, code[..., None].expand(-1, -1, words.shape[2])).transpose(0, 1).flatten(1)
        # the rotation that brings the vectors nearest to what their codes describe
        u, _, v = torch.linalg.svd((x.T @ described).double())
        rotation = (u @ v).float()
        tick(done + 1, spec.rounds + 1)
    return rotation


def _faiss(
    x: Float[Tensor, "n D"], rotation: Float[Tensor, "D D"], spec: Opq, generator: torch.Generator, tick: Progress
) -> Float[Tensor, "D D"]:
    """The rotation that faiss's OPQMatrix learns from the same start."""
    import faiss

    width = x.shape[1]
    learner = faiss.OPQMatrix(width, spec.levels)
    learner.niter, learner.niter_pq, learner.niter_pq_0, learner.max_train_points = spec.rounds, 4, FIRST, len(x)
    inner = faiss.ProductQuantizer(width, spec.levels, spec.size.bit_length() - 1)
    inner.cp.seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    inner.cp.min_points_per_centroid = 1  # silences a warning: `require_vectors` has looked
    learner.pq = inner
    faiss.copy_array_to_vector(np.ascontiguousarray(rotation.T.numpy()).ravel(), learner.A)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        learner.train(np.ascontiguousarray(x.numpy()))
    finally:
        faiss.omp_set_num_threads(before)
    tick(spec.rounds, spec.rounds + 1)
    return torch.from_numpy(faiss.vector_to_array(learner.A).reshape(width, width).T.copy())
