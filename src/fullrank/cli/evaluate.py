"""`fullrank evaluate`: the metrics of a run, or two runs on the same users or impressions.

Beside one setting it measures three studies: with events hidden (`--drop`), at each user's best step (`--oracle-step`)
and over all steps (`--step-curve`, `--dial`). What is printed of them stands in `print_evaluation.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.evaluate_log import evaluate_log, refuse_together
from fullrank.cli.options import (
    EVALUATION,
    REASONING,
    AsJson,
    Device,
    MovedStore,
    Settings,
    Split,
    chosen,
    find_store,
    given,
    shortcuts,
    spec_options,
)
from fullrank.cli.output import Output, seconds
from fullrank.cli.print_evaluation import print_curve, print_hidden, print_oracle, print_pair, print_single
from fullrank.core.errors import UserError
from fullrank.core.files import jsonable, write_json
from fullrank.problem import Problem

if TYPE_CHECKING:
    from fullrank.evaluation import Comparison, EvaluationResult
    from fullrank.run import Run


MOST_SHARES = 100
"""Shares that `--drop` takes."""


def add(app: typer.Typer) -> None:
    app.command("evaluate", cls=spec_options(EVALUATION, REASONING))(evaluate)


def evaluate(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run folder, as `fullrank train` writes it; not with --log.")
    ] = None,
    other: Annotated[
        Path | None, typer.Argument(metavar="RUN2", help="A second run: print the paired difference RUN2 - RUN.")
    ] = None,
    split: Split = "test",
    data: MovedStore = None,
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
    every_budget: Annotated[
        bool, typer.Option("--dial", help="The step curve in 1, 2, ... streams: every budget of a reasoner.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="DIR", help="Measure answers that `fullrank serve --log DIR` logged, by version."
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="FILE", help="With --log: what users did (.parquet, .csv, .jsonl)."),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option("--within", metavar="HOURS", help="With --log: how long after an answer.  [default: 24]"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="USER,ITEM,TIME", help="Of FILE.  [default: user_id,item_id,timestamp]"),
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", metavar="UNIT", help="Of its times: s, ms, us, ns.  [default: s]")
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run, two of them, or logged answers.

    Metrics: ndcg recall hit mrr map fair0.8 gini arp lift coverage novelty, at k = 1, 5, 10 and 20;
    by name also repeat.
    --set changes how they are computed; what it changes is named in the protocol. Of two runs it prints the difference
    on the same users, its interval and p (at k = 10, or those of --metric); runs that were measured differently are
    refused. --metric bqs_like@10 weighs the difference alike for head, mid and tail targets (a stand-in for the
    Balanced Quality Score).

    A run that reasons may take fewer or more steps than it was trained with (--reasoning-steps, --reasoning-streams),
    or as many as it takes until each user's list stays the same (--adaptive).

    A ranking model always gets auc, logloss, auc-logloss, ece, pcoc and, with a group column, gauc; --metric chooses
    which of auc, logloss and auc-logloss two runs are compared by.

    --log takes no RUN: it joins logged answers with the events that followed them (hit, ndcg and mrr by version).

    \b
    fullrank evaluate runs/sasrec --split test
    fullrank evaluate runs/sasrec --split test --json
    fullrank evaluate runs/popularity runs/sasrec --metric ndcg@10
    fullrank evaluate runs/sasrec --set seen=keep --set ks=[10,50]
    fullrank evaluate runs/sasrec runs/plr --drop 0.1,0.2,0.3
    fullrank evaluate runs/plr --oracle-step
    fullrank evaluate --log answers --events events.parquet --within 48
    """
    of_log = {"--events": events, "--within": within, "--columns": columns, "--time-unit": time_unit}
    if log is not None:
        of_run = {
            "RUN": run, "--data": data, "--drop": drop, "--oracle-step": oracle, "--step-curve": curve,
            "--dial": every_budget, "--set": settings, **{f"--{path}": 1 for path in given(context)},
            "--split": split != "test", "--device": device != "auto",
        }  # fmt: skip
        refuse_together([name for name, value in of_run.items() if value], "--log")
        evaluate_log(Output(as_json), log, events, within, columns, time_unit, metrics, out)
        return
    refuse_together([name for name, value in of_log.items() if value is not None], "a run", "only with --log DIR")
    if run is None:
        raise UserError("there is nothing to measure: name a RUN, or --log DIR with --events FILE", code="no-run")
    chosen("--split", split, ("validation", "test"))
    if metrics and any(setting.partition("=")[0].strip() == "metrics" for setting in settings or ()):
        raise UserError("the metrics are given twice, by --metric and by --set metrics=; keep one", code="given-twice")
    budget = given(context)
    changes = shortcuts(budget, settings)
    from fullrank.data.manifest import require_no_store
    from fullrank.run import Run

    if out is not None:  # before minutes are spent
        require_no_store(out, "evaluation")
    runs = [Run.open(path) for path in (run, other) if path is not None]
    _check_problems(runs)
    studies = {"--drop": drop is not None, "--oracle-step": oracle, "--step-curve": curve, "--dial": every_budget}
    call = Call(Output(as_json), runs, split, data, metrics or [], changes, out, device)
    if runs[0].spec.problem == "ranking" and (any(studies.values()) or budget):
        options = [flag for flag, asked in studies.items() if asked] + [REASONING[path] for path in budget]
        raise UserError(
            f"{run} is a ranking model, which has no histories and no reasoning steps: leave {', '.join(options)} out",
            code="option-of-other-problem",
        )
    if any(studies.values()):
        _study(call, [flag for flag, asked in studies.items() if asked], drop)
    else:
        _check_out(call)
        EVALUATE[runs[0].spec.problem](call)


@dataclass(frozen=True)
class Call:
    """What `fullrank evaluate` was asked for."""

    output: Output
    runs: list[Run]
    split: Any
    data: Path | None
    metrics: list[str]
    changes: list[str]
    out: Path | None
    device: str


def _evaluate_retrieval(call: Call) -> None:
    """Of two runs, the difference of the metrics at 10 where none are named."""
    begun, changes = time.perf_counter(), _with_metrics(call)
    if len(call.runs) == 2:  # before minutes are spent on evaluations that could not be compared
        from fullrank.evaluation.compare import check_comparable

        check_comparable(*(run.spec.lists.override(*changes) for run in call.runs))
    found = _measured(call, changes)
    if len(found) == 1:
        print_single(call.output, call.runs[0], found[0], time.perf_counter() - begun)
        return
    whole = any(change.startswith(("metrics", "ks")) for change in changes)
    paired = _split(call.metrics)[1]
    rows = compared(found[0], found[1], paired, all_of_them=whole)
    print_pair(call.output, call.runs, found, rows, time.perf_counter() - begun, stand_in=bool(paired))


def _evaluate_ranking(call: Call) -> None:
    """A ranking model always has all of its metrics; of two, --metric chooses those that are compared."""
    from fullrank.evaluation import compare
    from fullrank.evaluation.statistics import RESAMPLED

    begun = time.perf_counter()
    if call.metrics and len(call.runs) == 1:
        raise UserError(
            "a ranking model always gets all of its metrics: leave out --metric", code="option-of-other-problem"
        )
    found = _measured(call, call.changes)
    if len(found) == 1:
        print_single(call.output, call.runs[0], found[0], time.perf_counter() - begun)
        return
    rows = [compare(found[0], found[1], name) for name in call.metrics or RESAMPLED]
    print_pair(call.output, call.runs, found, rows, time.perf_counter() - begun)


EVALUATE: Mapping[Problem, Callable[[Call], None]] = {"retrieval": _evaluate_retrieval, "ranking": _evaluate_ranking}


def _check_out(call: Call) -> None:
    """Before minutes are spent on an evaluation that could not be saved there."""
    from fullrank.evaluation.result import require_same_history

    if call.out is None:
        return
    for run, part in zip(call.runs, ("a", "b") if len(call.runs) > 1 else ("",), strict=True):
        if run.spec.problem == "retrieval":
            require_same_history(call.out / part, run.spec.lists.override(*call.changes).seen)


def _check_problems(runs: list[Run]) -> None:
    """Before minutes are spent on evaluations that could not be compared."""
    if len({run.spec.problem for run in runs}) > 1:
        retrieval, ranking = sorted(runs, key=lambda run: run.spec.problem == "ranking")
        raise UserError(
            f"{retrieval.path} recommends items and {ranking.path} predicts clicks; compare two of the same kind",
            code="two-problems",
        )


def _measured(call: Call, changes: list[str], what: str = "") -> list[EvaluationResult]:
    """The result of each run, saved below `out` where one is named."""
    from fullrank import api

    found = []
    for run in call.runs:
        store = find_store(run, call.data)
        with call.output.progress(f"evaluate {run.path}{what}") as tick:
            one = api.evaluate(run, call.split, data=store, set=changes, device=call.device, progress=tick)
        found.append(one)
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


def _study(call: Call, flags: list[str], shares: str | None) -> None:
    """Measure the one study that is asked for, print it, and save it below `out`."""
    if len(flags) > 1:
        raise UserError(f"{' and '.join(flags)} are given together; ask for one at a time", code="options-exclude-each")
    if flags != ["--drop"] and len(call.runs) > 1:
        raise UserError(f"{flags[0]} is about one run, and two are given; ask for each alone", code="one-run-at-a-time")
    changes, begun = _with_metrics(call), time.perf_counter()
    if shares is not None:
        found = _hidden(call, read_shares(shares, changes), changes)
    elif flags == ["--oracle-step"]:
        found = _oracle(call, changes)
    else:
        found = _curve(call, changes, every=flags == ["--dial"])
    if call.out is not None and shares is None:
        write_json(call.out / f"{flags[0].strip('-').replace('-', '_')}.json", jsonable(found))
    spent = time.perf_counter() - begun
    call.output.say(f"{call.split} split; in {seconds(spent)}")
    call.output.finish({"runs": [str(run.path) for run in call.runs], **found, "seconds": round(spent, 3)})


def read_shares(text: str, changes: list[str]) -> list[float]:
    """`0.1,0.2` as shares, ascending and each once, after 0. Raises `UserError` for what is none."""
    if any(change.partition("=")[0].strip() in ("drop", "reasoning.adaptive") for change in changes):
        raise UserError(
            "--drop says which shares are hidden, of whole evaluations: leave drop and adaptive out of --set",
            code="options-exclude-each",
        )
    try:
        shares = {float(word) for word in text.split(",")}
    except ValueError:
        raise UserError(
            f"--drop {text!r} is no list of shares; write it as --drop 0.1,0.2,0.3", code="not-shares"
        ) from None
    if len(shares) > MOST_SHARES:
        raise UserError(
            f"--drop names {len(shares):,} shares, each of which is an evaluation: give at most {MOST_SHARES}",
            code="too-many-shares",
        )
    for share in shares:
        if not 0 <= share < 1:
            raise UserError(
                f"--drop {share:g}: a share is at least 0 and below 1, such as --drop 0.1,0.2,0.3", code="not-shares"
            )
    return sorted({0.0, *shares})


def _hidden(call: Call, shares: list[float], changes: list[str]) -> dict[str, Any]:
    """Of each share, the metrics of the run or the differences of the two."""
    rows: list[dict[str, Any]] = []
    for share in shares:
        out = None if call.out is None else call.out / f"drop-{share:g}"
        both = _measured(replace(call, out=out), [*changes, f"drop={share}"], f", {share:.0%} hidden")
        if len(both) == 1:
            rows.append({"drop": share, **both[0].dump()})
        else:
            named = any(change.startswith(("metrics", "ks")) for change in changes)
            made = compared(both[0], both[1], [], all_of_them=named)
            rows.append({"drop": share, "metrics": {c.metric: c.dump() for c in made}, "protocol": both[0].protocol})
    print_hidden(call.output, call.runs, rows)
    return {"shares": rows}


def _oracle(call: Call, changes: list[str]) -> dict[str, Any]:
    from fullrank import api
    from fullrank.evaluation.reasoning_steps import LABEL

    (run,) = call.runs
    store = find_store(run, call.data)
    with call.output.progress(f"evaluate {run.path} after every step") as tick:
        found = api.oracle_step(run, call.split, data=store, set=changes, device=call.device, progress=tick)
    print_oracle(call.output, found)
    return {"oracle": {one.metric: one.dump() for one in found}, "label": LABEL}


def _curve(call: Call, changes: list[str], *, every: bool) -> dict[str, Any]:
    """Over the steps, in the streams that are set; with `every` in one stream, in two, and so on to those trained."""
    from fullrank import api

    (run,) = call.runs
    store = find_store(run, call.data)
    named = any(change.partition("=")[0].strip() == "metrics" for change in changes)
    own = run.spec.lists.override(*changes)
    names = [str(name) for name in own.names()] if named else [own.selection]
    found: list[Any] = []
    for streams in _streams(run, changes) if every else [[]]:
        with call.output.progress(f"evaluate {run.path} over its steps{', '.join(['', *streams])}") as tick:
            found += api.step_curve(
                run, call.split, data=store, set=[*changes, *streams], metrics=names, device=call.device, progress=tick
            )
    print_curve(call.output, found, names)
    return {"curve": [one.dump() | {"label": one.label} for one in found]}


def _streams(run: Run, changes: list[str]) -> list[list[str]]:
    """One setting for each number of streams that the run can answer with."""
    if any(change.partition("=")[0].strip() == "reasoning.streams" for change in changes):
        raise UserError(
            "--dial goes through the numbers of streams itself: leave --reasoning-streams out",
            code="options-exclude-each",
        )
    reasoner: Any = getattr(run.spec.model, "reasoner", None)
    if reasoner is None:
        raise UserError(
            f"{run.path} does not reason, so --dial has no effect; give a run with a reasoner", code="no-reasoner"
        )
    return [[f"reasoning.streams={count}"] for count in range(1, getattr(reasoner, "streams", 1) + 1)]
