"""Gain: which share of the clicks lies among the impressions with the highest predictions.

What a ranker is worth where only some places can be filled. Share of clicks among the first n of N impressions by
falling probability; lift is that share over n / N, precision the share of the n that was clicked. Equal probabilities
are in the order of the store.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float

from fullrank.analysis.diagnostics import Section
from fullrank.analysis.report import Figure, Shown
from fullrank.analysis.report.draw import diagonal, legend
from fullrank.analysis.report.lines import line_panel
from fullrank.analysis.report.results import Runs

PERCENTS = (1, 5, 10, 20, 30, 50, 70, 100)
"""Parts of the impressions that are looked at."""
TOLD = 10
"""The part that the picture's description tells."""


class Gain(Section):
    """Share of the clicks among the highest predictions, with lift and precision."""

    name = "gain"
    problem = "ranking"

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        gains = {}
        for one in results:
            rows = one.evaluation.per_impression
            gains[one.key] = gain(rows.probabilities, rows.labels)
        lines = {key: {0: 0.0} | dict(zip(PERCENTS, 100 * of[:, 0], strict=True)) for key, of in gains.items()}

        caption = (
            "Impressions in order of their predicted probability, the highest first: across is how many of them are "
            "looked at, upwards the share of all clicks that is among these. The dotted line is chance. The data table "
            "has the lift over chance and the share that was clicked (precision)."
        )
        told = PERCENTS.index(TOLD)
        alt = f"Share of clicks among the highest {TOLD} % of predictions: " + "; ".join(
            f"{one.key} {gains[one.key][told, 0]:.3f}" for one in results
        )
        table = tuple(
            (one.label, percent, *(float(v) for v in gains[one.key][place]))
            for one in results for place, percent in enumerate(PERCENTS)
        )  # fmt: skip
        drawn = line_panel(
            cls.name, results, lines, alt, x="impressions, by falling prediction (%)", y="share of clicks (%)",
            first=diagonal(100), finish=(partial(legend, place="lower right"),),
        )  # fmt: skip
        headers = ("run", "percent of impressions", "share of clicks", "lift", "precision")
        return Figure(cls.name, "Clicks among the highest predictions", caption, (drawn,), headers, table)


def gain(probabilities: Float[np.ndarray, "N"], labels: Float[np.ndarray, "N"]) -> Float[np.ndarray, "P 3"]:
    """Share of clicks, lift and precision among the first of each of `PERCENTS`, by falling probability."""
    found = np.cumsum(labels[np.argsort(-probabilities, kind="stable")])
    firsts = np.array([max(1, round(len(labels) * percent / 100)) for percent in PERCENTS])
    clicks = found[firsts - 1]
    share = clicks / max(1.0, float(found[-1]))
    return np.stack([share, share * len(labels) / firsts, clicks / firsts], 1)
