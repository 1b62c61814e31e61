"""Clustered vectors: items around centres, and users near some of them, as trained tables of items are.

Items of a catalogue lie in groups of unequal size. Users are drawn around the same centres, as widely as the items, so
that the best items of a user come from several groups: an index that reads few cells has something to miss.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def clustered_vectors(
    items: int, users: int, *, width: int = 64, clusters: int = 2000, spread: float = 1.0, seed: int = 0
) -> tuple[Float[np.ndarray, "V D"], Float[np.ndarray, "U D"]]:
    """Vectors of items and of users in float32: a mixture of `clusters` normal distributions.

    `spread` is the deviation within a cluster; that of the centres is 1.
    """
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((clusters, width), dtype=np.float32)
    weights = draw.dirichlet(np.ones(clusters))
    found = []
    for count in (items, users):
        vectors = draw.standard_normal((count, width), dtype=np.float32)
        vectors *= spread
        vectors += centres[draw.choice(clusters, count, p=weights)]
        found.append(vectors)
    return found[0], found[1]
