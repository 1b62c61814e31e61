"""`fullrank evaluate --log`: what a service's logged answers were worth, by version."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullrank.cli.options import chosen
from fullrank.cli.output import Output, seconds
from fullrank.core.errors import UserError
from fullrank.core.files import jsonable

WITHIN = 24.0
"""Hours after an answer in which an event counts, where none are given."""


def refuse_together(flags: Sequence[str], other: str, place: str = "leave them out") -> None:
    """Raise `UserError` where there are options that say nothing beside another."""
    if flags:
        raise UserError(f"{', '.join(flags)} cannot be given with {other}: {place}", code="options-exclude-each")


def evaluate_log(
    output: Output,
    log: Path,
    events: Path | None,
    within: float | None,
    columns: str | None,
    named: Mapping[str, str | None],
    time_unit: str | None,
    metrics: Sequence[str] | None,
    out: Path | None,
) -> None:
    """Join, print, and save below `out`. `columns` are all three in one word, `named` those of options of their own."""
    from fullrank import api
    from fullrank.evaluation.logged import METRICS

    if events is None:
        raise UserError("--log needs --events FILE: what users did after the answers", code="no-events")
    unit: Any = chosen("--time-unit", time_unit or "s", ("s", "ms", "us", "ns"))
    if columns is not None and named:
        raise UserError(
            "columns are named twice, by --columns and by options of their own; keep one", code="given-twice"
        )
    names = {"columns": [name.strip() for name in columns.split(",")]} if columns is not None else named
    begun = time.perf_counter()
    found = api.evaluate_log(
        log, events, within=WITHIN if within is None else within, metrics=metrics or METRICS,
        time_unit=unit, **names,
    )  # fmt: skip
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
        f"events, {counts['without_user']:,} without a user; in {seconds(time.perf_counter() - begun)}"
    )
    output.finish({**jsonable(found.dump()), "seconds": round(time.perf_counter() - begun, 3)})
