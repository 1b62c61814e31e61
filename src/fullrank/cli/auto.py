"""`fullrank auto` and `blend`: the best list for a store within minutes, and the lists of several runs joined."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.early_checks import check_place, check_runs, check_store
from fullrank.cli.option_groups import TableColumns
from fullrank.cli.options import Device, MovedStore, Overwrite, Settings, argument, flag, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line
from fullrank.core.files import jsonable


@verb()
def auto(
    data: Annotated[
        Path, argument("DATA", "A store (`fullrank prepare`), or a table of events: .parquet, .csv, .jsonl.")
    ],
    output: Output,
    columns: TableColumns,
    out: Annotated[Path, option("FOLDER", "The run folder to write; FOLDER-auto keeps all that was tried.")],
    minutes: Annotated[float, option("M", "About how long it may take.")] = 30.0,
    items: Annotated[Path | None, option("FILE", "Table of items (titles), beside a table of events.")] = None,
    seed: Annotated[int, option("N", "Seed of all runs.")] = 0,
    overwrite: Overwrite = False,
    device: Device = "auto",
    jobs: Annotated[
        int | None, option("N", "Runs at a time, a process each.  [default: one after another, in this process]")
    ] = None,
    no_page: Annotated[bool, flag("--no-page", "Write no page about the runs (it needs the extra `report`).")] = False,
) -> None:
    """Find the best list for some data: count, race, blend.

    Models that count are tried first, then recipes that read what the data has (titles, times,
    features) race on the validation split, then the best of both are blended. The run is evaluated
    once on test. A call that was cut off goes on where it was. FOLDER-auto/report.html shows the
    runs side by side.

    \b
    fullrank auto data/shop --out runs/best
    fullrank auto events.parquet --items items.parquet --minutes 60 --out runs/best
    fullrank recommend runs/best --history 2,3,5
    """
    check_place(out, overwrite=overwrite)
    from fullrank import api
    from fullrank.sweeps.auto import work_folder

    if not no_page:  # told now, not when all is done
        from fullrank.analysis.report.page import check_extra

        check_extra()
    engine = None
    if jobs is not None:
        from fullrank.parallel.processes import LocalProcesses

        engine = LocalProcesses(jobs=jobs, device=device)
    with output.stages() as tell:
        outcome = api.auto(
            data,
            out,
            minutes=minutes,
            items=items,
            seed=seed,
            device=device,
            overwrite=overwrite,
            engine=engine,
            tell=tell,
            **columns.keywords(),
        )
        page = None if no_page else work_folder(out) / "report.html"
        if page is not None:
            report = api.report([choice.run for choice in outcome.choices], page, device=device, tell=tell)
            report.with_lead(outcome.sentence).save(page)
    output.say(f"{out}: {outcome.sentence}")
    output.notes(outcome.facts)
    rows = [[choice.name, choice.value, choice.ms, choice.bytes / 1e6, choice.gini] for choice in outcome.choices]
    output.table(["run", f"{outcome.metric} validation", "ms a list", "MB", "gini@10"], rows)
    metrics = outcome.test.metrics
    output.say(
        ", ".join(f"test {name} {metrics[name]:.4f}" for name in ("recall@10", "ndcg@10") if name in metrics)
        + f", in {seconds(output.spent)}; next: {command_line('recommend', out, '--history', 'ITEM,ITEM')}"
    )
    output.finish(
        {
            "run": outcome.run.path,
            "sentence": outcome.sentence,
            "facts": list(outcome.facts),
            "metric": outcome.metric,
            "page": page,
            "test": metrics,
            "seconds": outcome.seconds,
            "choices": [
                {name: value for name, value in vars(choice).items() if name != "run"} for choice in outcome.choices
            ],
            "rows": [
                {"cell": row["cell"], "epochs": row["epochs"], "validation": row["metrics"]["validation"]}
                for row in outcome.rows
            ],
        }
    )


@verb()
def blend(
    runs: Annotated[
        list[Path], argument("RUN...", "Run folders of the same items, trained or counted.", callback=check_runs)
    ],
    output: Output,
    out: Annotated[Path, option("FOLDER", "The run folder to write; it holds all members.")],
    data: MovedStore = None,
    settings: Settings = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
) -> None:
    """Join the lists of several runs in one run.

    Weights of the members are learned on the validation split, and so is how lists are joined, unless
    --set says it (model.join=ranks or scores, model.offset=X, model.gate=true: weights that depend on
    the history, model.depth=N: items of each member's list). Figures are of users from whom nothing
    was learned. evaluate, recommend, serve and export --to folder take the new run as any other.

    \b
    fullrank blend runs/transition_graph runs/sasrec runs/srt --out runs/blend
    fullrank evaluate runs/blend --split test
    """
    check_store(data)
    check_place(out, overwrite=overwrite)
    from fullrank import api

    with output.progress("blend: lists of validation") as tick:
        run = api.blend(runs, data, out, set=settings or (), device=device, overwrite=overwrite, progress=tick)
    facts, blend_model = run.manifest["blend"], run.spec.model
    metric = facts["selection"]
    columns = ("name", "alone", "weight", "brings", "brings_se", "helped", "hurt")
    rows = [[member[column] for column in columns] for member in facts["members"]]
    headers = ["member", f"{metric} alone", "weight", "brings", "+-", "users helped", "hurt"]
    output.table(headers, rows, title=f"validation, {facts['users']:,} users")
    kind = {
        name: value
        for name, value in blend_model.dump().items()
        if name not in ("kind", "members") and value is not None
    }
    output.say(
        f"{metric} {facts['blend']:.4f} (+- {facts['blend_se']:.4f}) of users from whom nothing was learned; joined by "
        + ", ".join(f"{name}={value}" for name, value in kind.items())
    )
    output.say(f"{out} written in {seconds(output.spent)}; next: {command_line('evaluate', out, '--split', 'test')}")
    output.finish({"run": run.path, "model": jsonable(blend_model.dump()), **facts})
