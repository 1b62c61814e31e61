"""Old spellings of keywords, options and verbs, what they are called now, and settings that are gone: for the sentences
that refuse them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Removed(NamedTuple):
    """A setting that is gone: of a spec that has it at this value nothing has changed, and its hash holds it still."""

    default: Any
    last: str
    """The last version that reads other values."""


REMOVED = {
    ("hstu", "divide_by"): Removed("max_length", "0.1.0"),
    ("sprint", "normalise_count"): Removed(False, "0.1.0"),
}
"""(kind, field) -> what it was; docs/decisions/0025-idle-settings.md says why."""

LISTS, LOG = "`fullrank evaluate-lists FILE [RUN]`", "`fullrank evaluate-log DIR --events FILE`"
PARTS, ASK = "`fullrank recommend-parts RUN --out FOLDER`", "`fullrank ask URL`"
DOCTOR = "`fullrank doctor-serve`"
RENAMED = {
    "recommend reasoning": "budget=",
    "recommend_parts reasoning": "budget=",
    "evaluate --drop": "`fullrank study drop RUN --shares SHARE,...`",
    "evaluate --oracle-step": "`fullrank study oracle-step RUN`",
    "evaluate --step-curve": "`fullrank study step-curve RUN`",
    "evaluate --dial": "`fullrank study dial RUN`",
    **dict.fromkeys(("evaluate --lists", "evaluate --rank-col", "evaluate --score-col"), LISTS),
    **dict.fromkeys(("evaluate --log", "evaluate --within", "evaluate --columns"), LOG),
    "evaluate-log --columns": "`--user-col NAME`, `--item-col NAME` and `--time-col NAME`",
    **{f"doctor --{name}": DOCTOR for name in ("serve", "run", "store", "port")},
    **{f"recommend --{name}": PARTS for name in ("engine", "parts", "workers", "master", "ray")},
    **{f"recommend --{name}": ASK for name in ("url", "user", "key")},
}
"""What was typed, a function or verb before its argument -> what is to be typed."""


def called_now(where: str, old: str) -> str:
    """The end of a sentence that names the new spelling; empty for what never had another."""
    new = RENAMED.get(f"{where} {old}")
    return "" if new is None else f"; it is {new} now"
