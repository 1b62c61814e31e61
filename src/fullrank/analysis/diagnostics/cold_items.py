"""Items without training events, or with few: whether they are found by those who chose them, and shown at all.

The groups are finer than those of the evaluation's slices (`cold` there is `none` here, the tail is far larger): users
by the training events of what they chose next, of several items the most popular. A model of item vectors knows nothing
of an item without events; one of semantic ids, texts or features may.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from fullrank.analysis.diagnostics import Claim, Figure, RunResult, Runs, Section, TableCell, not_comparable
from fullrank.analysis.diagnostics.recall_bands import recall_name

FEW = 5
"""Items with fewer training events have few."""
GROUPS = ("none", f"1 to {FEW - 1}", f"{FEW} and more")
"""Training events of what was chosen next."""


class ColdItems(Section):
    """Recall by training events of the target, and how far up in lists items without any come."""

    name = "cold_items"

    claim = Claim("Items that training hardly knows", "", open=True)

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return "" if result.store is None or result.evaluation.per_user.lists is None else None

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | None:
        """Nothing where every item has training events, or the runs do not compare."""
        if not_comparable(there) or not any((one.store.catalog.popularity == 0).any() for one in there):
            return None
        groups = {one.key: target_groups(one) for one in there}
        counts = np.bincount(groups[there[0].key], minlength=len(GROUPS))
        rows = []
        for one in there:
            values, group = one.evaluation.per_user.values[recall_name(one)], groups[one.key]
            recall = [_mean(values[group == place]) for place in range(len(GROUPS))]
            rows.append((one.label, *recall, *shown(one)))
        cold = float((there[0].store.catalog.popularity == 0).mean())
        more = (
            f"{recall_name(there[0])} of people by how often what they chose next was used in training, and where "
            "items that were never used come in the lists of all people: the share of all places that they have "
            f"({cold:.1%} of the items are such), the share of people with at least one of them in their list, and the "
            "best place that one has in anybody's list."
        )
        people = (TableCell(name, f"{count:,} people") for name, count in zip(GROUPS, counts, strict=True))
        headers = ("run", *people, "share of places", "people who are shown one", "best place")
        return claim.figure(headers, rows, more=more)


def target_groups(one: RunResult) -> Int[np.ndarray, "U"]:
    """Each evaluated user's place in `GROUPS`."""
    whole = one.store.eval_set(one.evaluation.protocol["split"], without_history=True)
    order = np.argsort(whole.users, kind="stable")
    users = whole.take(order[np.searchsorted(whole.users[order], one.evaluation.per_user.users)])
    events = np.maximum.reduceat(one.store.catalog.popularity[users.truth.flat()], users.truth.offsets[:-1])
    return np.searchsorted((1, FEW), events, side="right").astype(np.int64)


def shown(one: RunResult) -> tuple[float, float, int | None]:
    """Of items without training events: their share of places, the share of users with one, the best place of all."""
    lists = one.evaluation.per_user.lists
    assert lists is not None
    cold = (one.store.catalog.popularity == 0)[lists.clip(0)] & (lists >= 0)
    places = np.flatnonzero(cold.any(0))
    share = float(cold.sum() / max(1, (lists >= 0).sum()))
    return share, float(cold.any(1).mean()), int(places[0]) + 1 if len(places) else None


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
