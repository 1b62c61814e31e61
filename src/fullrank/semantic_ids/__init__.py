"""Vectors -> semantic ids: K small numbers for each item, like items with like numbers.

The room's contract: a `CodesSpec` whose ``fit(x, seed, tick)`` gives a `Quantiser`, and whose
``restore(tensors)`` gives it back from a file. A learner sees vectors alone: where they come from
is in `vectors/`, what is done about items with the same codes is in `collisions.py`, what a good
code is in `measure.py`, and the folder on disk in `folder.py`. `Codes` (`reader.py`) is what the
rest of the library reads.

`opq.py` and `rq_kmeans.py` divide the vectors themselves. RQ-VAE (TIGER, arXiv:2305.05065;
`rqvae.py`) and LETTER (arXiv:2405.07314; `letter.py`) give a residual quantiser behind an
encoder. What all give stands in `quantisers.py`. A learner that reads collaborative vectors
besides is an `AlignedCodesSpec`.

Letters: V items, n vectors of some of them, D width of a vector, K levels that were learned,
L levels with an extra digit, C codes of a level, d width of the part (or of the latent
vector) that a level describes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Protocol, runtime_checkable

from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from fullrank.core.log import Progress
from fullrank.core.spec import Spec
from fullrank.semantic_ids.vectors import Vectors

Levels = Annotated[int, Field(ge=1, le=256)]
"""K, codes of an item."""
BookSize = Annotated[int, Field(ge=1, le=65536)]
"""Codes of a level: what fits into 16 bits."""
Tensors = Mapping[str, Tensor]
"""Tensors by their names in a file."""


@runtime_checkable
class Quantiser(Protocol):
    """Codebooks that turn vectors into codes and back. Every row is treated alone: codes depend on no other row."""

    sizes: tuple[int, ...]
    """Codes of each level."""
    dim: int
    """D, the width of the vectors."""
    codebooks: Float[Tensor, "K C d"]
    """Codewords; d is D, D / K where each level describes a part of the (rotated) vector, or the
    width behind an encoder."""

    def encode(self, x: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]: ...
    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]: ...
    def last(self, x: Float[Tensor, "n D"], codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n C"]:
        """Squared error of each row, up to a constant of its own, with each code in the last level's place.

        Errors are of the space that the codebooks divide.
        """
        ...

    def tensors(self) -> dict[str, Tensor]: ...


class CodesSpec(Spec):
    """Base of every learner of codes."""

    @abstractmethod
    def fit(self, x: Float[Tensor, "n D"], seed: int, tick: Progress) -> Quantiser:
        """Codebooks learned from these vectors. Raises `UserError` where they are
        too few or of an unfit width."""

    @abstractmethod
    def restore(self, tensors: Tensors) -> Quantiser:
        """The quantiser whose `tensors` these are. Raises `UserError` where they are not of this spec."""


class AlignedCodesSpec(CodesSpec):
    """Base of a learner that reads collaborative vectors beside those that it encodes (`Encode.collaborative`)."""

    @abstractmethod
    def fit(
        self, x: Float[Tensor, "n D"], seed: int, tick: Progress, collaborative: Vectors | None = None
    ) -> Quantiser:
        """Codebooks learned from x and `collaborative`, row by row of the same items; encoding reads x alone."""
