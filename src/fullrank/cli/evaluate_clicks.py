"""What `fullrank evaluate` shows of click models: one run, or two on the same impressions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.cli.options import find_store
from fullrank.cli.screen import Screen, seconds
from fullrank.errors import UserError

if TYPE_CHECKING:
    from fullrank.evaluation import EvaluationResult


def show(
    screen: Screen,
    run: Path,
    other: Path | None,
    split: str,
    data: Path | None,
    metrics: list[str],
    changes: list[str],
    out: Path | None,
    device: str,
) -> None:
    """Evaluate, print, save."""
    if metrics and other is None:
        raise UserError("a click model always gets all of its metrics: leave out --metric")
    begun = time.perf_counter()
    one = _one(screen, run, split, data, changes, device)
    if other is None:
        if out is not None:
            one.save(out)
        _single(screen, run, one, time.perf_counter() - begun)
        return
    two = _one(screen, other, split, data, changes, device)
    if out is not None:
        one.save(out / "a")
        two.save(out / "b")
    _pair(screen, (run, other), (one, two), metrics, begun)


def _one(
    screen: Screen, path: Path, split: Any, data: Path | None, changes: list[str], device: str
) -> EvaluationResult:
    from fullrank import api
    from fullrank.run import Run

    run = Run.open(path)
    store = find_store(run, data)
    with screen.progress(f"evaluate {path}") as tick:
        found = api.evaluate(run, split, data=store, set=changes, device=device, progress=tick)
    if found.problem != "ranking":
        raise UserError(f"{path} ranks items and the other run predicts clicks; compare two of the same kind")
    return found


def _single(screen: Screen, path: Path, found: EvaluationResult, spent: float) -> None:
    rows = [[name, value, _span(found.interval.get(name))] for name, value in found.metrics.items()]
    boot = found.protocol["bootstrap"]
    screen.table(("metric", "value", f"{boot['level']:.0%} interval"), rows)
    curve = [[one.rows, one.probability, one.rate] for one in found.curve]
    screen.table(("rows", "predicted", "clicked"), curve, title="reliability")
    protocol = found.protocol
    groups = ""
    if protocol["gauc_groups"] is not None:
        groups = f", gauc over {protocol['gauc_groups']:,} groups ({protocol['gauc_left_out']:,} of one class left out)"
    screen.say(
        f"{protocol['rows']:,} impressions of the {protocol['split']} split, {protocol['clicks']:,} clicks{groups}; "
        f"in {seconds(spent)}"
    )
    screen.finish({"run": path, **found.dump(), "seconds": round(spent, 3)})


def _pair(
    screen: Screen,
    runs: tuple[Path, Path],
    found: tuple[EvaluationResult, EvaluationResult],
    metrics: list[str],
    begun: float,
) -> None:
    from fullrank.evaluation import compare
    from fullrank.evaluation.statistics import RESAMPLED

    rows = [compare(*found, name) for name in metrics or RESAMPLED]
    spent = time.perf_counter() - begun
    screen.say(f"A {runs[0]}\nB {runs[1]}")
    cells = [[c.metric, c.a, c.b, f"{c.difference:+.4f}", _span(c.interval, "+"), c.p] for c in rows]
    screen.table(("metric", "A", "B", "B - A", "95 % interval", "p"), cells)
    screen.say(f"{rows[0].users:,} impressions, paired; in {seconds(spent)}")
    screen.finish({
        "runs": [str(run) for run in runs],
        "metrics": {c.metric: c.dump() for c in rows},
        "protocol": found[0].protocol,
        "seconds": round(spent, 3),
    })  # fmt: skip


def _span(pair: tuple[float, float] | None, sign: str = "") -> str:
    if pair is None or pair[0] != pair[0]:
        return ""
    return f"{pair[0]:{sign}.4f} {pair[1]:{sign}.4f}"
