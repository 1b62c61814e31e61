"""What the laws run on: every Spec that a room ships, found by looking, so that a new file is tested at once."""

from fullrank.core.registry import ROOMS, find, kinds
from fullrank.core.spec import Spec
from fullrank.testing.inputs import example, variations

__all__ = ["Pair", "everything", "example", "load", "name", "variations"]

Pair = tuple[str, str]
"""(room, kind)"""


def everything(*rooms: str) -> list[Pair]:
    """Every (room, kind) of these rooms, by default of all; nothing is imported, so one broken file fails alone."""
    return [(room, kind) for room in rooms or ROOMS for kind in kinds(room)]


def name(pair: object) -> str:
    """The test id of a pair: `attention.softmax`."""
    return ".".join(pair) if isinstance(pair, tuple) else str(pair)


def load(pair: Pair) -> type[Spec]:
    """The Spec class of a pair."""
    return find(pair[1], pair[0])
