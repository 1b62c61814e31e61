"""`fullrank evaluate`: the metrics of a run, or two runs on the same users or impressions.

What it measures otherwise has a file each: studies of one setting (`evaluate_study.py`), lists that were made elsewhere
(`evaluate_lists.py`) and logged answers (`evaluate_log.py`). What is printed stands in `print_evaluation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.evaluate_lists import evaluate_lists
from fullrank.cli.evaluate_log import evaluate_log, refuse_together
from fullrank.cli.evaluate_runs import EVALUATE, Call, check_problems, check_saved
from fullrank.cli.evaluate_study import study
from fullrank.cli.options import (
    EVALUATION,
    REASONING,
    AsJson,
    Device,
    EngineOption,
    Master,
    Overwrite,
    Parts,
    RayAddress,
    Settings,
    Split,
    Workers,
    check_out,
    chosen,
    engine_settings,
    given,
    shortcuts,
    spec_options,
)
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_runs, check_settings, check_store
from fullrank.core.errors import UserError


def add(app: typer.Typer) -> None:
    app.command("evaluate", cls=spec_options(EVALUATION, REASONING))(evaluate)


def evaluate(
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", callback=check_runs, help="A run folder, as `fullrank train` writes it; not with --log."
        ),
    ] = None,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN2", callback=check_runs, help="A second run: print the paired difference RUN2 - RUN."
        ),
    ] = None,
    split: Split = "test",
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
    lists: Annotated[
        Path | None,
        typer.Option("--lists", metavar="FILE", help="Recommendations made elsewhere: user, item and rank or score."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="FILE", help="What users did later, measured in place of a split; or after --log."
        ),
    ] = None,
    before: Annotated[
        Path | None,
        typer.Option("--before", metavar="FILE", help="With --events: histories from these events, not from a store."),
    ] = None,
    user_col: Annotated[
        str | None, typer.Option("--user-col", metavar="NAME", help="User column of FILE.  [default: user_id]")
    ] = None,
    item_col: Annotated[
        str | None, typer.Option("--item-col", metavar="NAME", help="Item column of FILE.  [default: item_id]")
    ] = None,
    time_col: Annotated[
        str | None,
        typer.Option("--time-col", metavar="NAME|none", help="Time column of --events.  [default: timestamp]"),
    ] = None,
    rank_col: Annotated[
        str | None, typer.Option("--rank-col", metavar="NAME", help="Rank column of --lists.  [default: rank]")
    ] = None,
    score_col: Annotated[
        str | None, typer.Option("--score-col", metavar="NAME", help="Score column, where --lists has no ranks.")
    ] = None,
    within: Annotated[
        float | None,
        typer.Option("--within", metavar="HOURS", help="With --log: how long after an answer.  [default: 24]"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="USER,ITEM,TIME", help="With --log: all three columns of FILE in one word."),
    ] = None,
    time_unit: Annotated[
        str | None, typer.Option("--time-unit", metavar="UNIT", help="Of its times: s, ms, us, ns.  [default: s]")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print every metric; without it the main five (--json has all).")
    ] = False,
    engine: EngineOption = None,
    parts: Parts = None,
    master: Master = None,
    ray: RayAddress = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Measure a run, two of them, or lists made elsewhere.

    Metrics: ndcg recall hit mrr map fair0.8 gini arp lift coverage novelty, at k = 1, 5, 10 and 20;
    by name also precision, f1, ild and repeat.
    --set changes how they are computed; what it changes is named in the protocol. Of two runs it prints the difference
    on the same users, its interval and p (at k = 10, or those of --metric); runs that were measured differently are
    refused. --metric bqs_like@10 weighs the difference alike for head, mid and tail targets (a stand-in for the
    Balanced Quality Score).

    --events measures a run on what users did later: all items of a user there are the targets, and the history is what
    the store knew of the user before (or --before). --lists measures recommendations of another tool on the users of a
    store (--data), or beside a RUN, paired.

    A run that reasons may take fewer or more steps than it was trained with (--reasoning-steps, --reasoning-streams),
    or as many as it takes until each user's list stays the same (--adaptive).

    Metrics of a ranking model: auc logloss auc-logloss ece pcoc and, with a group column, gauc, whose interval is over
    groups; all but ece and pcoc compare two runs. --set slices=[device] gives them by the values of a field.

    --engine, --workers or --parts measure the users of a recommender in parts, with the metrics of one process.

    --log takes no RUN: it joins logged answers with the events that followed them (hit, ndcg and mrr by version).

    \b
    fullrank evaluate runs/sasrec --split test
    fullrank evaluate runs/sasrec --split test --json
    fullrank evaluate runs/popularity runs/sasrec --metric ndcg@10
    fullrank evaluate runs/sasrec --set seen=keep --set ks=[10,50]
    fullrank evaluate runs/sasrec --events next_month.parquet
    fullrank evaluate runs/sasrec --lists recommendations.csv
    fullrank evaluate runs/sasrec runs/plr --drop 0.1,0.2,0.3
    fullrank evaluate runs/plr --oracle-step
    fullrank evaluate runs/dcnv2 --metric gauc --set slices=[device]
    fullrank evaluate runs/sasrec --engine spark --master spark://host:7077
    fullrank evaluate --log answers --events events.parquet --within 48
    """
    names = {"--user-col": user_col, "--item-col": item_col, "--time-col": time_col}
    of_lists = {"--rank-col": rank_col, "--score-col": score_col}
    of_log = {"--within": within, "--columns": columns}
    studies = {"--drop": drop is not None, "--oracle-step": oracle, "--step-curve": curve, "--dial": every_budget}
    how = engine_settings(engine, parts, master, ray, workers)
    in_parts = [f"--{name}" for name in how]
    if log is not None:
        of_run = {
            "RUN": run, "--lists": lists, "--before": before, **of_lists, "--data": data, **studies, "--all": every,
            "--set": settings, **{f"--{path}": 1 for path in given(context)},
            "--split": split != "test", "--device": device != "auto",
        }  # fmt: skip
        refuse_together([*(name for name, value in of_run.items() if value), *in_parts], "--log")
        check_out(out, overwrite, "logged_evaluation.json", "per_answer.parquet")
        evaluate_log(Output(as_json), log, events, within, columns, _event_columns(names), time_unit, metrics, out)
        return
    refuse_together(_given(of_log), "a run", "only with --log DIR")
    chosen("--split", split, ("validation", "test"))
    if metrics and any(setting.partition("=")[0].strip() == "metrics" for setting in settings or ()):
        raise UserError("the metrics are given twice, by --metric and by --set metrics=; keep one", code="given-twice")
    if lists is None:
        refuse_together(_given(of_lists), "a run", "only with --lists FILE")
        if events is None:
            of_events = {**names, "--before": before, "--time-unit": time_unit}
            refuse_together(_given(of_events), "a run", "only with --events FILE")
        if run is None:
            raise UserError(
                "there is nothing to measure: name a RUN, or --log DIR with --events FILE, or --lists FILE with --data "
                "STORE",
                code="no-run",
            )
    else:
        beside = {
            "RUN2": other,
            "--events": events,
            "--before": before,
            "--time-col": time_col,
            "--time-unit": time_unit,
        }
        studied = [flag for flag, asked in studies.items() if asked]
        refuse_together([*_given(beside), *studied, *in_parts], "--lists")
    budget = given(context)
    changes = shortcuts(budget, settings)
    check_store(data)
    if lists is None:
        from fullrank.metrics.names import PAIRED, parse_metric

        for path in (one for one in (run, other) if one is not None):
            check_settings(path, settings or (), evaluation=True)
        for name in metrics or ():
            if "@" in name and not name.startswith(PAIRED):
                parse_metric(name)
    from fullrank.run import Run

    runs = [Run.open(path) for path in (run, other) if path is not None]
    later = {}
    if events is not None:
        refuse_together([*(flag for flag, asked in studies.items() if asked), *in_parts], "--events")
        unit = chosen("--time-unit", time_unit or "s", ("s", "ms", "us", "ns"))
        later = {"events": events, "before": before, **_event_columns(names), "time_unit": unit}
    call = Call(Output(as_json), runs, split, data, metrics or [], changes, out, device, overwrite, later, every, how)
    if lists is not None:
        evaluate_lists(call, lists, _event_columns(names) | {"rank_col": rank_col, "score_col": score_col})
        return
    check_problems(runs)
    if runs[0].spec.problem == "ranking" and (any(studies.values()) or budget):
        options = [flag for flag, asked in studies.items() if asked] + [REASONING[path] for path in budget]
        raise UserError(
            f"{run} is a ranking model, which has no histories and no reasoning steps: leave {', '.join(options)} out",
            code="option-of-other-problem",
        )
    if any(studies.values()):
        refuse_together(in_parts, next(flag for flag, asked in studies.items() if asked))
        study(call, [flag for flag, asked in studies.items() if asked], drop)
    else:
        check_saved(call)
        EVALUATE[runs[0].spec.problem](call)


def _given(options: Mapping[str, object]) -> list[str]:
    """The options that were typed."""
    return [name for name, value in options.items() if value is not None]


def _event_columns(names: Mapping[str, str | None]) -> dict[str, str | None]:
    """`--user-col` and so on as keywords of the library, where they were typed; the word `none` is no column."""
    typed = {name.removeprefix("--").replace("-", "_"): value for name, value in names.items() if value is not None}
    return {name: None if (name, value) == ("time_col", "none") else value for name, value in typed.items()}
