"""`fullrank study`: a run measured again and again, with events hidden or by its reasoning steps.

`drop` hides events, `oracle-step` stops each user at their best step, `step-curve` and
`dial` go over all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.evaluate_runs import (
    Call,
    Measuring,
    OtherRun,
    check_saved,
    compare_results,
    measure_runs,
    metric_settings,
    names_metrics,
)
from fullrank.cli.options import (
    EVALUATION,
    REASONING,
    RunFolder,
    check_out,
    check_unset,
    names_of,
    option,
    spec_options,
    typed_settings,
)
from fullrank.cli.output import seconds
from fullrank.cli.print_evaluation import print_curve, print_hidden, print_oracle
from fullrank.cli.verbs import group, verb
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, jsonable, write_json

if TYPE_CHECKING:
    from fullrank.run import Run

MOST_SHARES = 100
"""Shares that `drop` takes."""
OF_STEPS = {
    "oracle-step": "Stop every user at their best step: a ceiling.\n\nIt reads the truth, and is no result of a model.",
    "step-curve": "Measure accuracy and time by reasoning steps.\n\nSeconds are those of 1,000 users.",
    "dial": "Measure every budget: the step curve by streams.",
}
"""Study of reasoning steps -> the text of its help."""


@group
def study() -> None:
    """Measure a run by hidden events or reasoning steps.

    All verbs take --json.

    \b
    fullrank study drop runs/sasrec runs/plr --shares 0.1,0.2,0.3
    fullrank study oracle-step runs/plr
    fullrank study step-curve runs/plr
    fullrank study dial runs/plr
    """


STEPS, STREAMS, *ADAPTIVE = REASONING.items()
"""Options of the budget of a model that reasons: its steps, its streams, and those that stop early."""


@verb(of=study, cls=spec_options(EVALUATION, dict([STEPS, STREAMS])))
def drop(
    context: typer.Context,
    run: RunFolder,
    shares: Annotated[str, option("SHARE,...", "Shares of each history that are hidden, beside none.")],
    output: Measuring,
    other: OtherRun = None,
) -> None:
    """Measure with shares of each history hidden.

    The same events are hidden for every run. Of two runs it prints the paired differences.

    \b
    fullrank study drop runs/sasrec --shares 0.1,0.2,0.3
    fullrank study drop runs/sasrec runs/plr --shares 0.2 --metric ndcg@10
    """
    hidden = read_shares(shares, output.settings or [])
    call = Call.of(output, typed_settings(context), run, other)
    check_saved(call, [f"drop-{share:g}" for share in hidden])
    _finish(call, lambda changes: _hidden(call, hidden, changes))


def over_steps(
    context: typer.Context,
    run: RunFolder,
    output: Measuring,
) -> None:
    """Measure the study that the verb names, and save it below --out."""
    call, name = Call.of(output, typed_settings(context), run), str(context.command.name)
    file = f"{name.replace('-', '_')}.json"
    check_out(output.out, output.overwrite, file)

    def measure(changes: list[str]) -> JsonObject:
        figures = _oracle(call, changes) if name == "oracle-step" else _curve(call, changes, every=name == "dial")
        if output.out is not None:
            write_json(output.out / file, jsonable(figures))
        return figures

    _finish(call, measure)


for name, text in OF_STEPS.items():
    flags = dict([STEPS, *ADAPTIVE]) if name == "dial" else REASONING
    text += f"\n\n\b\nfullrank study {name} runs/plr"
    verb(name, of=study, cls=spec_options(EVALUATION, flags), help=text)(over_steps)
del name, text, flags


def _finish(call: Call, measure: Callable[[list[str]], JsonObject]) -> None:
    _ = [run.spec.lists for run in call.runs]  # refuses a ranking model
    figures = measure(metric_settings(call))
    call.output.say(f"{call.output.split} split; in {seconds(call.output.spent)}")
    call.output.finish({"runs": [str(run.path) for run in call.runs], **figures, "seconds": call.output.spent})


def read_shares(text: str, changes: list[str]) -> list[float]:
    """Read `0.1,0.2` as shares, ascending and each once, after 0. Raises `UserError` for another text."""
    check_unset(changes, ("drop", "reasoning.adaptive"), "--shares", code="options-exclude-each")
    try:
        shares = {float(word) for word in text.split(",")}
    except ValueError:
        shares = {math.nan}
    if not all(0 <= share < 1 for share in shares):
        raise UserError(
            f"--shares {text!r} is no list of shares, each at least 0 and below 1: write it as --shares 0.1,0.2,0.3",
            code="not-shares",
        )
    if len(shares) > MOST_SHARES:
        raise UserError(
            f"--shares names {len(shares):,} shares, each of which is an evaluation: give at most {MOST_SHARES}",
            code="too-many-shares",
        )
    return sorted({0.0, *shares})


def _hidden(call: Call, shares: list[float], changes: list[str]) -> JsonObject:
    """Measure with each share of events hidden: the metrics of the run, or
    the differences of the two."""
    rows: list[JsonObject] = []
    for share in shares:
        out = None if call.output.out is None else call.output.out / f"drop-{share:g}"
        evaluations = measure_runs(call, [*changes, f"drop={share}"], f", {share:.0%} hidden", out=out)
        if len(evaluations) == 1:
            rows.append({"drop": share, **evaluations[0].dump()})
        else:
            differences = compare_results(evaluations[0], evaluations[1], [], all_of_them=names_metrics(changes))
            rows.append(
                {
                    "drop": share,
                    "metrics": {c.metric: c.dump() for c in differences},
                    "protocol": evaluations[0].protocol,
                }
            )
    print_hidden(call.output, call.runs, rows)
    return {"shares": rows}


def _oracle(call: Call, changes: list[str]) -> JsonObject:
    """Measure the ceiling of stopping every user at their best step, and print it."""
    from fullrank import api
    from fullrank.evaluation.reasoning_steps import LABEL

    (run,) = call.runs
    with call.output.progress(f"evaluate {run.path} after every step") as tick:
        ceilings = api.oracle_step(
            run, call.output.split, data=call.output.data, set=changes, device=call.output.device, progress=tick
        )
    print_oracle(call.output, ceilings)
    return {"oracle": {ceiling.metric: ceiling.dump() for ceiling in ceilings}, "label": LABEL}


def _curve(call: Call, changes: list[str], *, every: bool) -> JsonObject:
    """Measure over the steps, in the streams that are set; with `every` in one stream,
    in two, up to those trained."""
    from fullrank import api

    (run,) = call.runs
    evaluation = run.spec.lists.override(*changes)
    names = [str(name) for name in evaluation.names()] if "metrics" in names_of(changes) else [evaluation.selection]
    points: list[Any] = []
    for streams in _streams(run, changes) if every else [[]]:
        with call.output.progress(f"evaluate {run.path} over its steps{', '.join(['', *streams])}") as tick:
            points += api.step_curve(
                run,
                call.output.split,
                data=call.output.data,
                set=[*changes, *streams],
                metrics=names,
                device=call.output.device,
                progress=tick,
            )
    print_curve(call.output, points, names)
    return {"curve": [point.dump() | {"label": point.label} for point in points]}


def _streams(run: Run, changes: list[str]) -> list[list[str]]:
    """The settings of each number of streams that the run can answer with."""
    check_unset(changes, ("reasoning.streams",), "dial, which tries them all", code="options-exclude-each")
    reasoner: Any = getattr(run.spec.model, "reasoner", None)  # other kinds of model have no such setting
    if reasoner is None:
        raise UserError(
            f"{run.path} does not reason, so there is nothing to dial; give a run with a reasoner", code="no-reasoner"
        )
    return [[f"reasoning.streams={count}"] for count in range(1, getattr(reasoner, "streams", 1) + 1)]
