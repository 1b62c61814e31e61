"""`fullrank evaluate-log`: what a service's logged answers were worth, by version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fullrank.cli.option_groups import TableColumns
from fullrank.cli.options import AsJson, Overwrite, argument, check_out, option
from fullrank.cli.output import Output, seconds
from fullrank.core.files import jsonable


@dataclass(frozen=True)
class EventColumns(TableColumns):
    """Columns of what users did after the answers, which has times."""

    time_col: Annotated[str | None, option("--time-col", "NAME", "Time column of FILE.  [default: timestamp]")] = None


def evaluate_log(
    log: Annotated[Path, argument("DIR", "Where `fullrank serve --log DIR` logged its answers.")],
    events: Annotated[Path, option("--events", "FILE", "What users did after the answers.")],
    names: EventColumns,
    within: Annotated[float, option("--within", "HOURS", "How long after an answer an event counts.")] = 24,
    metrics: Annotated[
        list[str] | None,
        option("--metric", "NAME", "Compute this alone; may be repeated.  [default: hit, ndcg and mrr]"),
    ] = None,
    out: Annotated[
        Path | None, option("--out", "FOLDER", "Save logged_evaluation.json and per_answer.parquet there.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure answers that a service logged, by version.

    Logged answers are joined with the events that followed them: hit, ndcg and mrr of each version, and the
    differences between versions.

    \b
    fullrank evaluate-log answers --events events.parquet
    fullrank evaluate-log answers --events events.csv --time-col when --within 48 --out measured
    """
    check_out(out, overwrite, "logged_evaluation.json", "per_answer.parquet")
    from fullrank.evaluation.logged import METRICS
    from fullrank.evaluation.logged import evaluate_log as measure

    output = Output(as_json)
    found = measure(log, events, within=within, metrics=metrics or METRICS, **names.keywords())
    if out is not None:
        found.save(out)
    measured = list(next(iter(found.versions.values())).metrics)
    rows = []
    for name, one in found.versions.items():
        rows.append([name, one.answers, one.scored, one.users, *(one.metrics[metric] for metric in measured)])
    output.table(("version", "answers", "scored", "users", *measured), rows)
    if found.differences:
        cells = [
            [f"{one.b} - {one.a}", "paired" if one.paired else "all", c.metric, f"{c.difference:+.4f}",
             f"{c.interval[0]:+.4f} {c.interval[1]:+.4f}", c.p, c.users]
            for one in found.differences for c in [one.comparison]
        ]  # fmt: skip
        output.table(("versions", "users", "metric", "difference", "95 % interval", "p", "users"), cells)
    counts = found.counts
    output.say(
        f"{counts['answers']:,} answers: {counts['scored']:,} scored, {counts['without_later_event']:,} without an "
        f"event within {found.protocol['within_hours']:g} hours, {counts['user_without_events']:,} of users without "
        f"events, {counts['without_user']:,} without a user; in {seconds(output.spent)}"
    )
    output.finish({**jsonable(found.dump()), "seconds": output.spent})
