"""`fullrank evaluate`: the metrics of a run, or two runs on the same users or impressions.

What it measures and prints stands in `evaluate_runs.py` and `print_evaluation.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.evaluate_runs import EVALUATE, Call, EveryMetric, Measuring, OtherRun, check_saved
from fullrank.cli.option_groups import EngineOptions, LaterColumns
from fullrank.cli.options import EVALUATION, REASONING, RunFolder, check_beside, given, option, spec_options

COMMAND = spec_options(EVALUATION, REASONING)


def evaluate(
    context: typer.Context,
    run: RunFolder,
    how: Measuring,
    columns: LaterColumns,
    engine: EngineOptions,
    other: OtherRun = None,
    events: Annotated[
        Path | None,
        option("--events", "FILE", "What users did later, measured in place of a split."),
    ] = None,
    before: Annotated[
        Path | None,
        option("--before", "FILE", "With --events: histories from these events, not from a store."),
    ] = None,
    every: EveryMetric = False,
) -> None:
    """Measure a run, or two of them.

    Metrics: ndcg recall hit mrr map fair0.8 gini arp lift coverage novelty, at k = 1, 5, 10 and 20;
    by name also precision, f1, ild and repeat.
    --set changes how they are computed; what it changes is named in the protocol. Of two runs it prints the difference
    on the same users, its interval and p (at k = 10, or those of --metric); runs that were measured differently are
    refused. --metric bqs_like@10 weighs the difference alike for head, mid and tail targets (a stand-in for the
    Balanced Quality Score).

    --events measures a run on what users did later: all items of a user there are the targets, and the history is what
    the store knew of the user before (or --before). Lists of another tool: `fullrank evaluate-lists`; answers of a
    service: `fullrank evaluate-log`; over reasoning steps, or with events hidden: `fullrank study`.

    A run that reasons may take fewer or more steps than it was trained with (--reasoning-steps, --reasoning-streams),
    or as many as it takes until each user's list stays the same (--adaptive).

    Metrics of a ranking model: auc logloss auc-logloss ece pcoc and, with a group column, gauc, whose interval is over
    groups; all but ece and pcoc compare two runs. --set slices=[device] gives them by the values of a field.

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
    parts = engine.keywords()
    check_beside("--events FILE", events, before=before, **vars(columns))
    budget = given(context)
    call = Call.of(how, budget, run, other)
    later = {} if events is None else {"events": events, "before": before, **columns.keywords()}
    call = replace(call, keywords={**later, **parts}, whole=every)
    if budget:
        from fullrank.run import require_problem

        remedy = f"leave {', '.join(REASONING[path] for path in budget)} out"
        require_problem(call.runs[0], "retrieval", remedy, code="option-of-other-problem")
    check_saved(call)
    EVALUATE[call.runs[0].spec.problem](call)
