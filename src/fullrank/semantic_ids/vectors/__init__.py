"""Items -> vectors of what is known of them, before any training: the space that code learners divide up.

The room's contract: a `VectorsSpec` whose ``read(catalog, cache, tell)`` gives `Vectors`, a row for
every item in the catalogue's order. An item of which nothing is known has no vector: `known` is
false there, and nothing is made up before somebody says what to put in its place. Reading runs no
code of a stranger and no pickle.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.log import Tell
from fullrank.core.registry import Room
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog

CACHE = Path(".cache") / "vectors"
"""Cache folder of vectors that take long to make, below the working folder."""


@dataclass(frozen=True)
class Vectors:
    """One vector for each item, where there is one."""

    matrix: Float[Tensor, "V D"]
    """float32; zeros where nothing is known."""
    known: Bool[Tensor, "V"]
    facts: JsonObject
    """Origin of the vectors, for the manifest: kind, width, counts, fingerprint."""


def require_known(known: Tensor | np.ndarray, whose: str, remedy: str, *, code: str = "items-without-vectors") -> None:
    """Raise `UserError` where none of some items is `known` by a vector (a mask); `whose` names them."""
    if not known.any():
        raise UserError(f"none of {whose} has a vector; {remedy}", code=code)


def require_width(matrix: Float[Tensor, "V D"], width: int, what: str, remedy: str) -> None:
    """Raise `UserError` where vectors are of another width than they are read with."""
    if matrix.shape[1] != width:
        raise UserError(
            f"the {what} vectors have width {matrix.shape[1]}, and {width} is needed; {remedy}", code="other-vectors"
        )


class VectorsSpec(Spec):
    """Base of every source of item vectors."""

    @abstractmethod
    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        """The vectors of the catalogue's items; what takes long to make is kept in the folder `cache`."""


VectorSource = Annotated[VectorsSpec, Room("items.vectors")]
"""A setting that takes any source of item vectors."""
