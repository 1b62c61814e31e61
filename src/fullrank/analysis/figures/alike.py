"""Which runs make one line of a figure: those that differ in nothing but what the figure varies, and in their seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from fullrank.analysis.report.known import Known, readable

K = TypeVar("K", bound=Known)

LAYERS = ("encoder.layers",)
"""Settings of a model that make it deeper."""
SIZES = (
    "dim", *LAYERS, "encoder.hidden", "encoder.inner",
    "encoder.attention.heads", "encoder.attention.qk_width", "encoder.attention.value_width",
)  # fmt: skip
"""Settings of a recommender that make it larger. Not among them: what makes it read or think longer."""
RANKER_SIZES = tuple(
    f"ranker.{name}"
    for name in (
        "tokens", "width", "blocks", "tokeniser.hidden", "feed_forward.expansion", "feed_forward.hidden",
        "feed_forward.experts", "layers", "heads", "crosses", "rank", "experts", "cin", "deep.hidden",
    )
)  # fmt: skip
"""Settings of a click model that add dense parameters. Not `embedding.dim`: the tables would grow with it unseen."""
PARTS = ("ranker.rank", "ranker.experts", "ranker.deep.hidden")
"""Where one of these is null or empty, the model lacks a part, which is no matter of size."""
FREE = "free"


def alike(findings: Sequence[K], free: Sequence[str] = ()) -> list[list[K]]:
    """Groups of runs whose specs agree but for the seed and these settings (dotted, below `model`), in their order."""
    groups: dict[str, list[K]] = {}
    for one in findings:
        tree = one.run.spec.dump()
        tree["seed"] = FREE
        for name in free:
            _open(tree["model"], name)
        groups.setdefault(json.dumps(tree, sort_keys=True), []).append(one)
    return list(groups.values())


def line_label(group: Sequence[Known]) -> str:
    """`A, B: sasrec`, of more than six runs `A, B, C, ... J: sasrec`.

    It begins with a letter of ours: matplotlib hides labels that begin with an underscore.
    """
    keys = [one.key for one in group]
    shown = ", ".join(keys) if len(keys) <= 6 else f"{', '.join(keys[:3])}, ... {keys[-1]}"
    return f"{shown}: {readable(group[0].run.spec.recipe)}"


def _open(tree: Any, name: str) -> None:
    """Write `FREE` where a setting stands; nothing where the model has none of that name."""
    *rooms, last = name.split(".")
    for room in rooms:
        tree = tree.get(room) if isinstance(tree, dict) else None
    if isinstance(tree, dict) and last in tree and (tree[last] or name not in PARTS):
        tree[last] = FREE
