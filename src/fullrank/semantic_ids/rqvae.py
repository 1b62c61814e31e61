"""RQ-VAE: semantic ids of TIGER (Rajput et al., NeurIPS 2023, arXiv:2305.05065, Section 3.1).

An encoder makes z of an item's vector x, K codebooks quantise it residually, r_1 = z, r_{k+1} = r_k
- e_k, and a decoder makes x^ of their sum z_q. With sg for "no gradient flows here":

    loss = |x - x^|^2 + sum over k of |sg[r_k] - e_k|^2 + commitment |r_k - sg[e_k]|^2

The decoder's gradient reaches the encoder through z_q as if quantisation were not there (straight
through, van den Oord et al. 2017). What a level takes off the residual is the codeword without
gradient; were it the straight-through vector, r_k would be constant and deeper levels would tell
the encoder nothing. Codebooks start at k-means of the first batch.

Differs from TIGER: AdamW where it has Adagrad, and far fewer epochs, for a CPU; codes that no
vector of an epoch chose are moved to a vector that is described badly (`revive`; TIGER has k-means
at the start alone). Codewords may instead follow the mean of their vectors, `update=ema` (van den
Oord et al. 2017, Appendix A.1).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_EPOCHS, Count, Factor, PositiveShare, Share, Width, Widths
from fullrank.core.errors import UserError
from fullrank.core.log import Progress
from fullrank.core.memory import require_memory
from fullrank.semantic_ids import BookSize, CodesSpec, Levels, Tensors
from fullrank.semantic_ids.kmeans import require_vectors, revive, sample_rows
from fullrank.semantic_ids.quantisers import (
    Autoencoder,
    initial_layers,
    nearest_codeword,
    run_layers,
    scaled_vectors,
)
from fullrank.semantic_ids.rq_kmeans import residual_kmeans

START_ROUNDS = 25
"""Rounds of k-means behind the first codebooks, and of looking for dead codes at the end."""
LEAST_COUNT = 1e-6
"""Moving count of a codeword's vectors below which it stays where it is (`update=ema`)."""


@dataclass(frozen=True)
class Quantised:
    """Latent vectors and what each level leaves and chooses."""

    codes: Int64[Tensor, "B K"]
    rests: Float[Tensor, "B K d"]
    """r_k, with the encoder's gradient."""
    words: Float[Tensor, "B K d"]
    """e_k, with the codebooks' gradient."""

    def losses(self, commitment: float, *, codebook: bool = True) -> Float[Tensor, "K"]:
        """Mean square of an element of r_k - e_k by level, for the codewords and for the encoder."""
        moved = (self.rests.detach() - self.words).pow(2).mean((0, 2)) if codebook else 0.0
        committed: Tensor = (self.rests - self.words.detach()).pow(2).mean((0, 2))
        return moved + commitment * committed


def quantise(z: Float[Tensor, "B d"], books: Float[Tensor, "K C d"]) -> Quantised:
    """Nearest codewords, level by level; a level takes off the detached codeword."""
    rest, codes, rests, words = z, [], [], []
    for book in books:
        codes.append(nearest_codeword(rest.detach(), book.detach()))
        rests.append(rest)
        words.append(F.embedding(codes[-1], book))
        rest = rest - words[-1].detach()
    return Quantised(torch.stack(codes, 1), torch.stack(rests, 1), torch.stack(words, 1))


def straight_through(z: Float[Tensor, "B d"], quantised: Quantised) -> Float[Tensor, "B d"]:
    """z_q with the gradient of z."""
    return z + (quantised.words.sum(1) - z).detach()


class MovingAverage:
    """Codewords as moving averages of the vectors that chose them (`update=ema`)."""

    def __init__(self, books: Float[Tensor, "K C d"], decay: float):
        self.decay, self.sums, self.counts = decay, books.clone(), torch.ones(books.shape[:2])

    def update(self, quantised: Quantised, books: Float[Tensor, "K C d"]) -> None:
        """N <- decay N + (1 - decay) n, m <- decay m + (1 - decay) sum of the vectors, e <- m / N. In place."""
        rests = quantised.rests.detach()
        for level, book in enumerate(books):
            code = quantised.codes[:, level]
            total = torch.zeros_like(book).index_add_(0, code, rests[:, level])
            self.counts[level].lerp_(torch.bincount(code, minlength=len(book)).float(), 1 - self.decay)
            self.sums[level].lerp_(total, 1 - self.decay)
        enough = self.counts > LEAST_COUNT
        mean = self.sums / self.counts.clamp_min(LEAST_COUNT)[..., None]
        books.copy_(torch.where(enough[..., None], mean, books))

    def restart(self, moved: Bool[Tensor, "K C"], books: Float[Tensor, "K C d"]) -> None:
        """Codewords that were moved begin anew."""
        self.sums[moved], self.counts[moved] = books[moved], 1.0


def revive_dead(
    z: Float[Tensor, "n d"], books: Float[Tensor, "K C d"], dead: Bool[Tensor, "K C"]
) -> Bool[Tensor, "K C"]:
    """Move dead codewords, in place, onto what a level is left with of vectors that it
    describes worst; which moved."""
    moved = torch.zeros_like(dead)
    for level, book in enumerate(books):
        empty = dead[level].nonzero().squeeze(1)
        if len(empty):
            error = (z - book[nearest_codeword(z, book)]).pow(2).sum(1)
            moved[level, empty[: revive(z, error, book, empty)]] = True
        z = z - book[nearest_codeword(z, book)]
    return moved


def settle(z: Float[Tensor, "n d"], books: Float[Tensor, "K C d"]) -> int:
    """Move codewords that are still dead when the learning ends, until none is or it does not help; how many moves.

    A codeword that comes to a vector can take the last vector of another one, which is dead then.
    """
    moves = 0
    for book in books:
        for _ in range(START_ROUNDS):
            code = nearest_codeword(z, book)
            empty = (torch.bincount(code, minlength=len(book)) == 0).nonzero().squeeze(1)
            moved = revive(z, (z - book[code]).pow(2).sum(1), book, empty) if len(empty) else 0
            moves += moved
            if not moved:
                break
        z = z - book[nearest_codeword(z, book)]
    return moves


class AutoencoderSpec(CodesSpec):
    """Settings of learners with an encoder, residual codebooks and a decoder."""

    levels: Levels = 3
    """K, codes of an item."""
    size: BookSize = 256
    """Codes of a level; not more than there are vectors to learn from."""
    hidden: Widths = (512, 256, 128)
    """Widths of the encoder's hidden layers; the decoder has them the other way round."""
    width: Width = 32
    """Width of the codewords."""
    commitment: Factor = 0.25
    """Weight of the loss that keeps the encoder near its codewords."""
    update: Literal["gradient", "ema"] = "gradient"
    """Rule by which codewords move: by the gradient of their loss, or to the moving average of their vectors."""
    decay: Share = 0.99
    """Share of the past in that moving average."""
    revive: bool = True
    """Move codes that no vector of an epoch chose to vectors that are described badly."""
    epochs: int = Field(100, ge=1, le=MOST_EPOCHS)
    """Passes over the vectors."""
    batch: Count = 1024
    """Vectors of a step."""
    lr: PositiveShare = 1e-3
    """Step size of AdamW."""
    weight_decay: Factor = 0.0
    """Decay of weights, biases and codewords."""
    points: Count = 65536
    """Vectors to learn from; more are sampled."""

    @abstractmethod
    def total(self, error: Float[Tensor, ""], levels: Float[Tensor, "K"], dim: int) -> Float[Tensor, ""]:
        """The loss from the mean squared error of an element of x, and of an
        element of each level's codewords."""

    def restore(self, tensors: Tensors) -> Autoencoder:
        return Autoencoder.restore(tensors, self.hidden, self.width, self.levels, self.size)


class RqVae(AutoencoderSpec):
    """Residual-quantised autoencoder."""

    kind: Literal["rqvae"] = "rqvae"

    def fit(self, x: Float[Tensor, "n D"], seed: int, tick: Progress) -> Autoencoder:
        return learn(self, x, seed, tick, torch.Generator().manual_seed(seed))

    def total(self, error: Float[Tensor, ""], levels: Float[Tensor, "K"], dim: int) -> Float[Tensor, ""]:
        return dim * error + self.width * levels.sum()  # squared norms, as TIGER writes them


@dataclass(frozen=True)
class LearningStep:
    """A batch quantised with its gradients, for terms of the loss that a learner adds."""

    rows: Int64[Tensor, "B"]
    """Row numbers of the batch among all vectors."""
    through: Float[Tensor, "B d"]
    """z_q with the gradient of z (straight through)."""
    codes: Int64[Tensor, "B K"]
    words: Float[Tensor, "B K d"]
    """Codewords of the codes; their gradient goes to the codebooks."""
    books: Float[Tensor, "K C d"]


class Term(ABC):
    """A term of the loss beside those of RQ-VAE."""

    name: str

    def begin(self, books: Float[Tensor, "K C d"]) -> None:  # noqa: B027 (most terms have nothing to do)
        """Called when an epoch begins."""

    @abstractmethod
    def __call__(self, step: LearningStep) -> Float[Tensor, ""]:
        """The term, with its weight."""


def learn(
    spec: AutoencoderSpec,
    x: Float[Tensor, "n D"],
    seed: int,
    tick: Progress,
    draws: torch.Generator,
    terms: Sequence[Term] = (),
) -> Autoencoder:
    """The network and codebooks learned from `spec.points` rows of x, which `draws` chooses.

    Raises `UserError` where they cannot be learned.
    """
    require_vectors(x, spec.size, spec.kind_of())
    rows = sample_rows(len(x), max(spec.points, spec.size), draws)
    generator, dim = torch.Generator().manual_seed(seed), x.shape[1]
    widths = (dim, *spec.hidden, spec.width)
    network = 2 * sum(a * b for a, b in itertools.pairwise(widths))
    # in bytes: weights, gradients and two moments
    needed = 4 * 4 * (network + spec.levels * spec.size * spec.width)
    require_memory(needed, f"the network of {spec.kind_of()}", "set smaller learner.hidden or learner.width")
    encoder, decoder = initial_layers(widths, generator), initial_layers(widths[::-1], generator)
    points = x[rows].double()
    mean = points.mean(0).float()
    scale = (points - mean.double()).pow(2).mean().sqrt().float()[None]
    scaled = scaled_vectors(x[rows], mean, scale).float()
    first = scaled[torch.randperm(len(scaled), generator=generator)[: max(spec.batch, spec.size)]]
    books = residual_kmeans(run_layers(first, encoder), spec.levels, spec.size, START_ROUNDS, generator)
    average = MovingAverage(books, spec.decay) if spec.update == "ema" else None
    learned = [tensor for layer in (*encoder, *decoder) for tensor in layer]
    learned += [books] if average is None else []
    facts: dict[str, float] = {}
    revived = 0
    with torch.enable_grad():
        for parameter in learned:
            parameter.requires_grad_()
        optimiser = torch.optim.AdamW(learned, lr=spec.lr, weight_decay=spec.weight_decay)
        for epoch in range(spec.epochs):
            for term in terms:
                term.begin(books.detach())
            used, facts = torch.zeros(books.shape[:2], dtype=torch.bool), {}
            for batch in torch.randperm(len(scaled), generator=generator).split(spec.batch):
                optimiser.zero_grad()
                z = run_layers(scaled[batch], encoder)
                quantised = quantise(z, books)
                through = straight_through(z, quantised)
                step = LearningStep(rows[batch], through, quantised.codes, quantised.words, books)
                error = F.mse_loss(run_layers(step.through, decoder), scaled[batch])
                levels = quantised.losses(spec.commitment, codebook=average is None)
                parts = {"autoencoder": spec.total(error, levels, dim)} | {term.name: term(step) for term in terms}
                loss = torch.stack(list(parts.values())).sum()
                loss.backward()
                optimiser.step()
                if average is not None:
                    average.update(quantised, books)
                used[torch.arange(spec.levels), quantised.codes] = True
                for name, mean_error in ({"squared_error": error} | parts).items():
                    facts[name] = facts.get(name, 0.0) + mean_error.item() * len(batch) / len(scaled)
            numbers = [*map(torch.tensor, facts.values()), *learned, books]
            if not all(bool(tensor.isfinite().all()) for tensor in numbers):
                raise UserError(
                    f"the loss of {spec.kind_of()} is no longer finite in epoch {epoch + 1}; set a smaller learner.lr",
                    code="loss-not-finite",
                )
            if spec.revive and not used.all():
                with torch.no_grad():
                    moved = revive_dead(run_layers(scaled, encoder), books.detach(), ~used)
                revived += int(moved.sum())
                if average is not None:
                    average.restart(moved, books)
            tick(epoch + 1, spec.epochs)
    for parameter in learned:
        parameter.requires_grad_(False)
    if spec.revive:
        revived += settle(run_layers(scaled, encoder), books)
    learning = {"epochs": spec.epochs, "revived": revived, "last_epoch": facts}
    return Autoencoder(encoder, decoder, books, mean, scale, learning)
