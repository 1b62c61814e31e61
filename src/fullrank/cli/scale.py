"""`fullrank scale`: scaling laws of runs (fit), what to train by them (advise), and the growth of a catalogue.

`scale growth` loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.early_checks import check_store
from fullrank.cli.option_groups import Written
from fullrank.cli.options import argument, check_out, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import group, verb
from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject

if TYPE_CHECKING:
    from fullrank.analysis.scaling.fit import Law
    from fullrank.analysis.scaling.growth import Growth
    from fullrank.analysis.scaling.holdout import HeldOut
    from fullrank.analysis.scaling.ladder import Ladder

REFERENCES = ("srt",)


@dataclass(frozen=True)
class Runs:
    """The runs that a law is fitted to, and the resamples of them."""

    file: Annotated[Path, argument("FILE", "A CSV of runs, or rows.jsonl or the --results of a sweep.")]
    metric: Annotated[
        str | None, option("NAME", "Which metric: NAME of the columns NAME_ep5, or ndcg@10 of a sweep.")
    ] = None
    resamples: Annotated[int, option("N", "Resamples of the runs that intervals are made of.")] = 200
    seed: Annotated[int, option("N", "Seed of the resamples.", min=0)] = 0
    metric_col: Annotated[str | None, option("COL", "Column of the metric; a row is a moment of a run.")] = None
    flops_col: Annotated[str | None, option("COL", "Column of FLOPs: of an epoch, or spent until the row.")] = None
    params_col: Annotated[str | None, option("COL", "Column of parameters, the N.")] = None
    data_col: Annotated[str | None, option("COL", "Column of interactions, the T.")] = None
    run_col: Annotated[str | None, option("COL", "Column of the runs' names.")] = None

    def ladder(self) -> Ladder:
        """The runs of the file."""
        from fullrank.analysis.scaling.read import ColumnNames, read_ladder

        columns = ColumnNames(self.run_col, self.flops_col, self.metric_col, self.params_col, self.data_col)
        return read_ladder(self.file, metric=self.metric, columns=columns)


@group
def scale() -> None:
    """Fit scaling laws to runs and predict larger ones.

    All verbs take --json.

    \b
    fullrank scale fit runs.csv --form sigmoid --json
    fullrank scale advise runs.csv --flops 1e15
    fullrank scale growth data/shop
    """


@verb(of=scale)
def fit(
    runs: Runs,
    output: Written,
    form: Annotated[str, option("sigmoid|linear|power|loss", "The law; the first two read FLOPs alone.")] = "sigmoid",
    out: Annotated[Path | None, option("FOLDER", "Write report.html and fit.json there.")] = None,
    reference: Annotated[str | None, option("srt", "Compare with the constants of SRT.")] = None,
) -> None:
    """Fit a law to runs, with intervals and what stays open.

    sigmoid: the best metric by ln FLOPs, a / (1 + exp(-k (ln F - x0))) + c. linear: a line in ln FLOPs.
    power: the metric by size and data, E - A/N^alpha - B/T^beta; loss: with plus signs. Then the
    largest data set and the largest size are held out and predicted. --out needs the extra `report`.

    \b
    fullrank scale fit runs.csv --form sigmoid --out reports/scaling
    fullrank scale fit runs/ladder/rows.jsonl --form power --json
    fullrank scale fit points.csv --metric-col ndcg --flops-col spent
    """
    from fullrank.analysis.scaling.fit import SRT, fit_law, srt_distance

    if reference is not None and reference not in REFERENCES:
        raise unknown("reference", reference, REFERENCES)
    if reference is not None and form not in SRT:
        raise UserError(
            f"--reference srt has no constants of the form {form!r} (allowed: {', '.join(SRT)}); leave it out",
            code="option-without-effect",
        )
    _check_report(out, output.overwrite, "fit.json")
    ladder = runs.ladder()
    with output.progress(f"fit {form}") as tick:
        law = fit_law(ladder, form, resamples=runs.resamples, seed=runs.seed, tell=tick)
    held, left_out = _hold_out_largest(output, ladder, form, runs)
    facts: JsonObject = {
        **law.dump(),
        "source": str(runs.file),
        "held_out": [part.dump() for part in held],
        "not_held_out": left_out,
    }
    if reference is not None:
        facts["reference"] = {"name": reference, "parameters": SRT[form], "largest_gap": srt_distance(law)}
    _print(output, law, facts)
    if out is not None:
        from fullrank.analysis.report import Missing
        from fullrank.analysis.report.scaling import scaling_report

        with output.progress("report") as tick:
            page = scaling_report(
                ladder, known={law.form.name: law}, held=held, resamples=runs.resamples, seed=runs.seed, tell=tick
            )
        facts["out"] = _save(output, page, facts, out, "fit.json")
        for figure in page.figures:
            if isinstance(figure, Missing):
                output.say(f"left out: {figure.title} ({figure.why.rstrip('.')})")
    output.say(f"in {seconds(output.spent)}")
    output.finish(facts)


@verb(of=scale)
def advise(
    runs: Runs,
    output: Output,
    flops: Annotated[float, option("F", "What there is to spend, such as 1e15.")],
    data: Annotated[float | None, option("T", "Interactions that there are.  [default: no limit]")] = None,
    form: Annotated[str, option("power|loss", "The law; loss: a smaller metric is better.")] = "power",
) -> None:
    """Say what to train with a number of FLOPs.

    Size, data and epochs of the best runs at such a budget, and the metric to expect, with
    intervals over resampled runs; beside them what the law of size and data would choose. FLOPs are
    counted as those of the file are.

    \b
    fullrank scale advise runs.csv --flops 1e15
    fullrank scale advise runs.csv --flops 1e15 --data 2e6 --json
    """
    from fullrank.analysis.scaling.frontier import advise as _advise

    ladder = runs.ladder()
    with output.progress("fit") as tick:
        advice = _advise(ladder, flops, form=form, data=data, resamples=runs.resamples, seed=runs.seed, tell=tick)
    named = {"parameters N": advice.parameters, "interactions T": advice.data, "epochs": advice.epochs}
    _readings(output, f"{flops:g} FLOPs", {**named, ladder.metric: advice.metric})
    output.say()
    words = {"parameters": "parameters N", "data": "interactions T", "metric": ladder.metric}
    _readings(output, f"by the {form} law", {words[name]: reading for name, reading in advice.by_law.items()})
    output.notes(advice.notes)
    output.finish({**advice.dump(), "source": str(runs.file)})


@verb(of=scale)
def growth(
    store: Annotated[
        Path, argument("STORE", "A store of events, as `fullrank prepare` makes it.", callback=check_store)
    ],
    output: Written,
    out: Annotated[Path | None, option("FOLDER", "Write report.html and growth.json there.")] = None,
    dim: Annotated[int, option("D", "Numbers in the vector of an item.", min=1, max=1_000_000)] = 64,
    seed: Annotated[int, option("N", "Order in which users are added.", min=0)] = 0,
) -> None:
    """Show how the catalogue grows with users and events.

    Users are added in the order in which `fullrank subset` takes them, so the numbers at a share are
    those of that subset. Then the parameters of models with a table of item vectors, and how events
    are spread over items: Figures 1 and 3 of SRT for your data. --out needs the extra `report`.

    \b
    fullrank scale growth data/shop
    fullrank scale growth data/shop --dim 128 --out reports/growth --json
    """
    from fullrank.analysis.scaling.growth import catalogue_growth

    _check_report(out, output.overwrite, "growth.json")
    grown = catalogue_growth(store, seed=seed, dim=dim)
    _print_growth(output, grown)
    facts: JsonObject = grown.dump()
    if out is not None:
        from fullrank.analysis.report.growth import growth_report

        facts["out"] = _save(output, growth_report(grown), facts, out, "growth.json")
    output.say(f"in {seconds(output.spent)}")
    output.finish(facts)


def _check_report(out: Path | None, overwrite: bool, name: str) -> None:
    """Check, before minutes are spent, that a report and the file `name` can be
    written into the folder `out`."""
    check_out(out, overwrite, "report.html", name)
    if out is not None:
        from fullrank.analysis.report.page import check_extra

        check_extra()


def _save(output: Output, page: Any, facts: JsonObject, out: Path, name: str) -> str:
    """Write the page and the facts into a folder; returns the folder's name."""
    from fullrank.core.files import jsonable, write_json

    page.save(out / "report.html")
    write_json(out / name, jsonable(facts))
    output.say(f"{out / 'report.html'} and {name}", wrap=False)
    return str(out)


def _hold_out_largest(output: Output, ladder: Ladder, form: str, runs: Runs) -> tuple[list[HeldOut], dict[str, str]]:
    """Predict the largest data set and the largest size from the rest; also the
    reasons why one could not be."""
    from fullrank.analysis.scaling.holdout import By, hold_out

    held: list[HeldOut] = []
    left_out: dict[str, str] = {}
    axes: tuple[By, By] = ("data", "size")
    for by in axes:
        try:
            with output.progress(f"hold out the largest {by}") as tick:
                held.append(hold_out(ladder, form, by, resamples=runs.resamples, seed=runs.seed, tell=tick))
        except UserError as error:
            left_out[by] = str(error)
    return held, left_out


def _print(output: Output, law: Law, facts: JsonObject) -> None:
    """Print the parameters of a law, what stays open, and its predictions of what was held out."""
    named = {**law.parameters, **law.derived}
    output.table(
        (law.form.name, "value", "from", "to"),
        [[name, _short(value), *map(_short, law.intervals[name])] for name, value in named.items()],
    )
    output.say(f"rmse {law.rmse:.5f} on {len(law.residuals)} points of {law.runs} runs")
    if law.end_range is not None:
        name = "asymptote" if law.derived else "E"
        low, high = law.end_range
        output.say(f"{name} fits about as well (rmse at most a tenth more) from {low:.3g} to {high:.3g}")
    for doubt in law.unidentified:
        output.say(f"not determined ({doubt.ground}): {doubt.text}")
    for part in facts["held_out"]:
        output.say(
            f"without the {part['runs']} runs of the largest {part['without_the_largest']}: rmse {part['rmse']:.5f}, "
            f"largest error {part['largest_error']:.5f}, {part['inside_interval']:.0%} inside the interval "
            f"(nearest point: {part['rmse_of_nearest']:.5f})"
        )
    for by, why in facts["not_held_out"].items():
        output.say(f"the largest {by} was not held out: {why}")
    if paper := facts.get("reference"):
        output.say(f"largest distance from the law of {paper['name']}: {paper['largest_gap']:.5f}")


def _readings(output: Output, title: str, readings: dict[str, tuple[float, float, float]]) -> None:
    output.table((title, "value", "from", "to"), [[name, *map(_short, reading)] for name, reading in readings.items()])


def _short(value: float) -> str:
    return f"{value:.4g}"


def _print_growth(output: Output, grown: Growth) -> None:
    """Print the growth of a catalogue as tables and sentences."""
    import numpy as np

    from fullrank.analysis.scaling.growth import growth_sentences, short_number

    models = [f"table + {short_number(other)}" for other in grown.others]
    rows = np.column_stack([grown.users, grown.interactions, grown.items, grown.parameters]).tolist()
    output.table(("users", "interactions", "items", *models), rows)
    output.say()
    bins = [(f"{low:,} to {high:,}", count, count / len(grown.per_item)) for low, high, count in grown.histogram]
    output.table(("events of an item", "items", "share"), bins)
    output.say()
    for sentence in growth_sentences(grown):
        output.say(sentence)
