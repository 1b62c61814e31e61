"""`fullrank report` and `attention`: runs side by side, on one HTML page, and in what they attend to of one history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.early_checks import check_runs, check_settings
from fullrank.cli.option_groups import SampleOptions, WrittenBySettings
from fullrank.cli.options import Device, MovedStore, Split, argument, check_out, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.registry import Problem

if TYPE_CHECKING:
    from fullrank.analysis.diagnostics.explain import Explanation
    from fullrank.analysis.report.page import Report
    from fullrank.evaluation import EvaluationResult
    from fullrank.run import Run

SHOWN = 30
"""Characters of a title."""


@verb()
def report(
    runs: Annotated[
        list[Path], argument("RUN...", "Run folders, as `fullrank train` writes them.", callback=check_runs)
    ],
    out: Annotated[Path, option("FILE", "The page to write (.html).")],
    sample: SampleOptions,
    output: WrittenBySettings,
    evaluations: Annotated[
        list[str] | None,
        option(
            "RUN=FOLDER",
            "What `fullrank evaluate --out FOLDER` kept of a run (by its folder's name); may be repeated.",
            "--evaluation",
        ),
    ] = None,
) -> None:
    """Write one HTML page about runs, the answer first.

    Which is best and for whom: paired differences from the best baseline, recall by popularity,
    lists of five users. Of ranking models: accuracy and calibration. The page needs no network and
    runs no script. What a run folder holds already (evaluation.json, diagnosis.jsonl) is taken, the
    rest is measured. --set changes how the runs are evaluated. Needs the extra `report`.

    \b
    fullrank report runs/sasrec --out report.html
    fullrank report runs/* --out report.html --set seen=exclude
    fullrank report runs/rankmixer runs/rankelastor --out clicks.html
    """
    check_out(out, output.overwrite, suffixes=(".html", ".htm"))
    for run in runs:
        check_settings(run, output.settings or (), evaluation=True)
    from fullrank import api

    with output.stages() as tell:
        saved = _load_evaluations(evaluations or [])
        page = api.report(runs, out, **vars(sample), set=output.settings or (), evaluations=saved, tell=tell)
    _print(output, page, out)


def _load_evaluations(words: list[str]) -> dict[str, EvaluationResult]:
    """The evaluations of `RUN=FOLDER` words, by the names of the runs."""
    from fullrank.evaluation import EvaluationResult

    evaluations: dict[str, EvaluationResult] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals or not name or not folder:
            raise UserError(
                f"--evaluation {word!r} is not RUN=FOLDER, such as --evaluation sasrec=results/sasrec",
                code="not-name-and-value",
            )
        if name in evaluations:
            raise UserError(f"--evaluation is given twice for {name!r}; keep one", code="given-twice")
        evaluations[name] = EvaluationResult.load(folder)
    return evaluations


def _print(output: Output, page: Report, out: Path) -> None:
    """Print what the page shows and what was left out, and finish the verb."""
    from fullrank.analysis.report import Figure, Missing, plural
    from fullrank.analysis.report.page import is_table

    assert page.problem is not None
    rows = SUMMARY[page.problem](output, page)
    missing = [figure for figure in page.figures if isinstance(figure, Missing)]
    for figure in missing:
        output.say(f"left out: {figure.title} ({figure.why.rstrip('.')})")
    shown = [figure for figure in page.figures if not isinstance(figure, Missing) and not is_table(figure)]
    count = sum(isinstance(figure, Figure) and bool(figure.panels) for figure in shown)
    output.say(f"{out}: {plural(count, 'figure')}, in {seconds(output.spent)}", wrap=False)
    output.finish(
        {
            "out": out,
            "runs": rows,
            "figures": [figure.name for figure in shown],
            "left_out": {figure.name: figure.why for figure in missing},
            "seconds": output.spent,
        }
    )


def _row(entry: Any, **figures: float | None) -> JsonObject:
    """The entry of a run in the JSON of a report."""
    facts = {"key": entry.key, "run": entry.run.path, "recipe": entry.run.spec.recipe}
    return {**facts, "metrics": entry.evaluation.dump()["metrics"], **figures}


def _print_ranking(output: Output, page: Report) -> list[JsonObject]:
    """Print a row for each ranking model, and return the rows of the JSON."""
    from fullrank.analysis.diagnostics.token_ranks import last_layer_value

    ranks = ("stable_rank", "entropy_rank")
    rows = [_row(entry, **{name: last_layer_value(entry, name) for name in ranks}) for entry in page.results]
    names = ("auc", "logloss", "ece")
    cells = [
        [row["key"], entry.name, *(entry.metric(name) for name in names), row["stable_rank"]]
        for entry, row in zip(page.results, rows, strict=True)
    ]
    output.table(("", "run", *names, "stable rank"), cells)
    return rows


def _print_retrieval(output: Output, page: Report) -> list[JsonObject]:
    """Print a row for each recommender, and return the rows of the JSON."""
    from fullrank.analysis.activations import FAIRNESS
    from fullrank.analysis.report import join_words
    from fullrank.evaluation.spec import history_words

    rows = [_row(entry, collapse_share=entry.diagnosis.value("spectrum", "collapse_share")) for entry in page.results]
    cells = [
        [entry.key, entry.name, entry.metric(entry.accuracy), entry.metric(FAIRNESS), row["collapse_share"]]
        for entry, row in zip(page.results, rows, strict=True)
    ]
    accuracies = {entry.accuracy for entry in page.results}
    output.table(("", "run", accuracies.pop() if len(accuracies) == 1 else "accuracy", FAIRNESS, "collapse"), cells)
    output.say(join_words(sorted({history_words(entry.evaluation.protocol) for entry in page.results})))
    return rows


SUMMARY: Mapping[Problem, Callable[[Output, Any], list[JsonObject]]] = {
    "retrieval": _print_retrieval,
    "ranking": _print_ranking,
}


@verb()
def attention(
    runs: Annotated[list[Path], argument("RUN...", "Run folders of the same store.", callback=check_runs)],
    output: Output,
    user: Annotated[str | None, option("ID", "A user of the store.  [default: one that tells much]")] = None,
    data: MovedStore = None,
    split: Split = "test",
    device: Device = "auto",
) -> None:
    """Show what runs attend to in one history, with titles.

    The last 20 events of a user before what they chose next, each marked as relevant to that choice
    (people who had the one had the other more often than chance) or as noise, and the percent of
    attention that each layer of each run gives it. Below 0 a layer subtracts what it reads there.

    \b
    fullrank attention runs/softmax runs/focused
    fullrank attention runs/focused --user 17 --split validation
    """
    from fullrank import api
    from fullrank.run import Run

    opened = [Run.open(run) for run in runs]
    if len({run.manifest["data"]["split_fingerprint"] for run in opened}) > 1:
        raise UserError("the runs were trained on different splits; give runs of one store", code="different-splits")
    cases: list[Explanation] = [api.explain(run, user, split, data=data, device=device) for run in opened]
    longest = max(cases, key=lambda case: len(case.items))
    events = [_event(n, opened, cases, longest) for n in range(1, len(longest.items) + 1)]
    target = _item(opened[0], longest.target)
    _print_attention(output, opened, cases, target, events)
    output.finish({"user": longest.name, "split": split, "target": target, "events": events})


def _item(run: Run, item: int) -> JsonObject:
    """An item's own id and title."""
    from fullrank.analysis.report.results import readable

    titles = run.catalog.titles
    title = None if titles is None else titles[item]
    return {"item": run.catalog.ids[item], "title": None if title is None else readable(title)}


def _event(n: int, opened: list[Run], cases: list[Explanation], longest: Explanation) -> JsonObject:
    """The n-th event from the end, and the share of attention of each layer of each
    run that reads so far back."""
    shares = {
        str(run.path): [float(layer[-n]) for layer in case.shares] if n <= len(case.items) else None
        for run, case in zip(opened, cases, strict=True)
    }
    event = _item(opened[0], int(longest.items[-n]))
    return {**event, "relevant": bool(longest.relevant[-n]), "attention": shares}


def _print_attention(
    output: Output, opened: list[Run], cases: list[Explanation], target: JsonObject, events: list[JsonObject]
) -> None:
    """Print the events of a history, with the attention that each layer of each run gives them."""
    letters = [f"{chr(ord('A') + n)}" for n in range(len(opened))]
    for letter, run in zip(letters, opened, strict=True):
        output.say(f"{letter}: {run.path}", wrap=False)
    output.say(f"user {cases[0].name}, who chose next: {target['title'] or target['item']}", wrap=False)
    depths = [len(case.shares) for case in cases]
    layers = [f"{letter}{layer + 1} %" for letter, many in zip(letters, depths, strict=True) for layer in range(many)]
    rows = []
    for event in events:
        cells: list[Any] = [str(event["title"] or event["item"])[:SHOWN], "relevant" if event["relevant"] else "noise"]
        for values, many in zip(event["attention"].values(), depths, strict=True):
            cells += [None] * many if values is None else [round(100 * value) for value in values]
        rows.append(cells)
    output.table(["event, the last first", "is", *layers], rows)
    output.say(
        "Percent of each layer's attention, mean over heads; below 0 it is subtracted. Relevant: people who had the "
        "one had the other more often than chance."
    )
