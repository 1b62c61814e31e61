"""`fullrank evaluate`: the metrics of a run, or two runs on the same users or impressions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import (
    Adaptive,
    AsJson,
    Device,
    Patience,
    RunFolder,
    Settings,
    Steps,
    Streams,
    chosen,
    find_store,
    shortcuts,
)
from fullrank.cli.output import Output
from fullrank.cli.show_evaluation import pair, single
from fullrank.core.errors import UserError
from fullrank.problem import Problem

if TYPE_CHECKING:
    from fullrank.evaluation import Comparison, EvaluationResult
    from fullrank.run import Run


def add(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    run: RunFolder,
    other: Annotated[
        Path | None, typer.Argument(metavar="RUN2", help="A second run: print the paired difference RUN2 - RUN.")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", metavar="validation|test", help="Whose targets are predicted.")
    ] = "test",
    data: Annotated[
        Path | None, typer.Option("--data", metavar="STORE", help="The store, where it was moved since the training.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", metavar="NAME", help="Compute this alone (ndcg, fair0.8, recall@50); may be repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Save evaluation.json and per_user.parquet there.")
    ] = None,
    device: Device = "auto",
    steps: Steps = None,
    streams: Streams = None,
    adaptive: Adaptive = None,
    patience: Patience = None,
    drop: Annotated[
        str | None,
        typer.Option(
            "--drop", metavar="SHARE,...", help="Also hide these shares of each history, such as 0.1,0.2,0.3."
        ),
    ] = None,
    oracle: Annotated[
        bool,
        typer.Option("--oracle-step", help="The ceiling: every user at their best reasoning step (reads the truth)."),
    ] = False,
    curve: Annotated[
        bool, typer.Option("--step-curve", help="Accuracy and seconds per 1,000 users after 0, 1, ... reasoning steps.")
    ] = False,
    whole_dial: Annotated[
        bool, typer.Option("--dial", help="The step curve in 1, 2, ... streams: the whole dial of a reasoner.")
    ] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run, or compare two on the same users.

    Metrics: ndcg recall hit mrr map fair0.8 gini arp lift coverage novelty, at k = 1, 5, 10 and 20. --set changes how
    they are computed; what it changes is named in the protocol. Of two runs it prints the difference on the same users,
    its interval and p (at k = 10, or those of --metric); runs that were measured differently are refused. --metric
    bqs_like@10 weighs the difference alike for head, mid and tail targets (a stand-in for the Balanced Quality Score).

    A run that reasons can think less or longer than it was trained to (--reasoning-steps, --reasoning-streams), or
    until each user's list has settled (--adaptive).

    A click model has auc, logloss, auc-logloss, ece, pcoc and, with a group column, gauc, all of them always; --metric
    chooses which of auc, logloss and auc-logloss two runs are compared by.

    \b
    fullrank evaluate runs/sasrec --split test
    fullrank evaluate runs/sasrec --split test --json
    fullrank evaluate runs/popularity runs/sasrec --metric ndcg@10
    fullrank evaluate runs/sasrec --set seen=keep --set ks=[10,50]
    fullrank evaluate runs/sasrec runs/plr --drop 0.1,0.2,0.3
    fullrank evaluate runs/plr --oracle-step
    """
    chosen("--split", split, ("validation", "test"))
    if metrics and any(setting.partition("=")[0].strip() == "metrics" for setting in settings or ()):
        raise UserError("the metrics are given twice, by --metric and by --set metrics=; keep one")
    screen = Output(as_json)
    dial = {"steps": steps, "streams": streams, "adaptive": adaptive, "patience": patience}
    changes = shortcuts({f"reasoning.{name}": value for name, value in dial.items()}, settings)
    from fullrank.run import Run

    runs = [Run.open(path) for path in (run, other) if path is not None]
    _check_problems(runs)
    asked = {"--drop": drop is not None, "--oracle-step": oracle, "--step-curve": curve, "--dial": whole_dial}
    call = Call(screen, runs, split, data, metrics or [], changes, out, device)
    if runs[0].spec.problem == "ranking" and (any(asked.values()) or any(value for value in dial.values())):
        raise UserError(f"{run} is a click model: it has no histories to drop and no steps; leave these options out")
    if any(asked.values()):
        from fullrank.cli.studies import study

        study(
            screen, asked, [one.path for one in runs], shares=drop, split=split, data=data,
            changes=_with_metrics(call), device=call.device, out=out,
        )  # fmt: skip
        return
    EVALUATE[runs[0].spec.problem](call)


@dataclass(frozen=True)
class Call:
    """What `fullrank evaluate` was asked for."""

    screen: Output
    runs: list[Run]
    split: Any
    data: Path | None
    metrics: list[str]
    changes: list[str]
    out: Path | None
    device: str


def _evaluate_lists(call: Call) -> None:
    """Of two runs, the difference of the metrics at 10 where none are named."""
    begun, changes = time.perf_counter(), _with_metrics(call)
    if len(call.runs) == 2:  # before minutes are spent on evaluations that could not be compared
        from fullrank.evaluation.compare import check_comparable

        check_comparable(*(run.spec.lists.override(*changes) for run in call.runs))
    found = _measured(call, changes)
    if len(found) == 1:
        single(call.screen, call.runs[0], found[0], time.perf_counter() - begun)
        return
    whole = any(change.startswith(("metrics", "ks")) for change in changes)
    paired = _split(call.metrics)[1]
    rows = compared(found[0], found[1], paired, all_of_them=whole)
    pair(call.screen, call.runs, found, rows, time.perf_counter() - begun, stand_in=bool(paired))


def _evaluate_clicks(call: Call) -> None:
    """A click model always has all of its metrics; of two, --metric chooses those that are compared."""
    from fullrank.evaluation import compare
    from fullrank.evaluation.statistics import RESAMPLED

    begun = time.perf_counter()
    if call.metrics and len(call.runs) == 1:
        raise UserError("a click model always gets all of its metrics: leave out --metric")
    found = _measured(call, call.changes)
    if len(found) == 1:
        single(call.screen, call.runs[0], found[0], time.perf_counter() - begun)
        return
    rows = [compare(found[0], found[1], name) for name in call.metrics or RESAMPLED]
    pair(call.screen, call.runs, found, rows, time.perf_counter() - begun)


EVALUATE: Mapping[Problem, Callable[[Call], None]] = {"retrieval": _evaluate_lists, "ranking": _evaluate_clicks}


def _check_problems(runs: list[Run]) -> None:
    """Before minutes are spent on evaluations that could not be compared."""
    if len({run.spec.problem for run in runs}) > 1:
        lists, clicks = sorted(runs, key=lambda run: run.spec.problem == "ranking")
        raise UserError(f"{lists.path} ranks items and {clicks.path} predicts clicks; compare two of the same kind")


def _measured(call: Call, changes: list[str]) -> list[EvaluationResult]:
    """The result of each run, saved below `out` where one is named."""
    from fullrank import api

    found = []
    for run in call.runs:
        store = find_store(run, call.data)
        with call.screen.progress(f"evaluate {run.path}") as tick:
            found.append(
                api.evaluate(run, call.split, data=store, set=changes, device=call.device, progress=tick)
            )  # fmt: skip
    if call.out is not None:
        for one, part in zip(found, ("a", "b") if len(found) > 1 else ("",), strict=True):
            one.save(call.out / part)
    return found


def _with_metrics(call: Call) -> list[str]:
    """The settings of the evaluations, with what --metric asks of each run."""
    evaluated = call.metrics if len(call.runs) == 1 else _split(call.metrics)[0]
    return [*call.changes, f"metrics=[{', '.join(evaluated)}]"] if call.metrics else call.changes


def compared(
    one: EvaluationResult, two: EvaluationResult, paired: list[str], *, all_of_them: bool, k: int = 10
) -> list[Comparison]:
    """two - one, paired, of the metrics at `k` and of fair0.8@1, or of all, and of those that only two runs have.

    Where nothing was asked for, bqs_like@k is among them: in the JSON of a comparison, not in what is printed.

    `UserError` where the protocols differ.
    """
    from fullrank.evaluation import compare
    from fullrank.metrics.names import PAIRED

    both = [name for name in one.metrics if name in two.metrics]
    main = [name for name in both if name.endswith(f"@{k}") or name == "fair0.8@1"]
    if not all_of_them and f"ndcg@{k}" in main and one.slices:
        paired = [f"{PAIRED}@{k}"]
    level = one.protocol["bootstrap"]["level"]
    return [compare(one, two, name, level=level) for name in [*(both if all_of_them else main or both), *paired]]


def _split(metrics: list[str]) -> tuple[list[str], list[str]]:
    """What each of two runs is evaluated on, and the metrics that only both have; those are made of nDCG."""
    from fullrank.evaluation.compare import bqs_like_quality

    paired = [name for name in metrics if bqs_like_quality(name) is not None]
    evaluated = [str(bqs_like_quality(name) or name) for name in metrics]
    return list(dict.fromkeys(evaluated)), paired
