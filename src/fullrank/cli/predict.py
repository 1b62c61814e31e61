"""`fullrank predict`, `calibrate` and `cascade`: ranking models in use.

Click probabilities of new impressions; their correction, on the validation split; and a retriever's
candidates in a ranker's order, measured before and after.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.early_checks import check_runs, check_store
from fullrank.cli.option_groups import TableOut, WrittenBySettings
from fullrank.cli.options import Device, MovedStore, RunFolder, Split, Word, argument, check_out, choice, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line

if TYPE_CHECKING:
    from fullrank.cascade import CascadeResult


SHOWN = 10
"""Rows printed where there is no --out."""


@verb()
def predict(
    run: RunFolder,
    impressions: Annotated[
        Path, argument("FILE", "Impressions with the columns that the model reads; no label needed.")
    ],
    output: TableOut,
    users: Annotated[
        Path | None, option("FILE", "Columns of users that the impressions lack, found by the schema's group.")
    ] = None,
    column: Annotated[str, option("NAME", "Name of the new column.")] = "probability",
    list_separator: Annotated[
        str | None,
        option(
            "TEXT",
            "Between the values of a list in a text file, such as '|'.  [default: as the training's schema says]",
        ),
    ] = None,
    data: Annotated[
        Path | None, option("STORE", "The store, where it was moved; needed by runs of format 1 alone.")
    ] = None,
) -> None:
    """Predict click probabilities of new impressions.

    All columns of the table are kept. A value that training did not see counts as unknown, an empty
    one as missing. With --out the table may be larger than memory, and the file appears whole or
    not at all.

    A list (genres, a history) is a list there, or text: it is cut where the schema of the training
    cut it, or at --list-separator.

    \b
    fullrank predict runs/rankelastor today.parquet --out predictions.parquet
    fullrank predict runs/rankelastor today.csv --column ctr --users people.parquet
    fullrank predict runs/din today.csv --list-separator '|' --out predictions.csv
    """
    output.check()
    from fullrank import api

    with output.progress(f"predict {impressions}") as tick:
        keywords: dict[str, Any] = {
            "users": users,
            "column": column,
            "list_separator": list_separator,
            "progress": tick,
        }
        predictor = api.load(run, data=data, device=output.device)
        if output.out is not None:
            done = predictor.predict_file(impressions, output.out, **keywords)
        else:
            predictions = predictor.predict(impressions, **keywords)
    if output.out is not None:
        output.say(f"{done.rows:,} probabilities written to {output.out} in {seconds(output.spent)}")
        output.finish({"run": run, "rows": done.rows, "mean": done.mean, "out": output.out})
        return
    shown = predictions.head(SHOWN)
    output.table(shown.columns, [list(row) for row in shown.rows()])
    if len(predictions) > SHOWN:
        output.say(f"... and {len(predictions) - SHOWN:,} more; --out FILE keeps them all")
    mean = predictions[column].mean() if len(predictions) else None
    output.finish(
        {"run": run, "rows": len(predictions), "mean": mean, "out": None, "predictions": predictions.to_dicts()}
    )


@verb()
def calibrate(
    run: RunFolder,
    output: Output,
    out: Annotated[Path, option("FOLDER", "The new run; RUN stays as it is.")],
    method: Annotated[Word, choice("isotonic|platt", "Isotonic regression, or Platt's line in logits.")] = "isotonic",
    data: MovedStore = None,
    device: Device = "auto",
) -> None:
    """Correct the click probabilities of a ranking model.

    The correction is fitted on the validation split, never on test, and lies in the new run:
    predict, evaluate, serve, cascade and export apply it. It rises everywhere, so the order of
    impressions (auc, gauc) stays.

    \b
    fullrank calibrate runs/dcnv2 --out runs/dcnv2-calibrated
    fullrank evaluate runs/dcnv2-calibrated --split test
    """
    from fullrank import api
    from fullrank.run import Run

    opened = Run.open(run)
    with output.progress(f"calibrate {run}") as tick:
        calibrated = api.calibrate(opened, out, method=method, data=data, device=device, progress=tick)
    calibration = calibrated.calibration
    assert calibration is not None
    output.say(f"{calibrated.path}: {calibration.method}, fitted on {calibration.rows:,} validation impressions")
    evaluate = command_line("evaluate", calibrated.path, "--split", "test")
    output.say(f"evaluate it, with what it was before: {evaluate}", wrap=False)
    output.finish({"run": calibrated.path, "calibrated_from": run, **calibration.dump()})


@dataclass(frozen=True)
class Tables:
    """The tables, columns and stores that the two models of a cascade read."""

    users: Annotated[Path | None, option("FILE", "Columns of users.  [default: the store's]")] = None
    items: Annotated[Path | None, option("FILE", "Columns of items.  [default: the catalogue's]")] = None
    user: Annotated[str | None, option("NAME", "The ranker's column of user ids.")] = None
    item: Annotated[str | None, option("NAME", "The ranker's column of item ids.")] = None
    store: Annotated[
        Path | None, option("STORE", "The retriever's store, where it was moved.", callback=check_store)
    ] = None
    impressions: Annotated[
        Path | None, option("STORE", "The ranker's store, where it was moved.", callback=check_store)
    ] = None
    device: Device = "auto"


@dataclass(frozen=True)
class Order:
    """Options of the order of candidates: how many, the blend, and the context."""

    candidates: Annotated[int, option("N", "Items of each user that the ranker puts in order.")] = 100
    blend: Annotated[float, option("SHARE", "The retriever's share in the order: 0 none, 1 all.")] = 0.0
    context: Annotated[list[str] | None, option("NAME=VALUE", "A field that is the same for all; may be repeated.")] = (
        None
    )
    contexts: Annotated[Path | None, option("FILE", "Such fields, with a row for each user.", "--context-table")] = None

    def keywords(self) -> dict[str, Any]:
        """The typed options as keywords of the library."""
        from fullrank.core.checks import check_one_way
        from fullrank.core.spec import read_setting

        check_one_way({"--context NAME=VALUE": self.context or None, "--context-table FILE": self.contexts})
        context = dict(map(read_setting, self.context or [])) if self.contexts is None else self.contexts
        return {"candidates": self.candidates, "blend": self.blend, "context": context}


@verb()
def cascade(
    retriever: Annotated[Path, argument("RETRIEVER", "A run that recommends items.", callback=check_runs)],
    ranker: Annotated[Path, argument("RANKER", "A run of a ranking model.", callback=check_runs)],
    tables: Tables,
    order: Order,
    output: WrittenBySettings,
    split: Split = "test",
    out: Annotated[Path | None, option("FOLDER", "Save cascade.json and both evaluations there.")] = None,
) -> None:
    """Let a ranker order a retriever's candidates.

    What that brings is measured: recall and nDCG of the retriever's lists and of the re-ranked
    ones, on the same users, with the paired difference and its interval. Split the events and the
    impressions at the same moments, or the ranker may have been trained on the targets; where the
    times say so, a note does. Recommendations by a cascade: fr.Cascade(...).recommend in Python.

    \b
    fullrank cascade runs/sasrec runs/dcnv2 --items movies.parquet --users users.parquet
    fullrank cascade runs/sasrec runs/dcnv2 --context hour=20 --context weekday=6 --candidates 200
    fullrank cascade runs/sasrec runs/dcnv2 --split validation --blend 0.5
    """
    ordered = order.keywords()
    from fullrank.cascade import Cascade, CascadeResult

    if out is not None:
        CascadeResult.check_folder(out)
    check_out(out, output.overwrite, "cascade.json")
    stages = Cascade(retriever, ranker, **vars(tables))
    with output.progress(f"cascade {retriever} {ranker}") as tick, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the notes say the same
        outcome = stages.evaluate(split, **ordered, set=output.settings or (), progress=tick)
    if out is not None:
        outcome.save(out)
    show(output, outcome)
    output.say(f"{outcome.facts['users']:,} users of the {split} split; in {seconds(output.spent)}")
    output.finish({"retriever": retriever, "ranker": ranker, **outcome.dump(), "seconds": output.spent})


def show(output: Output, outcome: CascadeResult) -> None:
    """Print the differences, the recall that a perfect ranker would reach, and the notes."""
    rows = [
        [c.metric, c.a, c.b, f"{c.difference:+.4f}", f"{c.interval[0]:+.4f} {c.interval[1]:+.4f}", c.p]
        for c in outcome.differences.values()
    ]
    level = outcome.before.protocol["bootstrap"]["level"]
    output.table(("metric", "before", "after", "difference", f"{100 * level:g} % interval", "p"), rows)
    count = outcome.facts["candidates"]
    output.say(f"recall of the {count} candidates, which no ranker exceeds: {outcome.ceiling:.4f}")
    output.notes(outcome.notes)
