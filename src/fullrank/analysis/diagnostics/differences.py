"""Paired differences from the best baseline: the same users or impressions, an interval and a p value for each metric.

What two intervals of the table of runs cannot say: they overlap although one run is better for nearly every user. The
numbers are those of `evaluation.compare` at its defaults (`fullrank evaluate A B` prints the same ones).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from fullrank.analysis.diagnostics import Claim, Figure, Missing, Runs, Section, TableCell, not_comparable
from fullrank.analysis.report.paired import is_baseline, p_words
from fullrank.analysis.report.results import metric_cell, metric_header
from fullrank.evaluation import Comparison


class RetrievalDifferences(Section):
    """Accuracy, long-tail share and coverage of each run less those of the best baseline, user by user."""

    name = "differences"
    claim = Claim("Paired differences", "", open=True)

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        """The reference with its values, then each run's differences from it."""
        rows_are = "users" if cls.problem == "retrieval" else "impressions"
        if len(there) < 2:
            return claim.missing("it compares runs, and the report has one.")
        base = next((one for one in there if one.key == one.reference), None)
        others = [one for one in there if one.against]
        if base is None or not others:
            why = not_comparable(there) or f"the runs were evaluated on different {rows_are}"
            return claim.missing(f"{why}.")
        metrics = list(others[0].against)
        pairs = [(metric_header(metric), TableCell("p", metric)) for metric in metrics]
        first = [(metric_cell(base, metric), None) for metric in metrics]
        rows: list[tuple[Any, ...]] = [(TableCell(base.label, "the reference"), *chain(*first))]
        for one in others:
            ps = (p_words(one.against[metric].p).removeprefix("p ").removeprefix("= ") for metric in metrics)
            cells = zip((difference_cell(one.against[metric]) for metric in metrics), ps, strict=True)
            rows.append((one.label, *chain(*cells)))
        what = "the most accurate baseline" if is_baseline(base) else "the first run, since no baseline is among them"
        found = others[0].against[metrics[0]]
        level = base.evaluation.protocol["bootstrap"]["level"]
        more = (
            f"Each run less {base.key} ({base.name}), {what}, on the same {found.users:,} {rows_are}; below it the "
            f"{level:.0%} interval of the difference. p is two-sided, the chance of a "
            f"difference at least as large if the two were alike ({found.test}); with several runs, some small p comes "
            "by chance."
        )
        claim = replace(claim, title=f"{claim.title} from {base.key} ({base.name})")
        return claim.figure(("run", *chain(*pairs)), rows, more=more)


class RankingDifferences(RetrievalDifferences):
    """AUC and logloss of each run less those of the baseline, on the same impressions."""

    problem = "ranking"


def difference_cell(found: Comparison) -> TableCell:
    """`+0.0242`, below it its interval and, of metrics of lists, its share of the reference's value."""
    low, high = found.interval
    relative = found.difference / abs(found.a) if found.a and "@" in found.metric else None  # an AUC has no true zero
    share = "" if relative is None or abs(relative) >= 10 else f", {relative:+.0%}"
    return TableCell(f"{found.difference:+.4f}", f"{low:+.4f} to {high:+.4f}{share}")
