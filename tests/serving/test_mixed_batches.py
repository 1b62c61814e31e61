"""Requests of several kinds in one batch: each gets the list that it gets alone."""

from dataclasses import replace

import numpy as np

from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel
from fullrank.serving.ranking import ServedRanker
from fullrank.serving.settings import ServeSettings
from serving.conftest import Shop


class Backwards(ServedRanker):
    """A ranker that turns the candidates around, so that their number decides who is first."""

    def __init__(self) -> None:
        pass

    def order(self, asks, ids: np.ndarray, scores: np.ndarray, blend: float) -> tuple:
        return ids[:, ::-1].copy(), scores[:, ::-1].copy()


def test_a_rankers_candidates_are_those_of_the_request_alone(shop: Shop) -> None:
    settings = ServeSettings.parse({"run": str(shop.run.path), "candidates": 20})
    model = ServedModel.open(shop.run.path, "first", settings, {})
    model.state = replace(model.state, ranker=Backwards())
    history = [(item, None) for item in shop.ids[:4]]
    asks = [
        model.read(RecommendRequest(history=shop.ids[:4], k=k, ranker=ranked), history)
        for k in (5, 20, 60) for ranked in (True, False)
    ]  # fmt: skip
    alone = [model.answer([ask])[0].ids for ask in asks]
    groups = {}
    for place, ask in enumerate(asks):
        groups.setdefault(model.group(ask), []).append(place)
    together = {}
    for places in groups.values():
        told = model.answer([asks[place] for place in places])
        together |= {place: one.ids for place, one in zip(places, told, strict=True)}
    assert [together[place] for place in range(len(asks))] == alone
    assert len(groups) == 3, "unranked lists, candidates of 20, candidates of 60"
