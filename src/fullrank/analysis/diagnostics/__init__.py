"""Diagnostics: the rows that each measures, and the figure and the table that a page shows of them, in one place.

The files of this folder are found by looking: each class that derives from `Section` and has a
`name` is a diagnostic or a figure. Another package joins by an entry point of the group
`fullrank.diagnostics` that names such a class under its own `name` (docs/adding.md adds one).
`fullrank.testing` checks that a diagnostic keeps the promises of `Diagnostic`.

A fault of another package's section costs that section alone: an entry point that cannot be used is
skipped with a warning, and an error becomes the reason why its rows, figure or table are missing.
Errors of built-in sections are raised.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fullrank.analysis.activations import (
    FAIRNESS,
    Activations,
    RetrievalContext,
    Sample,
    SampleStore,
    activations,
)
from fullrank.analysis.diagnosis import Diagnosis, Row, not_measured, row, rows_of
from fullrank.analysis.report import Cells, Figure, Missing, Shown, TableCell
from fullrank.analysis.report.charts import Chart, Claim, bars, lines
from fullrank.analysis.report.results import RunResult, Runs, accuracy_word, not_comparable, readable
from fullrank.core.errors import UserError
from fullrank.core.log import Progress, logger, untold
from fullrank.core.registry import Problem

log = logger(__name__)

GROUP = "fullrank.diagnostics"
__all__ = [
    "Activations", "Cells", "Chart", "Claim", "Diagnosis", "Diagnostic", "FAIRNESS", "Figure", "Missing",
    "RetrievalContext", "Row", "RunResult", "Runs", "Sample", "SampleStore", "Section", "Shown", "TableCell",
    "accuracy_word", "activations", "bars", "find_diagnostics", "find_sections", "lines",
    "not_comparable", "not_measured", "readable", "row", "rows_of",
]  # fmt: skip
"""Everything that the file of a diagnostic needs, among others."""


class Section:
    """A part of the page about some runs; a section without a claim is not on the page."""

    name: ClassVar[str]
    """Name of the rows and of the entry point, unique among the sections of one problem."""
    problem: ClassVar[Problem] = "retrieval"
    """The kind of model that the section is about."""
    internal: ClassVar[bool] = False
    """Whether its figure shows models from inside: folded on the page, for those who build them."""

    claim: ClassVar[Claim | None] = None
    """Claim of a figure of all runs; below the figure stands why some are not in it."""
    claim_of: ClassVar[Claim | None] = None
    """Claim of a figure of each run alone; the run stands in the title as `{}`."""

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        """Why a run is not in the figures; None where it is, empty to leave it out silently."""
        return None

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing | None:
        """Draw the figure of the runs that lack nothing, at least one."""
        return claim.figure(*claim.read(there, cls.name))

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure | Missing | None:
        """Draw the figure of a single run, which lacks nothing."""
        return cls.draw(claim, [result])

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """The figure of all runs; `Missing` says why there is none, None leaves it out silently."""
        if cls.claim is None:
            return None
        claim = replace(cls.claim, name=cls.claim.name or cls.name)
        whys = {run.key: cls.lacks(run) for run in results}
        there = [run for run in results if whys[run.key] is None]
        absent = tuple(f"Run {run.key} ({run.name}) is not shown: {whys[run.key]}." for run in results if whys[run.key])
        if not there:
            return claim.missing(" ".join(absent)) if absent else None
        drawn = cls.draw(claim, there)
        return replace(drawn, absent=absent + drawn.absent) if isinstance(drawn, Figure) else drawn

    @classmethod
    def figure_of(cls, result: RunResult) -> Shown:
        """The figure or table of a single run."""
        claim, why = cls.claim_of, cls.lacks(result)
        if claim is None or why == "" or (why and claim.table):
            return None
        name, title = f"{claim.name or cls.name}-{result.key}", claim.title.format(f"run {result.key}")
        claim = replace(claim, name=name, title=title)
        return cls.draw_of(claim, result) if why is None else claim.missing(f"{result.name}: {why}.")


class Diagnostic(Section):
    """Rows about one model. An instance lives for one diagnosis: it observes every batch, then `rows` is called once.

    The model is not changed, no random number is drawn without a generator of its own, and the same
    model and context give the same rows. A diagnostic that does not apply to a model gives the one
    row that `left_out(why)` makes, never an error; a diagnostic of a part that most models lack (a
    reasoner) may give no row at all. The figures read rows alone, so that a page can be drawn of a
    diagnosis.jsonl of another day; where the rows are absent they give `Missing`.
    """

    silent: ClassVar[bool] = False
    """Whether the page says nothing of a run without rows: most models lack the part."""
    runs_model: ClassVar[bool] = False
    """Whether `rows` runs the model again (with targets: never on the training split), and `observe` is not used."""
    progress: Progress
    """Called by `rows` with (done, in all), where that takes long."""

    def __init__(self, context: Any):
        """`context` is an `activations.RetrievalContext`; of ranking models an
        `activations.RankingContext`."""
        self.context, self.progress = context, untold
        self.begin()

    def begin(self) -> None:
        """Set the state that `observe` adds to."""

    def observe(self, batch: Any) -> None:
        """Add a batch of the sample: `Activations` or, of a ranking model, `RankingActivations`."""

    def rows(self) -> list[Row]:
        """The figures of the whole sample, made by `row`, `rows_of` and `left_out`."""
        return []

    def row(self, name: str, value: Any, **where: Any) -> Row:
        """A figure: a number, measured at the layer, head, index and label of `where`."""
        return row(self.name, name, value, **where)

    def rows_of(self, figures: Mapping[str, Any], **where: Any) -> list[Row]:
        """A row for each figure (name -> number), all measured at one place."""
        return rows_of(self.name, figures, **where)

    def left_out(self, why: str) -> list[Row]:
        """The row of a model that lacks what is measured, or a part of it."""
        return [not_measured(self.name, why)]

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        if result.diagnosis.of(cls.name):
            return None
        return "" if cls.silent else result.diagnosis.left_out().get(cls.name, "it was not measured")


def find_sections(problem: Problem, first: Sequence[str] = ()) -> list[type[Section]]:
    """Every section of a problem, built in or installed: those named in `first` in that order, then the others by name.

    Raises `UserError` where two built-in sections have one name. A section of another package whose
    name is taken is skipped with a warning.
    """
    sections: dict[str, type[Section]] = {}
    for point, section in [*((None, section) for section in _built_in()), *_installed()]:
        if section.problem != problem:
            continue
        taken = sections.get(section.name)
        if taken is None:
            sections[section.name] = section
        elif point is not None:
            _skip(point, f"the name is taken by {taken.__module__}")
        else:
            raise UserError(
                f"two diagnostics are called {section.name!r}, in {taken.__module__} and in "
                f"{section.__module__}: rename one",
                code="declared-twice",
            )
    return [sections[name] for name in (*(n for n in first if n in sections), *sorted(set(sections) - set(first)))]


def find_diagnostics(problem: Problem, first: Sequence[str] = ()) -> list[type[Diagnostic]]:
    """The sections that measure something, in the same order."""
    return [section for section in find_sections(problem, first) if issubclass(section, Diagnostic)]


def is_built_in(section: type[Section]) -> bool:
    """Whether a section is of this folder; an error of any other must not end a page."""
    return section.__module__.startswith(f"{__name__}.")


def failure(section: type[Section], error: Exception) -> str:
    """Why another package's section is missing: the error, with its traceback at DEBUG."""
    log.debug("the diagnostic %r of %s failed", section.name, section.__module__, exc_info=error)
    return f"it failed: {_error_text(error)}"


def _built_in() -> list[type[Section]]:
    """The sections in the files of this folder, by file and then by their order in it."""
    files = sorted(file for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")
    modules = [importlib.import_module(f"{__name__}.{file.stem}") for file in files]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Section)
        and value.__module__ == module.__name__
        and isinstance(getattr(value, "name", None), str)
    ]


def _installed() -> Iterator[tuple[importlib.metadata.EntryPoint, type[Section]]]:
    """The sections of other packages, by the names of entry point and package."""
    for point in sorted(
        importlib.metadata.entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p), p.value)
    ):
        try:
            section = point.load()
        except Exception as error:  # importing a module can raise anything
            _skip(point, f"it cannot be loaded: {_error_text(error)}")
            continue
        if not (isinstance(section, type) and issubclass(section, Section)):
            _skip(point, f"{point.value} is no class that derives from fullrank.analysis.diagnostics.Diagnostic")
        elif getattr(section, "name", None) != point.name:
            _skip(point, f"the diagnostic is called {getattr(section, 'name', None)!r}: give both the same name")
        else:
            yield point, section


def _skip(point: importlib.metadata.EntryPoint, why: str) -> None:
    _warn_once(f"the entry point {point.name!r} of {GROUP}, in the package {_distribution(point)}, is skipped: {why}")


@functools.cache
def _warn_once(sentence: str) -> None:
    """Warn once in a process: a page looks for its sections several times."""
    log.warning(sentence)


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "(unknown)"


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
