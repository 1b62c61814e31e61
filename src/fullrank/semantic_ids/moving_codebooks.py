"""Residual codebooks that move while an encoder learns: what they choose, their losses, moving averages, dead codes.

Equations stand in `rqvae.py`, whose training loop this serves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fullrank.semantic_ids.kmeans import kmeans, revive
from fullrank.semantic_ids.quantisers import nearest_codeword

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
        kept: Tensor = (self.rests - self.words.detach()).pow(2).mean((0, 2))
        return moved + commitment * kept


def quantise(z: Float[Tensor, "B d"], books: Float[Tensor, "K C d"]) -> Quantised:
    """Nearest codewords, level by level; a level takes off the detached codeword."""
    rest, codes, rests, words = z, [], [], []
    for book in books:
        codes.append(nearest_codeword(rest.detach(), book.detach()))
        rests.append(rest)
        words.append(F.embedding(codes[-1], book))
        rest = rest - words[-1].detach()
    return Quantised(torch.stack(codes, 1), torch.stack(rests, 1), torch.stack(words, 1))


def straight_through(z: Float[Tensor, "B d"], found: Quantised) -> Float[Tensor, "B d"]:
    """z_q with the gradient of z."""
    return z + (found.words.sum(1) - z).detach()


class MovingAverage:
    """Codewords as moving averages of the vectors that chose them (`update=ema`)."""

    def __init__(self, books: Float[Tensor, "K C d"], decay: float):
        self.decay, self.sums, self.counts = decay, books.clone(), torch.ones(books.shape[:2])

    def update(self, found: Quantised, books: Float[Tensor, "K C d"]) -> None:
        """N <- decay N + (1 - decay) n, m <- decay m + (1 - decay) sum of the vectors, e <- m / N. In place."""
        rests = found.rests.detach()
        for level, book in enumerate(books):
            code = found.codes[:, level]
            total = torch.zeros_like(book).index_add_(0, code, rests[:, level])
            self.counts[level].lerp_(torch.bincount(code, minlength=len(book)).float(), 1 - self.decay)
            self.sums[level].lerp_(total, 1 - self.decay)
        enough = self.counts > LEAST_COUNT
        mean = self.sums / self.counts.clamp_min(LEAST_COUNT)[..., None]
        books.copy_(torch.where(enough[..., None], mean, books))

    def restart(self, moved: Bool[Tensor, "K C"], books: Float[Tensor, "K C d"]) -> None:
        """Codewords that were moved begin anew."""
        self.sums[moved], self.counts[moved] = books[moved], 1.0


def start(z: Float[Tensor, "n d"], levels: int, size: int, generator: torch.Generator) -> Float[Tensor, "K C d"]:
    """First codebooks: k-means of the latent vectors of a batch, and of what each level leaves of them."""
    books = []
    for _ in range(levels):
        books.append(kmeans(z[None], size, START_ROUNDS, generator)[0])
        z = z - books[-1][nearest_codeword(z, books[-1])]
    return torch.stack(books)


def revive_dead(
    z: Float[Tensor, "n d"], books: Float[Tensor, "K C d"], dead: Bool[Tensor, "K C"]
) -> Bool[Tensor, "K C"]:
    """Move dead codewords, in place, onto what a level is left with of vectors that it describes worst; which moved."""
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
