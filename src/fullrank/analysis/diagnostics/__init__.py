"""Diagnostics: the rows that each measures, and the figure and the table that a page shows of them, in one place.

A file of this folder is found by looking: each class that derives from `Section` and has a `name`. Another package
joins by an entry point of the group `fullrank.diagnostics` that names such a class under its own `name`; docs/adding.md
adds one. `fullrank.testing` checks that a diagnostic keeps what `Diagnostic` promises.

A fault of another package's section costs that section alone: an entry point that is of no use is skipped with a
warning, and an error becomes the reason why its rows, figure or table are missing. Errors of ours are raised.
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
)  # fmt: skip
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
"""Among them all that the file of a diagnostic needs."""


class Section:
    """A part of the page about some runs. Each may be left as it is: then the page has none of it."""

    name: ClassVar[str]
    """Of the rows and of the entry point; no two sections of one problem share it."""
    problem: ClassVar[Problem] = "retrieval"
    """Which models it is about."""
    internal: ClassVar[bool] = False
    """Whether its figure shows models from inside: folded on the page, for those who build them."""

    claim: ClassVar[Claim | None] = None
    """Of a figure of all runs, below which stands why some are not in it."""
    claim_of: ClassVar[Claim | None] = None
    """Of a figure of each run alone, which stands in the title as `{}`."""

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        """Why a run is not in the figures; empty where that is no news, None where it is in them."""
        return None

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing | None:
        """The figure of the runs that lack nothing, at least one."""
        return claim.figure(*claim.read(there, cls.name))

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure | Missing | None:
        """The figure of one run alone, which lacks nothing."""
        return cls.draw(claim, [result])

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """All runs in one figure, table or examples; `Missing` says why there is none, None leaves it out silently."""
        if cls.claim is None:
            return None
        claim = replace(cls.claim, name=cls.claim.name or cls.name)
        whys = {one.key: cls.lacks(one) for one in results}
        there = [one for one in results if whys[one.key] is None]
        absent = tuple(f"Run {one.key} ({one.name}) is not shown: {whys[one.key]}." for one in results if whys[one.key])
        if not there:
            return claim.missing(" ".join(absent)) if absent else None
        drawn = cls.draw(claim, there)
        return replace(drawn, absent=absent + drawn.absent) if isinstance(drawn, Figure) else drawn

    @classmethod
    def figure_of(cls, result: RunResult) -> Shown:
        """A figure or a table of one run alone."""
        claim, why = cls.claim_of, cls.lacks(result)
        if claim is None or why == "" or (why and claim.table):
            return None
        name, title = f"{claim.name or cls.name}-{result.key}", claim.title.format(f"run {result.key}")
        claim = replace(claim, name=name, title=title)
        return cls.draw_of(claim, result) if why is None else claim.missing(f"{result.name}: {why}.")


class Diagnostic(Section):
    """Rows about one model. An instance lives for one diagnosis: it observes every batch, then `rows` is called once.

    The model is not changed, no random number is drawn without a generator of its own, and the same model and context
    give the same rows. What does not apply to a model gives the one row that `left_out(why)` makes, never an error; a
    diagnostic of a part that most models lack (a reasoner) may give no row at all. The figures read rows alone, so that
    a page can be drawn of a diagnosis.jsonl of another day; where the rows are absent they give `Missing`.
    """

    silent: ClassVar[bool] = False
    """Whether a run without rows is no news: most models lack the part."""
    runs_model: ClassVar[bool] = False
    """Whether `rows` runs the model again (with targets, so never on the training split) and `observe` is not used."""
    progress: Progress
    """Told by `rows` how much of it is done, where that takes long."""

    def __init__(self, context: Any):
        """`context` is an `activations.RetrievalContext`; of ranking models a `ranking_activations.RankingContext`."""
        self.context, self.progress = context, untold
        self.begin()

    def begin(self) -> None:
        """Set what `observe` adds to."""

    def observe(self, batch: Any) -> None:
        """One batch of the sample: `activations.Activations` or `ranking_activations.RankingActivations`."""

    def rows(self) -> list[Row]:
        """The figures of the whole sample; `row`, `rows_of` and `left_out` make them."""
        return []

    def row(self, name: str, value: float | int | None, **where: Any) -> Row:
        """One figure; `where` is the layer, head, index and label at which it was taken."""
        return row(self.name, name, value, **where)

    def rows_of(self, figures: Mapping[str, Any], **where: Any) -> list[Row]:
        """A row of each figure (name -> number, also one of torch or numpy), all taken at one place."""
        return rows_of(self.name, figures, **where)

    def left_out(self, why: str) -> list[Row]:
        """The row of a model, or of a part of one, that does not have what is measured."""
        return [not_measured(self.name, why)]

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        if result.diagnosis.of(cls.name):
            return None
        return "" if cls.silent else result.diagnosis.left_out().get(cls.name, "it was not measured")


def find_sections(problem: Problem, first: Sequence[str] = ()) -> list[type[Section]]:
    """Every section of a problem, ours and those of installed packages: those named in `first` in that order, then
    the others by name. Raises `UserError` where two of ours have one name; another package's that has the name of one
    found before it is skipped with a warning.
    """
    found: dict[str, type[Section]] = {}
    for point, section in [*((None, own) for own in _own()), *_installed()]:
        if section.problem != problem:
            continue
        if section.name not in found:
            found[section.name] = section
        elif point is not None:
            _skip(point, f"the name is taken by {found[section.name].__module__}")
        else:
            raise UserError(
                f"two diagnostics are called {section.name!r}, in {found[section.name].__module__} and in "
                f"{section.__module__}: rename one",
                code="declared-twice",
            )
    return [found[name] for name in (*(n for n in first if n in found), *sorted(set(found) - set(first)))]


def find_diagnostics(problem: Problem, first: Sequence[str] = ()) -> list[type[Diagnostic]]:
    """The sections that measure something, in the same order."""
    return [one for one in find_sections(problem, first) if issubclass(one, Diagnostic)]


def is_built_in(section: type[Section]) -> bool:
    """Whether a section is of this folder; an error of any other must not end a diagnosis or a page."""
    return section.__module__.startswith(f"{__name__}.")


def failure(section: type[Section], error: Exception) -> str:
    """Why a section of another package is missing: it raised this error, whose traceback is logged at DEBUG."""
    log.debug("the diagnostic %r of %s failed", section.name, section.__module__, exc_info=error)
    return f"it failed: {_told(error)}"


def _own() -> list[type[Section]]:
    """Of the files of this folder, by file and then as they stand in it."""
    files = sorted(file for file in Path(__file__).parent.glob("*.py") if file.stem != "__init__")
    modules = [importlib.import_module(f"{__name__}.{file.stem}") for file in files]
    return [
        value for module in modules for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Section) and value.__module__ == module.__name__
        and isinstance(getattr(value, "name", None), str)
    ]  # fmt: skip


def _installed() -> Iterator[tuple[importlib.metadata.EntryPoint, type[Section]]]:
    """Of other packages, by the entry point's name and then the package's, whatever the order of sys.path."""
    for point in sorted(
        importlib.metadata.entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p), p.value)
    ):
        try:
            section = point.load()
        except Exception as error:  # importing a module can raise anything
            _skip(point, f"it cannot be loaded: {_told(error)}")
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
    """A warning, once in a process: a page looks for its sections several times."""
    log.warning(sentence)


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "(unknown)"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
