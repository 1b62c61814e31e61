"""Tables of `fullrank evaluate` and `study`: one evaluation of either problem, differences of two, the studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fullrank.cli.output import Output, seconds
from fullrank.core.files import JsonObject
from fullrank.core.registry import Problem

if TYPE_CHECKING:
    from fullrank.evaluation import Comparison, EvaluationResult, OracleCeiling, StepCurvePoint
    from fullrank.run import Run


SHOWN = 10
"""List length of the metrics that a study prints where none are named."""


def print_single(
    output: Output,
    source: Mapping[str, Any],
    evaluation: EvaluationResult,
    *,
    whole: bool = True,
    selection: str | None = None,
) -> None:
    """Print the metrics of a run or of lists, which `source` names in the JSON, and how they were measured.

    Of a recommender the main metrics, `selection` first, or with `whole` all.
    """
    SINGLE[evaluation.problem](output, evaluation, whole, selection)
    output.finish({**source, **evaluation.dump(), "seconds": output.spent})


def print_pair(
    output: Output,
    names: Sequence[str],
    evaluations: Sequence[EvaluationResult],
    rows: Sequence[Comparison],
    *,
    stand_in: bool = False,
) -> None:
    """Print the differences between two runs, or a run and lists; `stand_in`: print bqs_like, too."""
    from fullrank.evaluation.spec import history_words
    from fullrank.metrics.names import PAIRED

    output.say(f"A {names[0]}\nB {names[1]}")
    printed = [c for c in rows if stand_in or not c.metric.startswith(PAIRED)]
    cells = [[c.metric, c.a, c.b, f"{c.difference:+.4f}", _span(c.interval, "+"), c.p] for c in printed]
    problem = evaluations[0].problem
    # runs of ranking are compared at `compare`'s own level, whatever their own intervals have
    level = evaluations[0].protocol["bootstrap"]["level"] if problem == "retrieval" else 0.95
    output.table(("metric", "A", "B", "B - A", f"{100 * level:g} % interval", "p"), cells)
    what = "users" if problem == "retrieval" else "impressions"
    history = history_words(evaluations[0].protocol)
    manner = f"paired, {history}" if history else "paired"
    if any(c.metric == "gauc" for c in rows):
        manner += f"; gauc by {evaluations[0].protocol['gauc_groups']:,} groups"
    output.say(f"{rows[0].users if rows else 0:,} {what}, {manner}; in {seconds(output.spent)}")
    if any(c.metric.startswith(PAIRED) for c in printed):
        output.say("bqs_like (a stand-in, not BQS): above 0.5, B is better over head, mid and tail")
    output.notes(dict.fromkeys(text for evaluation in evaluations for text in evaluation.notes))
    output.finish(
        {
            "runs": list(names),
            "metrics": {c.metric: c.dump() for c in rows},
            "protocol": evaluations[0].protocol,
            "seconds": output.spent,
        }
    )


def _print_retrieval(output: Output, evaluation: EvaluationResult, whole: bool, selection: str | None) -> None:
    """Print the metrics of lists, whom they are measured on, and notes."""
    from fullrank.evaluation.summary import metric_table, population

    table = metric_table(evaluation.metrics, evaluation.per_user.values, whole=whole, selection=selection)
    output.table(table.headers, table.rows)
    if table.note:
        output.say(table.note)
    output.say(f"{population(evaluation.protocol)}; in {seconds(output.spent)}")
    output.notes(evaluation.notes)
    protocol, main = evaluation.protocol, table.main
    if evaluation.mean_steps is not None:
        output.say(f"{evaluation.mean_steps:.2f} of at most {protocol['reasoning']['steps']} reasoning steps a user")
    if main in evaluation.interval and protocol["bootstrap"]["samples"]:
        low, high = evaluation.interval[main]
        output.say(
            f"{main} {evaluation.metrics[main]:.4f}, {protocol['bootstrap']['level']:.0%} interval {low:.4f} to "
            f"{high:.4f}"
        )
    _say_bands(output, evaluation, main)
    if evaluation.sampled:
        title = f"{protocol['sampled']['negatives']:,} shared negatives"
        rows = [[name, row["full"], row["sampled"], f"{row['gap']:+.4f}"] for name, row in evaluation.sampled.items()]
        output.table(("metric", "all items", title, "gap"), rows)
        if "note" in protocol["sampled"]:
            output.say(f"note: {protocol['sampled']['note']}")


def _say_bands(output: Output, evaluation: EvaluationResult, main: str) -> None:
    """Print recall by popularity and by type of the target, at the list
    length of the metric `main`."""
    name = f"recall@{main.split('@')[1]}"
    for kind in ("target", "type"):
        bands = {label: part[name] for label, part in evaluation.slices.get(kind, {}).items() if name in part}
        if bands:
            output.say(f"{name} where the target is " + ", ".join(f"{label} {v:.4f}" for label, v in bands.items()))
    cold = evaluation.slices.get("cold", {}).get("cold", {})
    if name in cold:
        output.say(f"{name} where training never saw the target: {cold[name]:.4f} ({cold['count']:,} users)")


def _print_ranking(output: Output, evaluation: EvaluationResult, _whole: bool, _selection: str | None) -> None:
    """Print the metrics of click probabilities, slices and the reliability curve."""
    rows = [[name, value, _span(evaluation.interval.get(name))] for name, value in evaluation.metrics.items()]
    boot = evaluation.protocol["bootstrap"]
    output.table(("metric", "value", f"{boot['level']:.0%} interval"), rows)
    calibration = evaluation.protocol.get("calibration")
    if calibration is not None:
        before = ", ".join(f"{name} {value:.4f}" for name, value in calibration["before"].items())
        overlap = ", these very rows" if evaluation.protocol["split"] == calibration["fitted_on"] else ""
        output.say(
            f"calibrated ({calibration['method']}, fitted on {calibration['rows']:,} {calibration['fitted_on']} "
            f"impressions{overlap}); before: {before}"
        )
    for name, labels in evaluation.slices.items():
        cells = [[label, *numbers.values()] for label, numbers in labels.items()]
        output.table((name, "rows", "clicks", *evaluation.metrics), cells)
    curve = [[bucket.rows, bucket.probability, bucket.rate] for bucket in evaluation.curve]
    output.table(("rows", "predicted", "clicked"), curve, title="reliability")
    protocol = evaluation.protocol
    groups = ""
    if protocol["gauc_groups"] is not None:
        counts = f"{protocol['gauc_groups']:,} groups ({protocol['gauc_left_out']:,} of one class left out)"
        groups = f", gauc and its interval over {counts}"
    output.say(
        f"{protocol['rows']:,} impressions of the {protocol['split']} split, {protocol['clicks']:,} clicks{groups}; "
        f"in {seconds(output.spent)}"
    )


SINGLE: Mapping[Problem, Callable[[Output, EvaluationResult, bool, str | None], None]] = {
    "retrieval": _print_retrieval,
    "ranking": _print_ranking,
}


def _span(pair: tuple[float, float] | None, sign: str = "") -> str:
    if pair is None or pair[0] != pair[0]:
        return ""
    return f"{pair[0]:{sign}.4f} {pair[1]:{sign}.4f}"


def print_hidden(output: Output, runs: Sequence[Run], rows: Sequence[JsonObject]) -> None:
    """Print metrics by the share of events that is hidden; of two runs their differences."""
    from fullrank.evaluation.spec import history_words
    from fullrank.metrics.names import PAIRED

    if len(runs) == 1:
        metrics = list(rows[0]["metrics"])
        names = ([name for name in metrics if name.endswith(f"@{SHOWN}")] or metrics)[:5]
        output.table(("hidden", *names), [[f"{row['drop']:.0%}", *(row["metrics"][n] for n in names)] for row in rows])
        output.say(
            "Share of each history's events that the model did not see; the same events for every run; "
            f"{history_words(rows[0]['protocol'])}."
        )
        return
    output.say(f"A {runs[0].path}\nB {runs[1].path}")
    cells = [
        [f"{row['drop']:.0%}", c["metric"], c["a"], c["b"], f"{c['difference']:+.4f}", c["p"]]
        for row in rows
        for c in row["metrics"].values()
        if not c["metric"].startswith(PAIRED)  # a stand-in, printed on request only; the JSON has it
    ]
    output.table(("hidden", "metric", "A", "B", "B - A", "p"), cells)
    output.say(f"{history_words(rows[0]['protocol'])}.".capitalize())


def print_oracle(output: Output, ceilings: Sequence[OracleCeiling]) -> None:
    """Print the ceiling of stopping every user at their best step."""
    from fullrank.evaluation.reasoning_steps import LABEL

    shown = [ceiling for ceiling in ceilings if ceiling.metric.endswith(f"@{SHOWN}")] or ceilings
    most = len(ceilings[0].steps) - 1
    cells = [
        [ceiling.metric, ceiling.fixed, ceiling.best, f"{ceiling.gap:+.4f}", _span(ceiling.interval, "+")]
        for ceiling in shown
    ]
    output.table(("metric", f"after {most}", "at each user's best step", "gap", "interval"), cells)
    output.say(f"Oracle ({LABEL}): every user is stopped at the step, 0 to {most}, that finds their target best.")


def print_curve(output: Output, points: Sequence[StepCurvePoint], names: Sequence[str]) -> None:
    """Print accuracy and time by reasoning steps."""
    cells = [
        [point.streams, point.label, point.steps, *(point.metrics[name] for name in names), point.seconds]
        for point in points
    ]
    output.table(("streams", "steps", "taken", *names, "s / 1,000 users"), cells)
