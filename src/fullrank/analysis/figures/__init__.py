"""The figures of a report, in the order of the page. Each is a function: findings in, a `Figure` or a `Missing` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fullrank.analysis.figures.compare import bands, depth, pareto
from fullrank.analysis.figures.curves import curves
from fullrank.analysis.figures.focus import case, focus
from fullrank.analysis.figures.inside import bound, layers, spectrum
from fullrank.analysis.figures.robustness import robustness
from fullrank.analysis.figures.single import ablation, attention
from fullrank.analysis.figures.size import size
from fullrank.analysis.figures.streams import looks, streams
from fullrank.analysis.figures.thinking import diversity, oracle_step, reasons, step_curve
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.findings import Finding

JOINT: tuple[Callable[[Sequence[Finding]], Figure | Missing], ...] = (
    pareto, bands, depth, size, spectrum, layers, bound, focus, case, robustness, curves,
)  # fmt: skip
"""All runs in one figure."""
SINGLE: tuple[Callable[[Finding], Figure | Missing], ...] = (attention, ablation)
"""One figure a run."""

THINKING: tuple[Callable[[Sequence[Finding]], Figure | Missing], ...] = (step_curve, oracle_step, diversity)
"""Runs that reason, in one figure; without any such run there is no word of them."""
THINKING_SINGLE: tuple[Callable[[Finding], Figure | Missing], ...] = (streams, looks)
"""One figure a run that reasons."""


def joint(findings: Sequence[Finding]) -> list[Figure | Missing]:
    """The figures of all runs together."""
    every = (*JOINT, *THINKING) if any(reasons(one) for one in findings) else JOINT
    return [draw(findings) for draw in every]


def single(one: Finding) -> list[Figure | Missing]:
    """The figures of one run."""
    return [draw(one) for draw in ((*SINGLE, *THINKING_SINGLE) if reasons(one) else SINGLE)]
