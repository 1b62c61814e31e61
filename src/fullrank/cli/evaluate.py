"""`fullrank evaluate`: the metrics of a run, or two runs on the same users."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.options import (
    Adaptive,
    AsJson,
    Patience,
    RunFolder,
    Settings,
    Steps,
    Streams,
    chosen,
    find_store,
    shortcuts,
)
from fullrank.cli.screen import Screen
from fullrank.cli.show_lists import pair, single
from fullrank.errors import UserError

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
    device: Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="Where the model runs.")] = "cpu",
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
    its interval and p (at k = 10, or those of --metric); runs that were measured differently are refused. bqs_like
    weighs the difference alike for head, mid and tail targets (a stand-in for the Balanced Quality Score).

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
    chosen("--device", device, ("cpu", "cuda"))
    if metrics and any(setting.partition("=")[0].strip() == "metrics" for setting in settings or ()):
        raise UserError("the metrics are given twice, by --metric and by --set metrics=; keep one")
    screen = Screen(as_json)
    dial = {"steps": steps, "streams": streams, "adaptive": adaptive, "patience": patience}
    changes = shortcuts({f"reasoning.{name}": value for name, value in dial.items()}, settings)
    if _of_clicks(run):
        from fullrank.cli import evaluate_clicks

        if drop is not None or oracle or curve or whole_dial or any(value for value in dial.values()):
            raise UserError(
                f"{run} is a click model: it has no histories to drop and no steps; leave these options out"
            )
        evaluate_clicks.show(screen, run, other, split, data, metrics or [], changes, out, _device(device))
        return
    evaluated, paired = (metrics or [], []) if other is None else _split(metrics or [])
    if metrics:
        changes.append(f"metrics=[{', '.join(evaluated)}]")
    if drop is not None or oracle or curve or whole_dial:
        from fullrank.cli.studies import study

        asked = {"--drop": drop is not None, "--oracle-step": oracle, "--step-curve": curve, "--dial": whole_dial}
        runs = [run] if other is None else [run, other]
        study(
            screen, asked, runs, shares=drop, split=split, data=data, changes=changes, device=_device(device), out=out
        )
        return
    begun = time.perf_counter()
    if other is not None:
        _check_alike(run, other, changes)
    first, one = _one(screen, run, split, data, changes, device)
    if other is None:
        _save(one, out)
        single(screen, first, one, time.perf_counter() - begun)
        return
    second, two = _one(screen, other, split, data, changes, device)
    rows = compared(one, two, paired, all_of_them=any(change.startswith(("metrics", "ks")) for change in changes))
    _save(one, None if out is None else out / "a")
    _save(two, None if out is None else out / "b")
    pair(screen, (first, second), (one, two), rows, time.perf_counter() - begun)


def _check_alike(run: Path, other: Path, changes: list[str]) -> None:
    """Before minutes are spent on evaluations that could not be compared."""
    from fullrank.evaluation.compare import check_alike
    from fullrank.run import Run

    check_alike(*(Run.open(path).spec.lists.override(*changes) for path in (run, other)))


def compared(
    one: EvaluationResult, two: EvaluationResult, paired: list[str], *, all_of_them: bool, k: int = 10
) -> list[Comparison]:
    """two - one, paired, of the metrics at `k` and of fair0.8@1, or of all, and of those that only two runs have.

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
    from fullrank.evaluation.bqs_like import quality

    paired = [name for name in metrics if quality(name) is not None]
    evaluated = [str(quality(name) or name) for name in metrics]
    return list(dict.fromkeys(evaluated)), paired


def _one(
    screen: Screen, path: Path, split: Any, data: Path | None, changes: list[str], device: str
) -> tuple[Run, EvaluationResult]:
    from fullrank import api
    from fullrank.run import Run

    run = Run.open(path)
    _ = run.spec.lists
    store = find_store(run, data)
    with screen.progress(f"evaluate {path}") as tick:
        found: Any = api.evaluate(run, split, data=store, set=changes, device=_device(device), progress=tick)
    return run, found


def _of_clicks(run: Path) -> bool:
    from fullrank.run import Run

    return Run.open(run).spec.clicks is not None


def _device(name: str) -> str:
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: this machine has no GPU that torch can use (`fullrank doctor` tells more)")
    return name


def _save(found: EvaluationResult, out: Path | None) -> None:
    if out is not None:
        found.save(out)
