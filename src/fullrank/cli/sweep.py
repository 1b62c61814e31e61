"""`fullrank sweep` and `fullrank tune`: many runs, their cost known before they start."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.early_checks import check_store
from fullrank.cli.options import Device, Settings, Word, argument, choice, flag, option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError, command_line
from fullrank.core.files import JsonObject

if TYPE_CHECKING:
    from fullrank.parallel import Runner
    from fullrank.sweeps.records import Outcome

RETRIEVAL = ("ndcg@10", "recall@10", "fair0.8@1", "coverage@10")
RANKING = ("auc", "logloss", "gauc", "ece")
"""Metrics of the closing table, where they were computed, of recommenders and of ranking models."""

ENGINES = {"local": (), "processes": ("jobs",), "ray": ("jobs", "ray", "job_cpus", "job_gpus", "placed")}
"""Engine -> the options that have an effect on it."""


@dataclass(frozen=True, kw_only=True)
class ManyRuns(Output):
    """Options of many runs: the folder, the time, and the engine that runs them."""

    out: Annotated[Path, option("FOLDER", "Where runs and rows go; the same call again goes on there.")]
    max_hours: Annotated[float | None, option("H", "Do not start runs that would not fit into this time.")] = None
    dry_run: Annotated[bool, flag("--dry-run", "Check everything, measure the cost, run nothing.")] = False
    settings: Settings = None
    engine: Annotated[
        Word,
        choice(
            "local|processes|ray",
            "What runs the runs: this process one by one, several of this machine, or a Ray cluster.",
        ),
    ] = "local"
    jobs: Annotated[
        int | None, option("N", "Runs at a time.  [default: of processes 2, of ray as many as there is room for]")
    ] = None
    ray: Annotated[
        str | None,
        option("ADDRESS", "The Ray cluster: auto, local (one is started here) or HOST:PORT.  [default: auto]"),
    ] = None
    job_cpus: Annotated[float | None, option("N", "CPUs of a run on Ray, and its threads.  [default: 1]")] = None
    job_gpus: Annotated[float | None, option("N", "GPUs of a run on Ray.  [default: 0]")] = None
    placed: Annotated[
        Path | None,
        option("FOLDER", "Copy the store into this folder of every Ray node's disk, and read it there.", "--place"),
    ] = None
    device: Device = "auto"

    def runner(self) -> Runner:
        """The engine that the options name. Raises `UserError` for an option that it does not read."""
        typed = {name: getattr(self, name) for name in ENGINES["ray"] if getattr(self, name) is not None}
        if unread := [name for name in typed if name not in ENGINES[self.engine]]:
            unread_flag = "--place" if unread[0] == "placed" else f"--{unread[0].replace('_', '-')}"
            raise UserError(
                f"{unread_flag} has no effect with --engine {self.engine}: leave it out, or choose another engine",
                code="option-without-effect",
            )
        if self.engine == "processes":
            from fullrank.parallel.processes import LocalProcesses

            return LocalProcesses(**typed, device=self.device)
        if self.engine == "ray":
            from fullrank.parallel.ray import RayEngine

            names = {"ray": "address", "job_cpus": "cpus", "job_gpus": "gpus"}
            return RayEngine(**{names.get(name, name): option for name, option in typed.items()}, device=self.device)
        from fullrank.parallel import Local

        return Local(self.device)


@verb()
def sweep(
    grid: Annotated[Path, argument("GRID", "YAML or JSON: cells, or base and axes; and seeds.")],
    data: Annotated[
        list[Path],
        option("STORE", "The store, as `fullrank prepare` writes it; of a ladder, several.", callback=check_store),
    ],
    output: ManyRuns,
    results: Annotated[Path | None, option("FILE", "Keep grid, rows and means over seeds in this JSON file.")] = None,
) -> None:
    """Train and evaluate a grid of settings over seeds.

    A cell is a configuration: a recipe with settings of its own. The cost is measured first (a few
    real steps of each). Every finished run leaves one row in FOLDER/rows.jsonl. Interrupted at any
    moment, the same call skips what is finished and resumes the rest. --set changes every
    configuration. With --data given several times the grid runs on each store (a ladder over data):
    FOLDER/STORE for each, and the rows of all in FOLDER/rows.jsonl. The exit code is 1 where a run
    failed; the others are done all the same.

    \b
    grid.yaml:
      cells:
        - {name: sasrec, recipe: sasrec}
        - {name: wide, recipe: sasrec, set: {model.dim: 256}}
        - popularity
      seeds: [0, 1, 2]

    \b
    fullrank sweep grid.yaml --data data/shop --out runs/grid --dry-run
    fullrank sweep grid.yaml --data data/shop --out runs/grid --max-hours 2 --results results/grid.json
    fullrank sweep grid.yaml --data data/shop --out runs/grid --engine processes --jobs 4
    fullrank sweep grid.yaml --data data/shop --out runs/grid --engine ray --job-cpus 4 --job-gpus 1
    """
    from fullrank.core.specs_alone import ask_alone

    ask_alone("fullrank.sweeps.sweep", lambda there: there.Grid.read(grid))
    from fullrank.data.impressions.store import open_store
    from fullrank.sweeps.jobs import from_settings
    from fullrank.sweeps.records import protocols_in_words, summarise_seeds
    from fullrank.sweeps.sweep import Grid, Rung, SweepOptions, by_store, ladder_rows, run_ladder, run_sweep

    spec = Grid.read(grid)
    if output.settings:
        spec = spec.with_settings(from_settings(output.settings))
    stores = [open_store(path) for path in data]
    options: SweepOptions = {
        "max_hours": output.max_hours,
        "dry_run": output.dry_run,
        "results": results,
        "command": _command(),
        "engine": output.runner(),
    }
    if len(stores) == 1:
        outcome = run_sweep(spec, stores[0], output.out, **options)
        rungs = [Rung(stores[0], outcome)]
        summary, history = summarise_seeds(outcome.newest), protocols_in_words(outcome.newest)
    else:
        rungs = run_ladder(spec, stores, output.out, **options, on_store=lambda store: output.say(f"on {store.path}"))
        summary, history = by_store(rungs, summarise_seeds), by_store(rungs, protocols_in_words)
    _table(output, summary, history)
    for rung in rungs:
        _notes(output, rung.outcome, output.dry_run)
    outcomes = [rung.outcome for rung in rungs]
    failed = [row for outcome in outcomes for row in outcome.failed]
    output.finish(
        {
            "name": spec.name,
            "summary": summary,
            "rows": ladder_rows(rungs),
            "failed": [f"{row['cell']}-seed{row['seed']}" for row in failed],
            "not_run": [entry for outcome in outcomes for entry in outcome.not_run],
            "estimate": [entry for outcome in outcomes for entry in outcome.estimate],
            "hours": sum(outcome.hours for outcome in outcomes),
            "out": output.out,
        }
    )
    if failed:
        raise typer.Exit(1)


@verb()
def tune(
    space: Annotated[Path, argument("SPACE", "YAML or JSON: cells, space and trials.")],
    data: Annotated[Path, option("STORE", "The store, as `fullrank prepare` writes it.", callback=check_store)],
    output: ManyRuns,
    sampler: Annotated[
        str, option("halton|tpe", "How trials are chosen: spread evenly, or by the scores so far.")
    ] = "halton",
) -> None:
    """Search for good settings, at equal budgets.

    A cell is a configuration: a recipe with settings of its own. Each gets equally many trials,
    evaluated on the validation split; trial 0 is its defaults. A trial gets a third of the
    configuration's epochs unless `epochs_share` says otherwise. FOLDER/tuned.json holds the best
    settings, all trials and what they cost; FOLDER/grid.yaml is ready for `fullrank sweep`. The
    test split is not looked at. --set changes every configuration.

    \b
    space.yaml:
      cells: [sasrec, gru4rec]
      space:
        training.lr: {log: [3.0e-4, 3.0e-3]}
        model.dim: {choice: [64, 128]}
      trials: 4

    \b
    fullrank tune space.yaml --data data/shop --out runs/tuned --max-hours 1
    fullrank sweep runs/tuned/grid.yaml --data data/shop --out runs/final
    """
    from fullrank.core.specs_alone import ask_alone

    ask_alone("fullrank.sweeps.search", lambda there: there.Search.read(space))
    from fullrank.data.impressions.store import open_store
    from fullrank.sweeps.jobs import from_settings
    from fullrank.sweeps.search import Search
    from fullrank.sweeps.tune import tune as search

    spec = Search.read(space)
    if output.settings:
        spec = spec.with_settings(from_settings(output.settings))
    outcome = search(
        spec,
        open_store(data),
        output.out,
        max_hours=output.max_hours,
        dry_run=output.dry_run,
        command=_command(),
        engine=output.runner(),
        sampler=sampler,
    )
    if not output.dry_run:
        rows = [_tuned_row(name, best, outcome["trials"][name]) for name, best in outcome["best"].items()]
        output.table(("cell", "trial", "validation", "defaults", "settings"), rows)
        budget = outcome["budget"]
        output.say(
            f"{budget['trials_counted']} of {budget['trials_asked']} trials for every cell, "
            f"{seconds(3600 * sum(budget['hours'].values()))} in all"
        )
        output.say(
            f"next: {command_line('sweep', output.out / 'grid.yaml', '--data', data, '--out', 'FOLDER')}", wrap=False
        )
    output.finish(outcome)
    if any(trial["error"] for trials in outcome["trials"].values() for trial in trials):
        raise typer.Exit(1)


def _tuned_row(name: str, best: JsonObject | None, trials: list[JsonObject]) -> list[Any]:
    if best is None:
        return [name, None, None, None, "no trial gave a score"]
    chosen = "  ".join(f"{path}={value}" for path, value in best["set"].items()) or "defaults"
    return [name, best["trial"], best["score"], trials[0]["score"], chosen]


def _table(output: Output, summary: JsonObject, history: dict[str, dict[str, str]]) -> None:
    """Print means and standard deviations over seeds of a few metrics, one
    row per cell and evaluation."""
    rows = []
    ranking = any("auc" in metrics for splits in summary.values() for metrics in splits.values())
    columns, extra = (RANKING, ()) if ranking else (RETRIEVAL, ("history",))
    for cell, splits in summary.items():
        for split, metrics in splits.items():
            n = max((entry["n"] for entry in metrics.values()), default=0)
            words = [history.get(cell, {}).get(split, "").removeprefix("history ") for _ in extra]
            rows.append([cell, split, *words, n, *(_spread(metrics.get(name)) for name in columns)])
    if rows:
        output.table(("cell", "split", *extra, "seeds", *columns), rows)


def _spread(entry: JsonObject | None) -> str:
    if entry is None:
        return ""
    return f"{entry['mean']:.4f}" + ("" if entry["sd"] is None else f" ± {entry['sd']:.4f}")


def _notes(output: Output, outcome: Outcome, dry_run: bool) -> None:
    if dry_run:
        total = sum(entry["hours"] for entry in outcome.estimate)
        output.say(f"{len(outcome.estimate)} runs to do, at most {seconds(3600 * total)} on this machine")
    for row in outcome.failed:
        output.say(f"failed: {row['cell']}-seed{row['seed']}: {row['error']}")
    for entry in outcome.not_run:
        output.say(f"not run: {entry['cell']}-seed{entry['seed']}, at most {seconds(3600 * entry['hours'])}")


def _command() -> str:
    return shlex.join(["fullrank", *sys.argv[1:]])
