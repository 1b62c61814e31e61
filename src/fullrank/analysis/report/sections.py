"""The sections of a page, each called with the results: figures of all runs, then figures and tables of each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fullrank.analysis.diagnostics import Section, failure, find_sections, is_built_in
from fullrank.analysis.report import Figure, Missing, RunTable, plural
from fullrank.analysis.report.page import RunBlock
from fullrank.analysis.report.results import RunResult
from fullrank.core.errors import brief
from fullrank.problem import Problem

Drawn = TypeVar("Drawn", Figure, RunTable)


def joint_figures(problem: Problem, order: Sequence[str], results: Sequence[RunResult]) -> tuple[Figure | Missing, ...]:
    """The figures of all runs together."""
    drawn = [
        _drawn(section, section.name, Figure, section.figure, results) for section in find_sections(problem, order)
    ]
    return tuple(figure for figure in drawn if figure is not None)


def blocks_of_runs(problem: Problem, order: Sequence[str], results: Sequence[RunResult]) -> tuple[RunBlock, ...]:
    """What each run has alone. A table that fails leaves its reason among the figures."""
    sections = find_sections(problem, order)
    blocks = []
    for one in results:
        drawn = [_drawn(section, f"{section.name}-{one.key}", Figure, section.figure_of, one) for section in sections]
        tables = [
            _drawn(section, f"{section.name}-table-{one.key}", RunTable, section.table_of, one) for section in sections
        ]
        figures = (*drawn, *(table for table in tables if isinstance(table, Missing)))
        blocks.append(
            RunBlock(
                one.key, one.name, _note(one),
                tuple(figure for figure in figures if figure is not None),
                tuple(table for table in tables if isinstance(table, RunTable)),
            )
        )  # fmt: skip
    return tuple(blocks)


def metric_cell(one: RunResult, name: str) -> str | None:
    """A metric with its interval, `0.1234 (0.1200–0.1270)`."""
    value, pair = one.metric(name), one.interval(name)
    if value is None:
        return None
    return f"{value:.4f}" if pair is None else f"{value:.4f} ({pair[0]:.4f}–{pair[1]:.4f})"


def _drawn(
    section: type[Section], name: str, kind: type[Drawn], draw: Callable[[Any], Drawn | Missing | None], given: Any
) -> Drawn | Missing | None:
    """A figure or a table. An error of ours is raised; one of another package's is the reason why it is missing."""
    try:
        found = draw(given)
        if not isinstance(found, (kind, Missing, type(None))):
            raise TypeError(f"{brief(found)} is no {kind.__name__}")
    except Exception as error:
        if is_built_in(section):
            raise
        return Missing(name, section.name, failure(section, error))
    return found


def _note(one: RunResult) -> str:
    epochs = plural(len(one.epochs), "epoch") if one.epochs else "fitted at once"
    return f"{one.run.spec.recipe}, seed {one.run.spec.seed}, {epochs}, {one.run.manifest['parameters']:,} parameters."
