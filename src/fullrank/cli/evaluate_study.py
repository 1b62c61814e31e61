"""The studies of `fullrank evaluate`: with events hidden (`--drop`), at each user's best step (`--oracle-step`) and
over all steps (`--step-curve`, `--dial`)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fullrank.cli.evaluate_runs import Call, check_saved, compared, measured, with_metrics
from fullrank.cli.options import check_out, find_store
from fullrank.cli.output import seconds
from fullrank.cli.print_evaluation import print_curve, print_hidden, print_oracle
from fullrank.core.errors import UserError
from fullrank.core.files import jsonable, write_json

if TYPE_CHECKING:
    from fullrank.run import Run

MOST_SHARES = 100
"""Shares that `--drop` takes."""


def study(call: Call, flags: list[str], shares: str | None) -> None:
    """Measure the one study that is asked for, print it, and save it below `out`."""
    if len(flags) > 1:
        raise UserError(f"{' and '.join(flags)} are given together; ask for one at a time", code="options-exclude-each")
    if flags != ["--drop"] and len(call.runs) > 1:
        raise UserError(f"{flags[0]} is about one run, and two are given; ask for each alone", code="one-run-at-a-time")
    changes, begun = with_metrics(call), time.perf_counter()
    if shares is not None:
        hidden = read_shares(shares, changes)
        check_saved(call, [f"drop-{share:g}" for share in hidden])
        found = _hidden(call, hidden, changes)
    else:
        name = f"{flags[0].strip('-').replace('-', '_')}.json"
        check_out(call.out, call.overwrite, name)
        oracle = flags == ["--oracle-step"]
        found = _oracle(call, changes) if oracle else _curve(call, changes, every=flags == ["--dial"])
        if call.out is not None:
            write_json(call.out / name, jsonable(found))
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
        both = measured(replace(call, out=out), [*changes, f"drop={share}"], f", {share:.0%} hidden")
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
    from fullrank.models.sequential.model import Recommender

    model = run.spec.model
    reasoner: Any = model.reasoner if isinstance(model, Recommender) else None
    if reasoner is None:
        raise UserError(
            f"{run.path} does not reason, so --dial has no effect; give a run with a reasoner", code="no-reasoner"
        )
    return [[f"reasoning.streams={count}"] for count in range(1, getattr(reasoner, "streams", 1) + 1)]
