"""Old spellings of keywords, options and verbs, and what they are called now: for the sentence that refuses them."""

from __future__ import annotations

RENAMED = {
    "recommend reasoning": "budget=",
    "recommend_parts reasoning": "budget=",
}
"""What was typed, a function or verb before its argument -> what is to be typed."""


def called_now(where: str, old: str) -> str:
    """The end of a sentence that names the new spelling; empty for what never had another."""
    new = RENAMED.get(f"{where} {old}")
    return "" if new is None else f"; it is {new} now"
