"""`fullrank evaluate`, `evaluate-lists`, `evaluate-log`: metrics of runs, of lists made elsewhere, of logged answers.

What is measured of runs and printed stands in `evaluate_runs.py` and `print_evaluation.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fullrank.cli.early_checks import check_runs, check_store
from fullrank.cli.evaluate_runs import (
    EVALUATE,
    Call,
    EveryMetric,
    Measuring,
    OtherRun,
    check_saved,
    compare_results,
    measure_runs,
    metric_settings,
    names_metrics,
    split_paired,
)
from fullrank.cli.option_groups import (
    EngineOptions,
    ItemCol,
    LaterColumns,
    TableColumns,
    UserCol,
    Written,
    column_names,
)
from fullrank.cli.options import (
    EVALUATION,
    REASONING,
    RunFolder,
    argument,
    check_out,
    check_owner,
    option,
    spec_options,
    typed_settings,
)
from fullrank.cli.output import seconds
from fullrank.cli.print_evaluation import print_pair, print_single
from fullrank.cli.verbs import verb
from fullrank.core.files import jsonable

if TYPE_CHECKING:
    from fullrank.evaluation import Evaluation


@verb(cls=spec_options(EVALUATION, REASONING))
def evaluate(
    context: typer.Context,
    run: RunFolder,
    output: Measuring,
    columns: LaterColumns,
    engine: EngineOptions,
    other: OtherRun = None,
    events: Annotated[Path | None, option("FILE", "What users did later, measured in place of a split.")] = None,
    before: Annotated[
        Path | None, option("FILE", "With --events: histories from these events, not from a store.")
    ] = None,
    every: EveryMetric = False,
) -> None:
    """Measure a run, or two of them.

    Metrics: ndcg recall hit mrr map fair0.8 gini arp lift coverage novelty, at k = 1, 5, 10 and 20;
    by name also precision, f1, ild and repeat. --set changes how they are computed; what it changes
    is named in the protocol. Of two runs it prints the difference on the same users, its interval
    and p (at k = 10, or those of --metric); runs that were measured differently are refused.
    --metric bqs_like@10 weighs the difference alike for head, mid and tail targets (a stand-in for
    the Balanced Quality Score).

    --events measures a run on what users did later: all items of a user there are the targets, and
    the history is what the store knew of the user before (or --before). Lists of another tool:
    `fullrank evaluate-lists`; answers of a service: `fullrank evaluate-log`; over reasoning steps,
    or with events hidden: `fullrank study`.

    A run that reasons may take fewer or more steps than it was trained with (--reasoning-steps,
    --reasoning-streams), or as many as it takes until each user's list stays the same (--adaptive).

    Metrics of a ranking model: auc logloss auc-logloss ece pcoc and, with a group column, gauc,
    whose interval is over groups; all but ece and pcoc compare two runs. --set slices=[device]
    gives them by the values of a field.

    --engine, --workers or --parts measure the users of a recommender in parts, with the metrics of one process.

    \b
    fullrank evaluate runs/sasrec --split test
    fullrank evaluate runs/sasrec --split test --json
    fullrank evaluate runs/popularity runs/sasrec --metric ndcg@10
    fullrank evaluate runs/sasrec --set seen=keep --set ks=[10,50]
    fullrank evaluate runs/sasrec --events next_month.parquet
    fullrank evaluate runs/dcnv2 --metric gauc --set slices=[device]
    fullrank evaluate runs/sasrec --engine spark --master spark://host:7077
    """
    keywords = engine.keywords()
    check_owner("--events FILE", events, before=before, **vars(columns))
    if events is not None:
        keywords |= {"events": events, "before": before, **columns.keywords()}
    budget = typed_settings(context)
    call = replace(Call.of(output, budget, run, other), keywords=keywords, whole=every)
    if budget:
        from fullrank.run import require_problem

        remedy = f"leave {', '.join(REASONING[path] for path in budget)} out"
        require_problem(call.runs[0], "retrieval", remedy, code="option-of-other-problem")
    check_saved(call)
    EVALUATE[call.runs[0].spec.problem](call)


SHARED = (
    "ks",
    "metrics",
    "seen",
    "popularity",
    "empty",
    "diversity_by",
    "targets",
    "slices",
    "bootstrap",
    "level",
    "seed",
)
"""Settings of a run's evaluation that lists are measured by too."""
OF_ANSWERS = ("reasoning", "decoding", "popularity_discount")
"""Settings of how a model makes its lists, which lists of others do not have."""


@dataclass(frozen=True, kw_only=True)
class MeasuringLists(Measuring):
    """Options of a verb that measures lists."""

    data: Annotated[
        Path | None, option("STORE", "The store of the users.  [default: that of RUN]", callback=check_store)
    ] = None


@verb()
def evaluate_lists(
    lists: Annotated[Path, argument("FILE", "Recommendations: user, item and rank or score.")],
    output: MeasuringLists,
    run: Annotated[
        Path | None, argument("RUN", "A run: print the paired difference FILE - RUN.", callback=check_runs)
    ] = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rank_col: Annotated[str | None, option("NAME", "Rank column of FILE.  [default: rank]")] = None,
    score_col: Annotated[str | None, option("NAME", "Score column, where FILE has no ranks.")] = None,
    every: EveryMetric = False,
) -> None:
    """Measure lists made elsewhere, also beside a run.

    They are measured on the users of a store (--data), or beside a RUN on those of its store,
    paired. --set changes how metrics are computed, as in `fullrank evaluate`.

    \b
    fullrank evaluate-lists recommendations.csv --data data/shop
    fullrank evaluate-lists recommendations.csv runs/sasrec --metric ndcg@10
    """
    from fullrank.core.checks import check_given

    remedy = "name the store on whose users lists are measured, or a RUN"
    check_given("--data", output.data if run is None else run, remedy, code="missing-store")
    from fullrank import api
    from fullrank.run import require_problem, store_path

    columns = column_names(user_col=user_col, item_col=item_col, rank_col=rank_col, score_col=score_col)
    call = replace(Call.of(output, {}, run), whole=every)
    runs = call.runs
    for opened in runs:
        require_problem(opened, "retrieval", "name such a run, or none", code="two-problems")
    check_saved(call, ("a", "b") if runs else ("",))
    evaluated, paired = split_paired(call.metrics)
    changes = metric_settings(call, evaluated)
    whole = names_metrics(changes)
    settings = _settings_for_lists(runs[0].spec.lists, changes) if runs else changes
    theirs = api.evaluate_lists(lists, output.data or store_path(runs[0]), output.split, set=settings, **columns)
    if output.out is not None:
        theirs.save(output.out / "b" if runs else output.out, overwrite=output.overwrite)
    if not runs:
        print_single(output, {"lists": lists}, theirs, whole=whole or every)
        return
    ours = measure_runs(call, changes, out=output.out and output.out / "a")[0]
    rows = compare_results(ours, theirs, paired, all_of_them=whole)
    names = [str(runs[0].path), str(lists)]
    print_pair(output, names, [ours, theirs], rows, stand_in=bool(paired))


def _settings_for_lists(spec: Evaluation, changes: list[str]) -> list[str]:
    """Settings by which lists are measured like a run: its own and the `changes` of
    the call, less `OF_ANSWERS`."""
    shared = [f"{name}={json.dumps(jsonable(getattr(spec, name)), ensure_ascii=False)}" for name in SHARED]
    return [*shared, *(text for text in changes if text.partition("=")[0].strip().split(".")[0] not in OF_ANSWERS)]


@dataclass(frozen=True)
class EventColumns(TableColumns):
    """Columns of what users did after the answers, which has times."""

    time_col: Annotated[str | None, option("NAME", "Time column of FILE.  [default: timestamp]")] = None


@verb()
def evaluate_log(
    log: Annotated[Path, argument("DIR", "Where `fullrank serve --log DIR` logged its answers.")],
    events: Annotated[Path, option("FILE", "What users did after the answers.")],
    names: EventColumns,
    output: Written,
    within: Annotated[float, option("HOURS", "How long after an answer an event counts.")] = 24,
    metrics: Annotated[
        list[str] | None,
        option("NAME", "Compute this alone; may be repeated.  [default: hit, ndcg and mrr]", "--metric"),
    ] = None,
    out: Annotated[Path | None, option("FOLDER", "Save logged_evaluation.json and per_answer.parquet there.")] = None,
) -> None:
    """Measure answers that a service logged, by version.

    Logged answers are joined with the events that followed them: hit, ndcg and mrr of each version,
    and the differences between versions.

    \b
    fullrank evaluate-log answers --events events.parquet
    fullrank evaluate-log answers --events events.csv --time-col when --within 48 --out measured
    """
    check_out(out, output.overwrite, "logged_evaluation.json", "per_answer.parquet")
    from fullrank.evaluation.logged import METRICS
    from fullrank.evaluation.logged import evaluate_log as measure

    evaluation = measure(log, events, within=within, metrics=metrics or METRICS, **names.keywords())
    if out is not None:
        evaluation.save(out)
    columns = list(next(iter(evaluation.versions.values())).metrics)
    rows = [
        [name, version.answers, version.scored, version.users, *(version.metrics[metric] for metric in columns)]
        for name, version in evaluation.versions.items()
    ]
    output.table(("version", "answers", "scored", "users", *columns), rows)
    if evaluation.differences:
        cells = []
        for pair in evaluation.differences:
            c, how = pair.comparison, "paired" if pair.paired else "all"
            ends = f"{c.interval[0]:+.4f} {c.interval[1]:+.4f}"
            cells.append([f"{pair.b} - {pair.a}", how, c.metric, f"{c.difference:+.4f}", ends, c.p, c.users])
        output.table(("versions", "users", "metric", "difference", "95 % interval", "p", "users"), cells)
    counts = evaluation.counts
    output.say(
        f"{counts['answers']:,} answers: {counts['scored']:,} scored, {counts['without_later_event']:,} without an "
        f"event within {evaluation.protocol['within_hours']:g} hours, {counts['user_without_events']:,} of users "
        f"without events, {counts['without_user']:,} without a user; in {seconds(output.spent)}"
    )
    output.finish({**jsonable(evaluation.dump()), "seconds": output.spent})
