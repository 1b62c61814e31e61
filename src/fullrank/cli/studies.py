"""What `fullrank evaluate` measures beside one setting: with events hidden, at the best step, and over all steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.cli.options import find_store
from fullrank.cli.output import Output, seconds
from fullrank.core.errors import UserError
from fullrank.core.files import write_json
from fullrank.metrics.names import PAIRED
from fullrank.ops.plain import plain

if TYPE_CHECKING:
    from fullrank.run import Run

SHOWN = 10
"""List length of the metrics that are printed where none are named."""


def study(
    screen: Output, asked: dict[str, bool], paths: list[Path], *, shares: str | None, split: Any, data: Path | None,
    changes: list[str], device: str, out: Path | None,
) -> None:  # fmt: skip
    """Measure the one thing that is asked for, print it, and save it below `out`."""
    given = [flag for flag, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} are given together; ask for one at a time")
    if given != ["--drop"] and len(paths) > 1:
        raise UserError(f"{given[0]} is about one run, and two are given; ask for each alone")
    parts = None if shares is None else read_shares(shares, changes)
    from fullrank.run import Run

    runs = [Run.open(path) for path in paths]
    stores = [find_store(run, data) for run in runs]
    how = {"split": split, "device": device}
    begun = time.perf_counter()
    if parts is not None:
        found = _dropped(screen, runs, stores, parts, changes, how, out)
    elif given == ["--oracle-step"]:
        found = _oracle(screen, runs[0], stores[0], changes, how)
    else:
        found = _curve(screen, runs[0], stores[0], changes, how, every=given == ["--dial"])
    if out is not None and parts is None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / f"{given[0].strip('-').replace('-', '_')}.json", plain(found))
    spent = time.perf_counter() - begun
    screen.say(f"{split} split; in {seconds(spent)}")
    screen.finish({"runs": [str(run.path) for run in runs], **found, "seconds": round(spent, 3)})


def read_shares(text: str, changes: list[str]) -> list[float]:
    """`0.1,0.2` as shares, ascending and each once, after 0. Raises `UserError` for what is none."""
    if any(change.partition("=")[0].strip() in ("drop", "reasoning.adaptive") for change in changes):
        raise UserError(
            "--drop says which shares are hidden, of whole evaluations: leave drop and adaptive out of --set"
        )
    try:
        shares = {float(word) for word in text.split(",")}
    except ValueError:
        raise UserError(f"--drop {text!r} is no list of shares; write it as --drop 0.1,0.2,0.3") from None
    for share in shares:
        if not 0 <= share < 1:
            raise UserError(f"--drop {share:g}: a share is at least 0 and below 1, such as --drop 0.1,0.2,0.3")
    return sorted({0.0, *shares})


def _dropped(
    screen: Output, runs: list[Run], stores: list[Path], shares: list[float], changes: list[str], how: dict[str, Any],
    out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    from fullrank import api

    rows: list[dict[str, Any]] = []
    for share in shares:
        both: list[Any] = []
        for place, (run, store) in enumerate(zip(runs, stores, strict=True)):
            with screen.progress(f"evaluate {run.path}, {share:.0%} hidden") as tick:
                both.append(api.evaluate(run, data=store, set=[*changes, f"drop={share}"], progress=tick, **how))
            if out is not None:
                both[-1].save(out / f"drop-{share:g}" / ("ab"[place] if len(runs) > 1 else ""))
        if len(both) == 1:
            rows.append({"drop": share, **both[0].dump()})
        else:
            from fullrank.cli.evaluate import compared

            named = any(change.startswith(("metrics", "ks")) for change in changes)
            made = compared(both[0], both[1], [], all_of_them=named)
            rows.append({"drop": share, "metrics": {c.metric: c.dump() for c in made}, "protocol": both[0].protocol})
    (_print_dropped if len(runs) == 1 else _print_pairs)(screen, runs, rows, changes)
    return {"shares": rows}


def _print_dropped(screen: Output, runs: list[Run], rows: list[dict[str, Any]], changes: list[str]) -> None:
    every = list(rows[0]["metrics"])
    names = [name for name in every if name.endswith(f"@{SHOWN}")] or every
    screen.table(("hidden", *names[:5]), [[f"{r['drop']:.0%}", *(r["metrics"][n] for n in names[:5])] for r in rows])
    screen.say("Share of each history's events that the model did not see; the same events for every run.")


def _print_pairs(screen: Output, runs: list[Run], rows: list[dict[str, Any]], changes: list[str]) -> None:
    screen.say(f"A {runs[0].path}\nB {runs[1].path}")
    cells = [
        [f"{row['drop']:.0%}", c["metric"], c["a"], c["b"], f"{c['difference']:+.4f}", c["p"]]
        for row in rows
        for c in row["metrics"].values()
        if not c["metric"].startswith(PAIRED)  # a stand-in, printed on request only; the JSON has it
    ]
    screen.table(("hidden", "metric", "A", "B", "B - A", "p"), cells)


def _oracle(screen: Output, run: Run, store: Path, changes: list[str], how: dict[str, Any]) -> dict[str, Any]:
    from fullrank import api
    from fullrank.evaluation.reasoning_steps import LABEL

    with screen.progress(f"evaluate {run.path} after every step") as tick:
        found = api.oracle_step(run, data=store, set=changes, progress=tick, **how)
    shown = [one for one in found if one.metric.endswith(f"@{SHOWN}")] or found
    most = len(found[0].steps) - 1
    cells = [
        [one.metric, one.fixed, one.best, f"{one.gap:+.4f}", f"{one.interval[0]:+.4f} {one.interval[1]:+.4f}"]
        for one in shown
    ]
    screen.table(("metric", f"after {most}", "at each user's best step", "gap", "interval"), cells)
    screen.say(f"Oracle ({LABEL}): every user is stopped at the step, 0 to {most}, that finds their target best.")
    return {"oracle": {one.metric: one.dump() for one in found}, "label": LABEL}


def _curve(
    screen: Output, run: Run, store: Path, changes: list[str], how: dict[str, Any], *, every: bool
) -> dict[str, Any]:
    """Over the steps, in the streams that are set; with `every` in one stream, in two, and so on to those trained."""
    from fullrank import api

    named = [change.partition("=")[2] for change in changes if change.partition("=")[0].strip() == "metrics"]
    own = run.spec.lists.override(*changes)
    names = [str(name) for name in own.names()] if named else [own.selection]
    found: list[Any] = []
    for counted in _streams(run, changes) if every else [[]]:
        with screen.progress(f"evaluate {run.path} over its steps{', '.join(['', *counted])}") as tick:
            asked = [*changes, *counted]
            found += api.step_curve(run, data=store, set=asked, metrics=names, progress=tick, **how)
    cells = [[one.streams, one.label, one.steps, *(one.metrics[name] for name in names), one.seconds] for one in found]
    screen.table(("streams", "steps", "taken", *names, "s / 1,000 users"), cells)
    return {"curve": [one.dump() | {"label": one.label} for one in found]}


def _streams(run: Run, changes: list[str]) -> list[list[str]]:
    """One setting for each number of streams that the run can answer with."""
    if any(change.partition("=")[0].strip() == "reasoning.streams" for change in changes):
        raise UserError("--dial goes through the numbers of streams itself: leave --reasoning-streams out")
    reasoner: Any = getattr(run.spec.model, "reasoner", None)
    if reasoner is None:
        raise UserError(f"{run.path} does not reason, so it has no dial; give a run with a reasoner")
    return [[f"reasoning.streams={count}"] for count in range(1, getattr(reasoner, "streams", 1) + 1)]
