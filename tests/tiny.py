"""What tests of the model side are made of: those of `fullrank.testing`, and the spec of a kind."""

from __future__ import annotations

from discover import Pair, load
from fullrank.core.spec import Spec
from fullrank.testing.inputs import (
    ITEMS,
    Flat,
    built,
    catalog,
    close,
    example,
    histories,
    padded,
    questions,
    reachable,
    shaken,
    store,
)  # fmt: skip

__all__ = [
    "ITEMS", "Flat", "built", "catalog", "close", "histories", "padded", "plain", "questions", "reachable", "shaken",
    "store",
]  # fmt: skip


def plain(pair: Pair) -> Spec:
    """The spec of a kind at its defaults (and the settings that it cannot do without)."""
    return example(load(pair))
