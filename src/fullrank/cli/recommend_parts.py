"""`fullrank recommend --engine`, `--workers` or `--parts`: lists of all users of a store or a table, in a folder."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.cli.column_filters import parse_filters
from fullrank.cli.ids import known_ids
from fullrank.cli.in_shell import in_shell
from fullrank.cli.output import Output, seconds
from fullrank.core.errors import UserError


@dataclass(frozen=True)
class PartsCall:
    """What was asked for."""

    output: Output
    run: Path
    histories: Path | None
    data: Path | None
    out: Path | None
    engine: Mapping[str, Any]
    policies: Mapping[str, Any]
    reasoning: Mapping[str, Any]
    decoding: Mapping[str, str]
    k: int
    exclude: str | None
    allow: str | None
    filters: list[str] | None
    items: Path | None
    columns: tuple[str | None, str | None, str | None, Any]
    """Of user, item and time, and the unit of times."""
    device: str
    overwrite: bool


def recommend_parts(call: PartsCall, single: Mapping[str, object], table: Mapping[str, object]) -> None:
    """Write the lists and say what they come to. `single` are options of single users, `table` those of a table.

    Raises `UserError` for options without effect.
    """
    _check(call, single, table)
    from fullrank import api
    from fullrank.inference.column_filters import item_columns
    from fullrank.run import Run

    begun, opened = time.perf_counter(), Run.open(call.run)
    catalog, (user, item, when, unit) = opened.catalog, call.columns
    wanted = None
    if call.filters:
        wanted = parse_filters(call.filters, item_columns(catalog, call.items, item or "item_id"))
    named: dict[str, Any] = {} if when is None else {"time_col": None if when == "none" else when}
    with warnings.catch_warnings(record=True) as doubts, call.output.progress(f"recommend to {call.out}") as tick:
        warnings.simplefilter("always", UserWarning)
        made = api.recommend_parts(
            opened, call.out or "", call.histories, data=call.data, k=call.k, filters=wanted, item_table=call.items,
            exclude=known_ids("--exclude", call.exclude, catalog), allow=known_ids("--allow", call.allow, catalog),
            user_col=user, item_col=item, time_unit=unit, titles=True, budget=call.reasoning or None,
            decoding=call.decoding or None, device=call.device, overwrite=call.overwrite, progress=tick,
            **named, **call.policies, **call.engine,
        )  # fmt: skip
    for doubt in doubts:
        if issubclass(doubt.category, UserWarning) and doubt.category is UserWarning:
            call.output.say(f"note: {in_shell(str(doubt.message), ('--empty',))}")
    spent = time.perf_counter() - begun
    resumed = f", {made.resumed:,} of them by an earlier call" if made.resumed else ""
    call.output.say(
        f"{made.rows:,} recommendations for {made.users:,} users written to {made.folder} in {made.parts:,} parts"
        f"{resumed}, in {seconds(spent)}"
    )
    call.output.finish({
        "run": opened.path, "out": made.path, "k": call.k, "policies": dict(call.policies), "parts": made.parts,
        "resumed": made.resumed, "users": made.users, "rows": made.rows, "popular": made.popular,
        "seconds": round(spent, 3),
    })  # fmt: skip


def _check(call: PartsCall, single: Mapping[str, object], table: Mapping[str, object]) -> None:
    for flag, value in single.items():
        if value is not None:
            raise UserError(
                f"{flag} is about some users, and lists in parts are of all users of --data or of --histories: leave "
                "it out, or --engine, --workers and --parts",
                code="option-without-effect",
            )
    if call.histories is not None and call.data is not None:
        raise UserError(
            "give --data, a store of all users, or --histories FILE: one of the two", code="options-exclude-each"
        )
    for flag, value in table.items():
        if value is not None and call.histories is None:
            raise UserError(
                f"{flag} is about a column of --histories FILE, which is not given", code="option-without-effect"
            )
    if call.columns[1] is not None and call.histories is None and call.items is None:
        raise UserError(
            "--item-col is about a column of --histories FILE or of --items, which are not given",
            code="option-without-effect",
        )
    if call.out is None:
        raise UserError("lists in parts are written to a folder: name it by --out", code="missing-option")
