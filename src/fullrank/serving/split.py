"""Split of users between versions: a pure function of the user's id and the shares.

Weighted rendezvous hashing: every version draws a number from (version, user), and the one with the largest
share / -ln(number) has the user. A version gets its share of users, and when shares change nobody moves who need not:
from 90 : 10 to 80 : 20 a ninth of the first version's users go to the second, and none back.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError


@dataclass(frozen=True)
class Share:
    """One version that answers: which run, and for which share of the users."""

    name: str
    manifest: str
    share: Annotated[float, Field(gt=0)]

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.manifest


@dataclass(frozen=True)
class ActiveVersions:
    """Which versions answer, and which did before: the document."""

    split: Annotated[tuple[Share, ...], Field(min_length=1)]
    previous: tuple[Share, ...] = ()

    @property
    def shares(self) -> dict[str, float]:
        return {one.name: one.share for one in self.split}

    @property
    def first(self) -> str:
        """The version with the largest share."""
        return max(self.split, key=lambda one: one.share).name

    @classmethod
    def read(cls, body: Mapping[str, Any] | None) -> ActiveVersions | None:
        """The inverse of `asdict`, by which the document is made; None for what that did not write."""
        try:
            return TypeAdapter(cls).validate_python(body)
        except ValidationError:
            return None


class Split:
    """Versions and their shares, in one object that is replaced whole."""

    def __init__(self, shares: Mapping[str, float]):
        self.shares = dict(shares)
        self.only = next(iter(self.shares)) if len(self.shares) == 1 else None
        self._drawn = [
            (name, share, hashlib.blake2b(f"\0{name}\0".encode(), digest_size=8))
            for name, share in sorted(self.shares.items())
        ]

    def of(self, user: str | None) -> str:
        """The version of a user; without an id, one drawn by the shares."""
        if self.only is not None:
            return self.only
        if user is None:
            return random.choices(list(self.shares), list(self.shares.values()))[0]
        best, found = -1.0, self._drawn[0][0]
        key = user.encode("utf-8", "surrogatepass")
        for name, share, begun in self._drawn:
            hashed = begun.copy()
            hashed.update(key)
            number = (int.from_bytes(hashed.digest(), "big") + 0.5) / 2**64
            score = math.inf if number >= 1 else share / -math.log(number)
            if score > best:
                best, found = score, name
        return found
