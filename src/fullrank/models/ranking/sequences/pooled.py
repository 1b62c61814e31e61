"""Pooled sequences: the mean or the sum of a history's vectors (`embedding.bags`), whatever the target is.

The mean of fifty events says little of any one of them. `target_attention` is compared with it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fullrank.models.ranking.sequences import SequenceSpec


class Pooled(SequenceSpec):
    """Mean or sum of the events, the same for every target."""

    kind: Literal["pooled"] = "pooled"
    learns: ClassVar[bool] = False
