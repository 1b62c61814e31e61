"""The figures of a report, in the order of the page. Each is a function: findings in, a `Figure` or a `Missing` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fullrank.reports import Figure, Missing
from fullrank.reports.figures.compare import bands, depth, pareto
from fullrank.reports.figures.curves import curves
from fullrank.reports.figures.inside import bound, layers, spectrum
from fullrank.reports.figures.single import ablation, attention
from fullrank.reports.findings import Finding

JOINT: tuple[Callable[[Sequence[Finding]], Figure | Missing], ...] = (
    pareto, bands, depth, spectrum, layers, bound, curves,
)  # fmt: skip
"""All runs in one figure."""
SINGLE: tuple[Callable[[Finding], Figure | Missing], ...] = (attention, ablation)
"""One figure a run."""
