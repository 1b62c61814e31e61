"""The sections of a page, each called with the results: what all runs share, then figures and tables of each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fullrank.analysis.diagnostics import Section, failure, find_sections, is_built_in
from fullrank.analysis.report import Drawn, Missing, RunTable, plural
from fullrank.analysis.report.page import RunBlock
from fullrank.analysis.report.results import RunResult
from fullrank.core.errors import brief
from fullrank.problem import Problem


def joint_figures(
    problem: Problem, order: Sequence[str], results: Sequence[RunResult], *, internal: bool | None = None
) -> tuple[Drawn | Missing, ...]:
    """What all runs are in together; `internal` keeps the sections that show models from inside, or the others."""
    drawn = [
        _drawn(section, section.name, section.figure, results)
        for section in find_sections(problem, order) if internal in (None, section.internal)
    ]  # fmt: skip
    return tuple(figure for figure in drawn if figure is not None)


def blocks_of_runs(problem: Problem, order: Sequence[str], results: Sequence[RunResult]) -> tuple[RunBlock, ...]:
    """What each run has alone. A table that fails leaves its reason among the figures."""
    sections = find_sections(problem, order)
    blocks = []
    for one in results:
        drawn = [_drawn(section, f"{section.name}-{one.key}", section.figure_of, one) for section in sections]
        tables = [_table(section, f"{section.name}-table-{one.key}", one) for section in sections]
        figures = (*drawn, *(table for table in tables if isinstance(table, Missing)))
        blocks.append(
            RunBlock(
                one.key, one.name, _note(one),
                tuple(figure for figure in figures if figure is not None),
                tuple(table for table in tables if isinstance(table, RunTable)),
            )
        )  # fmt: skip
    return tuple(blocks)


def _drawn(
    section: type[Section], name: str, draw: Callable[[Any], Drawn | Missing | None], given: Any
) -> Drawn | Missing | None:
    """A figure, a table or examples. An error of ours is raised; one of another package's is why it is missing."""
    return _tried(section, name, Drawn, "Figure", draw, given)


def _table(section: type[Section], name: str, one: RunResult) -> RunTable | Missing | None:
    return _tried(section, name, RunTable, "RunTable", section.table_of, one)


def _tried(section: type[Section], name: str, kind: Any, word: str, draw: Callable[[Any], Any], given: Any) -> Any:
    try:
        found = draw(given)
        if not isinstance(found, (kind, Missing, type(None))):
            raise TypeError(f"{brief(found)} is no {word}")
    except Exception as error:
        if is_built_in(section):
            raise
        return Missing(name, section.name, failure(section, error))
    return found


def _note(one: RunResult) -> str:
    epochs = plural(len(one.epochs), "epoch") if one.epochs else "not trained in epochs"
    return f"{one.run.spec.recipe}, seed {one.run.spec.seed}, {epochs}, {one.run.manifest['parameters']:,} parameters."
