"""Gain: which share of the clicks lies among the impressions with the highest predictions.

What a ranker is worth where only some places can be filled. Share of clicks among the first n of N impressions by
falling probability; lift is that share over n / N, precision the share of the n that was clicked. Equal probabilities
are in the order of the store.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from fullrank.analysis.diagnostics import Claim, Figure, Runs, Section, lines

PERCENTS = (1, 5, 10, 20, 30, 50, 70, 100)
"""Parts of the impressions that are looked at."""


class Gain(Section):
    """Share of the clicks among the highest predictions, with lift and precision."""

    name = "gain"
    problem = "ranking"
    claim = Claim(
        "Clicks among the highest predictions",
        "Impressions in order of their predicted probability, the highest first: across is how many percent of them "
        "are looked at, upwards the share of all clicks that is among these. The dotted line is chance. The data table "
        "has the lift over chance and the share that was clicked (precision).",
        (lines("percent of impressions", "share of clicks", percent=True, zero=True, slope=0.01),),
    )

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        gains = {
            one.label: gain(one.evaluation.per_impression.probabilities, one.evaluation.per_impression.labels)
            for one in there
        }
        rows = tuple(
            (label, percent, *values.tolist())
            for label, of_run in gains.items() for percent, values in zip(PERCENTS, of_run, strict=True)
        )  # fmt: skip
        return claim.figure(("run", "percent of impressions", "share of clicks", "lift", "precision"), rows)


def gain(probabilities: Float[np.ndarray, "N"], labels: Float[np.ndarray, "N"]) -> Float[np.ndarray, "P 3"]:
    """Share of clicks, lift and precision among the first of each of `PERCENTS`, by falling probability."""
    found = np.cumsum(labels[np.argsort(-probabilities, kind="stable")])
    firsts = np.array([max(1, round(len(labels) * percent / 100)) for percent in PERCENTS])
    clicks = found[firsts - 1]
    share = clicks / max(1.0, float(found[-1]))
    return np.stack([share, share * len(labels) / firsts, clicks / firsts], 1)
