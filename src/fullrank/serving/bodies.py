"""Bodies of answers: the places of a list with external ids, titles and reasons."""

from __future__ import annotations

from typing import Any

from fullrank.serving.model import ServedModel
from fullrank.serving.requests import Answer, Ask


def listed(model: ServedModel, answer: Answer, *, titles: bool) -> list[dict[str, Any]]:
    """The places of a list, best first."""
    ids = model.items.ids
    if not titles:
        return [{"item": ids[one], "score": score} for one, score in zip(answer.ids, answer.scores, strict=True)]
    return [{**named(model, one), "score": score} for one, score in zip(answer.ids, answer.scores, strict=True)]


def named(model: ServedModel, number: int) -> dict[str, Any]:
    """An item with its title and its band of popularity."""
    items = model.items
    title = None if items.titles is None else items.titles[number]
    return {"item": items.ids[number], "title": title, "popularity": items.bands[number]}


def add_reasons(model: ServedModel, ask: Ask, answer: Answer, body: dict[str, Any]) -> None:
    """Put into a body why: the events of the history that each item is like, and the attention that each event got."""

    def of(number: int) -> dict[str, Any]:
        return {name: value for name, value in named(model, number).items() if name != "popularity"}

    if answer.because is not None:
        for one, events in zip(body["items"], answer.because, strict=True):
            one["because"] = [{**of(event), "similarity": likeness} for event, likeness in events]
    if answer.attention is not None:
        shares = list(zip(*answer.attention, strict=True))
        read = ask.items[len(ask.items) - len(shares) :].tolist()
        body["attention"] = [{**of(item), "shares": list(own)} for item, own in zip(read, shares, strict=True)]
