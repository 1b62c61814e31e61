"""LETTER: RQ-VAE that also knows who buys what (Wang et al., CIKM 2024, arXiv:2405.07314).

The loss of RQ-VAE (`rqvae.py`; here means over elements and over levels, as in the
authors' code) and two terms:

    alignment   cross-entropy of softmax over the batch of z_q,i . c_j at j = i, where c are collaborative vectors of
                the items, frozen: those that a trained recommender has (`Encode.collaborative`)
    diversity   by level, cross-entropy of softmax over the codewords but the item's own of e . e_j / temperature, at
                another codeword of its cluster; clusters of codewords, alike in size, are made each epoch

Items that the same people like come to share codes, and codewords of a cluster spread over
the codes instead of a few taking all. A codeword that is alone in its cluster has no
partner and no diversity loss.

Differs: the authors' encoder is 2048-1024-512-256-128-64 and learns 20,000 epochs (`hidden`,
`epochs`); their script has alignment 0.01, the paper 0.1. Their last step, other last codes for
items that collide, is `collisions=sinkhorn`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fullrank.core.constraints import Factor, Temperature, needs
from fullrank.core.errors import UserError
from fullrank.core.log import Progress
from fullrank.semantic_ids import AlignedCodesSpec, BookSize, Levels
from fullrank.semantic_ids.kmeans import kmeans
from fullrank.semantic_ids.quantisers import Autoencoder
from fullrank.semantic_ids.rqvae import AutoencoderSpec, LearningStep, Term, learn
from fullrank.semantic_ids.vectors import Vectors, require_known, require_width

CLUSTER_ROUNDS = 10
"""Rounds of k-means behind the clusters of codewords."""


class Letter(AutoencoderSpec, AlignedCodesSpec):
    """Residual-quantised autoencoder with collaborative alignment and diverse codes."""

    kind: Literal["letter"] = "letter"
    levels: Levels = 4
    """K, codes of an item."""
    update: Annotated[Literal["gradient", "ema"], needs("diversity", 0, code="option-without-effect")] = "gradient"
    """Rule by which codewords move; diversity moves them by its gradient, which `ema` leaves out."""
    weight_decay: Factor = 1e-4
    """Decay of weights, biases and codewords."""
    alignment: Factor = 0.1
    """Weight of the alignment with collaborative vectors; 0 needs none."""
    diversity: Factor = 1e-4
    """Weight of the diversity of codes."""
    clusters: BookSize = 10
    """Clusters of a level's codewords."""
    temperature: Temperature = 1.0
    """Divides the products of codewords in the diversity loss."""

    def fit(
        self, x: Float[Tensor, "n D"], seed: int, tick: Progress, collaborative: Vectors | None = None
    ) -> Autoencoder:
        generator = torch.Generator().manual_seed(seed)
        terms: list[Term] = []
        if self.alignment:
            terms.append(self._alignment(collaborative))
        if self.diversity:
            terms.append(CodeDiversity(self.diversity, self.clusters, self.temperature, generator))
        return learn(self, x, seed, tick, generator, terms)

    def total(self, error: Float[Tensor, ""], levels: Float[Tensor, "K"], dim: int) -> Float[Tensor, ""]:
        return error + levels.mean()

    def _alignment(self, collaborative: Vectors | None) -> CollaborativeAlignment:
        """The term of the alignment. Raises `UserError` where there are no
        fitting collaborative vectors."""
        if collaborative is None:
            raise UserError(
                "letter aligns codes with collaborative vectors: name a file of them with --collaborative (fullrank "
                "vectors RUN writes one), or set learner.alignment=0",
                code="missing-collaborative-vectors",
            )
        matrix, remedy = collaborative.matrix, "give collaborative vectors of this store's run"
        require_width(matrix, self.width, "collaborative", f"set learner.width={matrix.shape[1]}")
        require_known(collaborative.known, "the items that letter learns from", remedy)
        return CollaborativeAlignment(self.alignment, matrix, collaborative.known)


@dataclass(frozen=True, eq=False)
class CollaborativeAlignment(Term):
    """weight . cross-entropy of z_q,i . c_j over the batch at j = i; items without a vector c are left out."""

    name = "alignment"

    weight: float
    vectors: Float[Tensor, "n d"]
    known: Bool[Tensor, "n"]

    def __call__(self, step: LearningStep) -> Float[Tensor, ""]:
        here = self.known[step.rows]
        if not here.any():
            return step.through.sum() * 0
        logits = step.through[here] @ self.vectors[step.rows[here]].T
        return self.weight * F.cross_entropy(logits, torch.arange(len(logits)))


@dataclass(eq=False)
class CodeDiversity(Term):
    """weight . mean over levels of the cross-entropy of e . e_j / temperature over all j but its own, at a partner."""

    name = "diversity"

    weight: float
    clusters: int
    temperature: float
    generator: torch.Generator
    cluster: list[Int64[Tensor, "C"]] = field(default_factory=list)

    def begin(self, books: Float[Tensor, "K C d"]) -> None:
        self.cluster = [balanced_clusters(book, min(self.clusters, len(book)), self.generator) for book in books]

    def __call__(self, step: LearningStep) -> Float[Tensor, ""]:
        total = step.words.sum() * 0  # where no codeword has a partner
        for level, cluster in enumerate(self.cluster):
            codes = step.codes[:, level]
            partner = partners(codes, cluster, self.generator)
            paired = partner >= 0
            if not paired.any():
                continue
            logits = step.words[paired, level] @ step.books[level].T / self.temperature
            masked = logits.scatter(1, codes[paired, None], -torch.inf)
            total = total + F.cross_entropy(masked, partner[paired])
        return self.weight * total / len(self.cluster)


def balanced_clusters(words: Float[Tensor, "C d"], clusters: int, generator: torch.Generator) -> Int64[Tensor, "C"]:
    """The cluster of each codeword, none with more than its share (rounded up).

    Centres are those of k-means; then pairs of codeword and centre are taken in the
    order of their distances, where codeword and centre are still free. (The authors
    solve it as a minimum-cost flow.)
    """
    centres = kmeans(words[None], clusters, CLUSTER_ROUNDS, generator)[0]
    far = torch.cdist(words.double(), centres.double())
    room = [-(-len(words) // clusters)] * clusters
    cluster_of = [-1] * len(words)
    for pair in far.flatten().argsort(stable=True).tolist():
        word, cluster = divmod(pair, clusters)
        if room[cluster] and cluster_of[word] < 0:
            cluster_of[word] = cluster
            room[cluster] -= 1
    return torch.tensor(cluster_of)


def partners(codes: Int64[Tensor, "B"], cluster: Int64[Tensor, "C"], generator: torch.Generator) -> Int64[Tensor, "B"]:
    """Another code of each code's cluster, drawn alike; -1 where it is alone in it."""
    members = cluster.argsort(stable=True)  # cluster after cluster
    size = torch.bincount(cluster)
    begin = size.cumsum(0) - size
    position = members.argsort()  # of each code in `members`
    mine = cluster[codes]
    others = size[mine] - 1
    draw = (torch.rand(len(codes), generator=generator, dtype=torch.float64) * others).long().clamp_max(others - 1)
    # 1 to `others` steps onward in the cluster, and round
    step = (position[codes] - begin[mine] + 1 + draw) % size[mine]
    return torch.where(others > 0, members[begin[mine] + step], -1)
