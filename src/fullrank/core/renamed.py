"""Old spellings of keywords, options and verbs, and what they are called now: for the sentence that refuses them."""

from __future__ import annotations

LISTS, LOG = "`fullrank evaluate-lists FILE [RUN]`", "`fullrank evaluate-log DIR --events FILE`"
PARTS, ASK = "`fullrank recommend-parts RUN --out FOLDER`", "`fullrank ask URL`"
RENAMED = {
    "recommend reasoning": "budget=",
    "recommend_parts reasoning": "budget=",
    "evaluate --drop": "`fullrank study drop RUN --shares SHARE,...`",
    "evaluate --oracle-step": "`fullrank study oracle-step RUN`",
    "evaluate --step-curve": "`fullrank study step-curve RUN`",
    "evaluate --dial": "`fullrank study dial RUN`",
    **dict.fromkeys(("evaluate --lists", "evaluate --rank-col", "evaluate --score-col"), LISTS),
    **dict.fromkeys(("evaluate --log", "evaluate --within", "evaluate --columns"), LOG),
    **{f"recommend --{name}": PARTS for name in ("engine", "parts", "workers", "master", "ray")},
    **{f"recommend --{name}": ASK for name in ("url", "user", "key")},
}
"""What was typed, a function or verb before its argument -> what is to be typed."""


def called_now(where: str, old: str) -> str:
    """The end of a sentence that names the new spelling; empty for what never had another."""
    new = RENAMED.get(f"{where} {old}")
    return "" if new is None else f"; it is {new} now"
