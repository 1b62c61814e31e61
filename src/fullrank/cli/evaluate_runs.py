"""Evaluation of one run or two by `fullrank evaluate`.

The options that it shares with `evaluate-lists`, `evaluate-log` and `study` stand here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.early_checks import check_runs, check_settings
from fullrank.cli.options import (
    Device,
    MovedStore,
    Overwrite,
    Settings,
    Split,
    argument,
    check_out,
    check_unset,
    flag,
    names_of,
    option,
    shortcuts,
)
from fullrank.cli.output import Output
from fullrank.cli.print_evaluation import print_pair, print_single
from fullrank.core.errors import UserError
from fullrank.core.registry import Problem

if TYPE_CHECKING:
    from fullrank.evaluation import Comparison, EvaluationResult
    from fullrank.run import Run


SAVED = ("evaluation.json", "per_user.parquet", "per_row.parquet")
"""Files that `EvaluationResult.save` may write."""

OtherRun = Annotated[
    Path | None,
    argument("RUN2", "A second run: print the paired difference RUN2 - RUN.", callback=check_runs),
]
EveryMetric = Annotated[bool, flag("--all", "Print every metric; without it the main five (--json has all).")]


@dataclass(frozen=True, kw_only=True)
class Measuring(Output):
    """Options of the verbs that measure runs."""

    split: Split = "test"
    data: MovedStore = None
    metrics: Annotated[
        list[str] | None, option("NAME", "Compute this alone (ndcg, fair0.8, recall@50); may be repeated.", "--metric")
    ] = None
    out: Annotated[Path | None, option("FOLDER", "Save what is measured there, such as evaluation.json.")] = None
    device: Device = "auto"
    overwrite: Overwrite = False
    settings: Settings = None


@dataclass(frozen=True)
class Call:
    """A call of a verb that measures runs: its options, the runs, and how they are measured."""

    output: Measuring
    """The verb's options, and how it prints."""
    runs: list[Run]
    changes: list[str]
    """Settings of the evaluations."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """Arguments of `api.evaluate`: `events`, `before` and the names of their columns; `engine`, `parts` and so on."""
    whole: bool = False
    """Whether every metric is printed, not the main ones alone."""

    @classmethod
    def of(cls, output: Measuring, typed: Mapping[str, object], *paths: Path | None) -> Call:
        """The call with its runs open; `typed` are settings that have options of their own."""
        changes = shortcuts(typed, output.settings)
        return cls(output, open_runs(paths, output.metrics, output.settings), changes)

    @property
    def metrics(self) -> list[str]:
        """The names that --metric gave."""
        return self.output.metrics or []

    @property
    def subfolders(self) -> tuple[str, ...]:
        """Folders below --out, in which the evaluation of each run is saved."""
        return ("a", "b") if len(self.runs) > 1 else ("",)


def _evaluate_retrieval(call: Call) -> None:
    """Measure and print recommenders: of two, the difference of the metrics
    at 10 where none are named."""
    changes = metric_settings(call)
    if len(call.runs) == 2:  # before minutes are spent on evaluations that could not be compared
        from fullrank.evaluation.compare import check_comparable

        check_comparable(*(run.spec.lists.override(*changes) for run in call.runs))
    evaluations, run = measure_runs(call, changes), call.runs[0]
    if len(evaluations) == 1:
        print_single(
            call.output,
            {"run": run.path, "recipe": run.spec.recipe},
            evaluations[0],
            whole=call.whole or "metrics" in names_of(changes),
            selection=run.spec.lists.selection,
        )
        return
    paired = split_paired(call.metrics)[1]
    first, second = evaluations
    rows = compare_results(first, second, paired, all_of_them=call.whole or names_metrics(changes))
    print_pair(call.output, _paths(call), evaluations, rows, stand_in=bool(paired))


def _evaluate_ranking(call: Call) -> None:
    """Measure and print ranking models: of two, the difference of the
    metrics that have intervals."""
    from fullrank.evaluation import compare
    from fullrank.evaluation.statistics import RESAMPLED

    changes = metric_settings(call)
    specs = [run.spec.evaluation.override(*changes) for run in call.runs]  # a misspelt metric is told at once
    if len(specs) == 2 and (single := [name for name in specs[0].metrics or () if name not in RESAMPLED]):
        raise UserError(
            f"{single[0]} has no paired difference: compare two runs by {', '.join(RESAMPLED)}, or look at one run",
            code="metric-of-one-run",
        )
    evaluations = measure_runs(call, changes)
    if len(evaluations) == 1:
        print_single(call.output, {"run": call.runs[0].path}, evaluations[0])
        return
    first, second = evaluations
    rows = [compare(first, second, name) for name in first.metrics if name in RESAMPLED]
    print_pair(call.output, _paths(call), evaluations, rows)


EVALUATE: Mapping[Problem, Callable[[Call], None]] = {"retrieval": _evaluate_retrieval, "ranking": _evaluate_ranking}


def _paths(call: Call) -> list[str]:
    return [str(run.path) for run in call.runs]


def check_saved(call: Call, folders: Sequence[str] = ("",)) -> None:
    """Raise `UserError` before minutes are spent, where --out or one of its `folders` holds an evaluation already."""
    names = [Path(folder, below, name) for folder in folders for below in call.subfolders for name in SAVED]
    check_out(call.output.out, call.output.overwrite, *map(str, names))


def open_runs(paths: Sequence[Path | None], metrics: Sequence[str] | None, settings: Sequence[str] | None) -> list[Run]:
    """Open the runs of a call.

    Raises `UserError` for metrics and settings that they do not have, and for runs of two kinds:
    before minutes are spent on evaluations that could not be compared.
    """
    from fullrank.metrics.names import PAIRED, parse_metric

    if metrics:
        check_unset(settings, ("metrics",), "--metric")
    for name in metrics or ():
        if "@" in name and not name.startswith(PAIRED):
            parse_metric(name)
    named = [path for path in paths if path is not None]
    for path in named:
        check_settings(path, settings or (), evaluation=True)
    from fullrank.run import Run, require_problem

    runs = [Run.open(path) for path in named]
    for run in runs:
        remedy = f"compare two of the same kind as {runs[0].path}"
        require_problem(run, runs[0].spec.problem, remedy, code="two-problems")
    return runs


def measure_runs(call: Call, changes: list[str], what: str = "", *, out: Path | None = None) -> list[EvaluationResult]:
    """The result of each run, saved below `out`, by default that of the call, where one is named."""
    from fullrank import api

    options, evaluations = call.output, []
    for run in call.runs:
        with options.progress(f"evaluate {run.path}{what}") as tick:
            measuring: Any = {"data": options.data, "device": options.device, "progress": tick, **call.keywords}
            evaluations.append(api.evaluate(run, options.split, set=changes, **measuring))
    out = out or options.out
    if out is not None:
        for evaluation, below in zip(evaluations, call.subfolders, strict=True):
            evaluation.save(out / below, overwrite=options.overwrite)
    return evaluations


def metric_settings(call: Call, evaluated: list[str] | None = None) -> list[str]:
    """The settings of the evaluations, with the metrics that --metric needs of each run (or `evaluated`)."""
    if evaluated is None:
        evaluated = call.metrics if len(call.runs) == 1 else split_paired(call.metrics)[0]
    return [*call.changes, f"metrics=[{', '.join(evaluated)}]"] if call.metrics else call.changes


def names_metrics(changes: Sequence[str]) -> bool:
    """Whether settings say which metrics are measured, or at which list lengths."""
    return any(change.startswith(("metrics", "ks")) for change in changes)


def compare_results(
    first: EvaluationResult, second: EvaluationResult, paired: list[str], *, all_of_them: bool
) -> list[Comparison]:
    """The paired differences second - first: of the metrics at 10 and fair0.8@1, or of all, and of `paired`.

    Where no metric was named, bqs_like@10 is among them: the JSON of a comparison has it, the table
    has not. Raises `UserError` where the protocols differ.
    """
    from fullrank.evaluation import compare
    from fullrank.metrics.names import PAIRED

    shared = [name for name in first.metrics if name in second.metrics]
    main = [name for name in shared if name.endswith("@10") or name == "fair0.8@1"]
    if not all_of_them and "ndcg@10" in main and first.slices:
        paired = [f"{PAIRED}@10"]
    level = first.protocol["bootstrap"]["level"]
    return [
        compare(first, second, name, level=level) for name in [*(shared if all_of_them else main or shared), *paired]
    ]


def split_paired(metrics: list[str]) -> tuple[list[str], list[str]]:
    """The metrics that each of two runs is evaluated by, and those of the pair alone, which are made of nDCG."""
    from fullrank.evaluation.compare import bqs_like_quality

    paired = [name for name in metrics if bqs_like_quality(name) is not None]
    evaluated = [str(bqs_like_quality(name) or name) for name in metrics]
    return list(dict.fromkeys(evaluated)), paired
