"""`fullrank auto`: data to the best list within some minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.option_groups import TableColumns
from fullrank.cli.options import Device, Overwrite, argument, flag, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.told_early import check_place
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line


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

    Models that count are tried first, then recipes that read what the data has (titles, times, features) race on the
    validation split, then the best of both are blended. The run is evaluated once on test. A call that was cut off goes
    on where it was. FOLDER-auto/report.html shows the runs side by side.

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
        found = api.auto(
            data, out, minutes=minutes, items=items, seed=seed, device=device, overwrite=overwrite,
            engine=engine, tell=tell,
            **columns.keywords(),
        )  # fmt: skip
        page = None if no_page else work_folder(out) / "report.html"
        if page is not None:
            chosen = [choice.run for choice in found.choices]
            made = api.report(chosen, page, device=device, tell=tell)
            made.with_lead(found.sentence).save(page)
    output.say(f"{out}: {found.sentence}")
    output.notes(found.facts)
    rows = [[choice.name, choice.value, choice.ms, choice.bytes / 1e6, choice.gini] for choice in found.choices]
    output.table(["run", f"{found.metric} validation", "ms a list", "MB", "gini@10"], rows)
    metrics = found.test.metrics
    output.say(
        ", ".join(f"test {name} {metrics[name]:.4f}" for name in ("recall@10", "ndcg@10") if name in metrics)
        + f", in {seconds(output.spent)}; next: {command_line('recommend', out, '--history', 'ITEM,ITEM')}"
    )
    output.finish({
        "run": found.run.path, "sentence": found.sentence, "facts": list(found.facts), "metric": found.metric,
        "page": page, "test": metrics, "seconds": found.seconds,
        "choices": [{name: value for name, value in vars(one).items() if name != "run"} for one in found.choices],
        "rows": [
            {"cell": row["cell"], "epochs": row["epochs"], "validation": row["metrics"]["validation"]}
            for row in found.rows
        ],
    })  # fmt: skip
