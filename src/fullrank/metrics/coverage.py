"""How much of the catalogue is shown, and how surprising it is."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from fullrank.metrics import MetricInputs
from fullrank.metrics.fairness import full_lists, mean_over_items


def coverage(exposure: Int[np.ndarray, "S V"]) -> Float[np.ndarray, "S"]:
    """Share of the catalogue's items that occur in at least one list."""
    return (exposure > 0).mean(-1)


def coverage_without(lists: Int[np.ndarray, "U k"], exposure: Int[np.ndarray, "V"]) -> Float[np.ndarray, "U"]:
    """The coverage of all lists but user u's, for every u. `exposure` is that of all lists."""
    alone = (exposure == 1)[lists] & (lists >= 0)
    return ((exposure > 0).sum() - alone.sum(1)) / len(exposure)


def novelty(table: MetricInputs, k: int) -> Float[np.ndarray, "U"]:
    """Mean self-information, in bits, of the items in the first k places (Zhou et al. 2010); empty places do not count.

    An item's probability is (events + 1) / (all events + V): one is added so that items never seen stay finite.
    """
    ids, popularity = full_lists(table)
    bits = -np.log2((popularity + 1) / (popularity.sum() + len(popularity)))
    return mean_over_items(ids[:, :k], bits)


def exposures(ids: Int[np.ndarray, "U k"], size: int) -> Int[np.ndarray, "V"]:
    """How often each of `size` items occurs in the lists."""
    return np.bincount(ids[ids >= 0], minlength=size)
