"""The printed form of an evaluation, of either problem: of one run, or of two on the same users or impressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fullrank.cli.output import Output, seconds
from fullrank.metrics.names import PAIRED
from fullrank.problem import Problem

if TYPE_CHECKING:
    from fullrank.evaluation import Comparison, EvaluationResult
    from fullrank.run import Run


def grid(metrics: dict[str, float]) -> tuple[list[str], list[list[Any]]]:
    """Metrics as a table: a row per metric, a column per k."""
    ks = sorted({int(name.split("@")[1]) for name in metrics})
    bases = list(dict.fromkeys(name.split("@")[0] for name in metrics))
    return ["metric", *(f"@{k}" for k in ks)], [[base, *(metrics.get(f"{base}@{k}") for k in ks)] for base in bases]


def single(screen: Output, run: Run, found: EvaluationResult, spent: float) -> None:
    """The metrics of one run, and how they were measured."""
    SINGLE[found.problem](screen, run, found, spent)


def pair(
    screen: Output, runs: Sequence[Run], found: Sequence[EvaluationResult], rows: Sequence[Comparison], spent: float,
    *, stand_in: bool = False,
) -> None:  # fmt: skip
    """The differences between two runs, row by row of `rows`; `stand_in`: bqs_like was asked for, so it is printed."""
    screen.say(f"A {runs[0].path}\nB {runs[1].path}")
    printed = [c for c in rows if stand_in or not c.metric.startswith(PAIRED)]
    cells = [[c.metric, c.a, c.b, f"{c.difference:+.4f}", _span(c.interval, "+"), c.p] for c in printed]
    problem = found[0].problem
    # runs of ranking are compared at `compare`'s own level, whatever their own intervals have
    level = found[0].protocol["bootstrap"]["level"] if problem == "retrieval" else 0.95
    screen.table(("metric", "A", "B", "B - A", f"{100 * level:g} % interval", "p"), cells)
    what = "users" if problem == "retrieval" else "impressions"
    screen.say(f"{rows[0].users if rows else 0:,} {what}, paired; in {seconds(spent)}")
    if any(c.metric.startswith(PAIRED) for c in printed):
        screen.say("bqs_like (a stand-in, not BQS): above 0.5, B is better over head, mid and tail")
    screen.finish({
        "runs": [str(run.path) for run in runs],
        "metrics": {c.metric: c.dump() for c in rows},
        "protocol": found[0].protocol,
        "seconds": round(spent, 3),
    })  # fmt: skip


def _single_lists(screen: Output, run: Run, found: EvaluationResult, spent: float) -> None:
    screen.table(*grid(found.metrics))
    protocol = found.protocol
    screen.say(
        f"{protocol['users']:,} users of the {protocol['split']} split, {protocol['items']:,} items, "
        f"candidates {protocol['candidates']}, seen items: {protocol['seen']}; in {seconds(spent)}"
    )
    if found.mean_steps is not None:
        screen.say(f"{found.mean_steps:.2f} of at most {protocol['reasoning']['steps']} reasoning steps a user")
    main = run.spec.evaluation.selection
    if main in found.interval and found.protocol["bootstrap"]["samples"]:
        low, high = found.interval[main]
        screen.say(
            f"{main} {found.metrics[main]:.4f}, {protocol['bootstrap']['level']:.0%} interval {low:.4f} to {high:.4f}"
        )
    _say_bands(screen, found, main)
    if found.sampled:
        title = f"{protocol['sampled']['negatives']:,} shared negatives"
        rows = [[name, row["full"], row["sampled"], f"{row['gap']:+.4f}"] for name, row in found.sampled.items()]
        screen.table(("metric", "all items", title, "gap"), rows)
        if "note" in protocol["sampled"]:
            screen.say(f"note: {protocol['sampled']['note']}")
    screen.finish({"run": run.path, "recipe": run.spec.recipe, **found.dump(), "seconds": round(spent, 3)})


def _say_bands(screen: Output, found: EvaluationResult, main: str) -> None:
    """Recall by popularity of the target, at the list length of the metric `main`."""
    name = f"recall@{main.split('@')[1]}"
    bands = {label: part[name] for label, part in found.slices.get("target", {}).items() if name in part}
    if bands:
        screen.say(f"{name} where the target is " + ", ".join(f"{label} {v:.4f}" for label, v in bands.items()))
    cold = found.slices.get("cold", {}).get("cold", {})
    if name in cold:
        screen.say(f"{name} where training never saw the target: {cold[name]:.4f} ({cold['count']:,} users)")


def _single_clicks(screen: Output, run: Run, found: EvaluationResult, spent: float) -> None:
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
    screen.finish({"run": run.path, **found.dump(), "seconds": round(spent, 3)})


SINGLE: Mapping[Problem, Callable[[Output, Run, EvaluationResult, float], None]] = {
    "retrieval": _single_lists,
    "ranking": _single_clicks,
}


def _span(pair: tuple[float, float] | None, sign: str = "") -> str:
    if pair is None or pair[0] != pair[0]:
        return ""
    return f"{pair[0]:{sign}.4f} {pair[1]:{sign}.4f}"
