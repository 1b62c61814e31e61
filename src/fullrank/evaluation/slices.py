"""Slices: metrics by kind of user, by history length and by popularity of the target, which an average hides.

The slice `target` is where per-band quality stands: recall of `tail` is the share of tail targets that were found. A
user with several targets (global-time splits) stands in the band of the most popular one, with all of them. The slice
`cold` tells apart users of whose targets none has a training event.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int

from fullrank.core.jagged import Jagged
from fullrank.evaluation.statistics import UserValues

LENGTHS = (0, 1, 5, 10, 20, 50)
"""First history length (events) of each band."""
HEAD, MID = 1 / 3, 2 / 3
"""Head: the most popular items that hold the first third of training events; mid: the next third; tail: all others."""

LABELS = {
    "users": ("known", "new"),
    "history": (*(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in zip(LENGTHS, LENGTHS[1:], strict=False)), "50+"),
    "target": ("head", "mid", "tail"),
    "cold": ("trained", "cold"),
}


def slice_codes(
    lengths: Int[np.ndarray, "U"], new: Bool[np.ndarray, "U"], truth: Jagged, popularity: Int[np.ndarray, "V"]
) -> dict[str, Int[np.ndarray, "U"]]:
    """The place of each user's label in `LABELS`. `new`: no event in training. Target: the most popular one."""
    band, items, first = popularity_bands(popularity), truth.flat(), truth.offsets[:-1]
    return {
        "users": new.astype(np.int8),
        "history": (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.int8),
        "target": np.minimum.reduceat(band[items], first).astype(np.int8),
        "cold": np.minimum.reduceat(popularity[items] == 0, first).astype(np.int8),
    }


def popularity_bands(popularity: Int[np.ndarray, "V"]) -> Int[np.ndarray, "V"]:
    """0 head, 1 mid, 2 tail for each item. An item belongs to the band in which its share of events begins."""
    order = np.argsort(-popularity, kind="stable")
    before = (np.cumsum(popularity[order]) - popularity[order]) / max(int(popularity.sum()), 1)
    band = np.empty(len(popularity), dtype=np.int8)
    band[order] = (before >= HEAD).astype(np.int8) + (before >= MID)
    band[popularity == 0] = 2
    return band


def slice_means(
    values: Mapping[str, UserValues], codes: Mapping[str, Int[np.ndarray, "U"]]
) -> dict[str, dict[str, dict[str, float | int]]]:
    """Slice -> label -> metric -> mean over the label's users, and their `count`; labels without users are left out."""
    found: dict[str, dict[str, dict[str, float | int]]] = {}
    for slice_name, code in codes.items():
        counts = np.bincount(code, minlength=len(LABELS[slice_name]))
        sums = {m: np.bincount(code, weights=v, minlength=len(counts)) for m, v in values.items()}
        found[slice_name] = {
            label: {"count": int(counts[i]), **{m: float(s[i] / counts[i]) for m, s in sums.items()}}
            for i, label in enumerate(LABELS[slice_name])
            if counts[i]
        }
    return found
