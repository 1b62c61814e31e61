"""The sections of a page, each called with the results: figures of all runs, then figures and tables of each run."""

from __future__ import annotations

from collections.abc import Sequence

from fullrank.analysis.diagnostics import find_sections
from fullrank.analysis.report import Figure, Missing, plural
from fullrank.analysis.report.page import RunBlock
from fullrank.analysis.report.results import RunResult
from fullrank.problem import Problem


def joint_figures(problem: Problem, order: Sequence[str], results: Sequence[RunResult]) -> tuple[Figure | Missing, ...]:
    """The figures of all runs together."""
    drawn = [section.figure(results) for section in find_sections(problem, order)]
    return tuple(figure for figure in drawn if figure is not None)


def blocks_of_runs(problem: Problem, order: Sequence[str], results: Sequence[RunResult]) -> tuple[RunBlock, ...]:
    """What each run has alone."""
    sections = find_sections(problem, order)
    blocks = []
    for one in results:
        figures = tuple(figure for section in sections if (figure := section.figure_of(one)) is not None)
        tables = tuple(table for section in sections if (table := section.table_of(one)) is not None)
        blocks.append(RunBlock(one.key, one.name, _note(one), figures, tables))
    return tuple(blocks)


def metric_cell(one: RunResult, name: str) -> str | None:
    """A metric with its interval, `0.1234 (0.1200–0.1270)`."""
    value, pair = one.metric(name), one.interval(name)
    if value is None:
        return None
    return f"{value:.4f}" if pair is None else f"{value:.4f} ({pair[0]:.4f}–{pair[1]:.4f})"


def _note(one: RunResult) -> str:
    epochs = plural(len(one.epochs), "epoch") if one.epochs else "fitted at once"
    return f"{one.run.spec.recipe}, seed {one.run.spec.seed}, {epochs}, {one.run.manifest['parameters']:,} parameters."
