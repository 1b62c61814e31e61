"""The printed form of an evaluation of ranked lists: of one run, or of two on the same users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fullrank.cli.screen import Screen, seconds

if TYPE_CHECKING:
    from fullrank.evaluation import Comparison, EvaluationResult
    from fullrank.run import Run


def grid(metrics: dict[str, float]) -> tuple[list[str], list[list[Any]]]:
    """Metrics as a table: a row per metric, a column per k."""
    ks = sorted({int(name.split("@")[1]) for name in metrics})
    bases = list(dict.fromkeys(name.split("@")[0] for name in metrics))
    return ["metric", *(f"@{k}" for k in ks)], [[base, *(metrics.get(f"{base}@{k}") for k in ks)] for base in bases]


def single(screen: Screen, run: Run, found: EvaluationResult, spent: float) -> None:
    """The metrics of one run, and how they were measured."""
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
    say_bands(screen, found, main)
    if found.sampled:
        title = f"{protocol['sampled']['negatives']:,} shared negatives"
        rows = [[name, row["full"], row["sampled"], f"{row['gap']:+.4f}"] for name, row in found.sampled.items()]
        screen.table(("metric", "all items", title, "gap"), rows)
        if "note" in protocol["sampled"]:
            screen.say(f"note: {protocol['sampled']['note']}")
    screen.finish({"run": run.path, "recipe": run.spec.recipe, **found.dump(), "seconds": round(spent, 3)})


def say_bands(screen: Screen, found: EvaluationResult, main: str) -> None:
    """Recall by popularity of the target, at the list length of the metric `main`."""
    name = f"recall@{main.split('@')[1]}"
    bands = {label: part[name] for label, part in found.slices.get("target", {}).items() if name in part}
    if bands:
        screen.say(f"{name} where the target is " + ", ".join(f"{label} {v:.4f}" for label, v in bands.items()))
    cold = found.slices.get("cold", {}).get("cold", {})
    if name in cold:
        screen.say(f"{name} where training never saw the target: {cold[name]:.4f} ({cold['count']:,} users)")


def pair(
    screen: Screen,
    runs: tuple[Run, Run],
    found: tuple[EvaluationResult, EvaluationResult],
    rows: list[Comparison],
    spent: float,
) -> None:
    """The differences between two runs."""
    screen.say(f"A {runs[0].path}\nB {runs[1].path}")
    cells = [
        [c.metric, c.a, c.b, f"{c.difference:+.4f}", f"{c.interval[0]:+.4f} {c.interval[1]:+.4f}", c.p] for c in rows
    ]
    level = found[0].protocol["bootstrap"]["level"]
    screen.table(("metric", "A", "B", "B - A", f"{100 * level:g} % interval", "p"), cells)
    screen.say(f"{rows[0].users if rows else 0:,} users, paired; in {seconds(spent)}")
    if any(c.metric.startswith("bqs_like") for c in rows):
        screen.say("bqs_like (a stand-in, not BQS): above 0.5, B is better over head, mid and tail")
    screen.finish({
        "runs": [str(run.path) for run in runs],
        "metrics": {c.metric: c.dump() for c in rows},
        "protocol": found[0].protocol,
        "seconds": round(spent, 3),
    })  # fmt: skip
