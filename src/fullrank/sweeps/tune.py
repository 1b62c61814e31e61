"""tune: the best settings on validation, every cell with the same number of trials and share of its epochs.

By Halton's points every trial is known before the first one runs. TPE is asked trial by trial, for
all cells at a time, and told the scores of the trials before; what it asked for once is kept in
plan.json and not asked again. Folders, costs, the time limit and going on after a stop are the
runner's in both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fullrank.core.checks import public
from fullrank.core.errors import unknown
from fullrank.core.files import JsonObject, jsonable, write_json, write_text
from fullrank.core.locks import folder_lock
from fullrank.core.readers import read_json
from fullrank.data.impressions.store import AnyStore, check_store
from fullrank.evaluation.spec import selection_sign
from fullrank.parallel import Local, Runner
from fullrank.sweeps.jobs import Cell, Settings, parse_exponents, tree_hash
from fullrank.sweeps.records import Outcome, code_version, environment, not_ours
from fullrank.sweeps.schedule import hours_left, run_jobs
from fullrank.sweeps.search import SAMPLERS, STARTUP, Plan, Search, SearchCell, settings_of, tpe, trial_name
from fullrank.sweeps.sweep import Grid, describe_data

Tree = dict[str, Any]
"""The object in tuned.json, or that of a trial in it."""


@public
def tune(
    space: Search,
    store: AnyStore,
    out: str | Path,
    *,
    max_hours: float | None = None,
    dry_run: bool = False,
    command: str | None = None,
    progress: bool = True,
    engine: Runner = Local(),
    sampler: str = "halton",
) -> Tree:
    """Search a space on the validation split; returns what is written to `out`/tuned.json.

    Trial by trial through all cells: where `max_hours` ends the search early, every cell still has
    had the same number of trials, and only those count. `out`/grid.yaml holds the best settings,
    ready for `sweep`. `engine`: where the trials are run, by default here. `sampler`: `halton`
    spreads the trials evenly; `tpe` (Optuna, the extra `tune`) chooses those after the first few
    from the scores so far, so a dry run prices the first alone. Raises `UserError` for what is
    wrong in the space, its settings or the folders, before anything runs.
    """
    check_store("store", store)
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    begun, folder, points = time.perf_counter(), Path(out), space.plan()

    def state(outcome: Outcome) -> Tree:
        return {"sampler": sampler, **tuned(space, plan, store, outcome, command)}

    def keep(outcome: Outcome) -> None:
        tree = state(outcome)
        write_json(folder / "tuned.json", jsonable(tree))
        write_text(folder / "grid.yaml", best_grid(space, tree).to_yaml())

    def run(trials: set[str] | None = None) -> Outcome:
        hours = max_hours if trials is None else hours_left(max_hours, begun)
        return run_jobs(
            space.jobs(plan),
            store,
            folder,
            max_hours=hours,
            dry_run=dry_run,
            progress=progress,
            on_row=keep,
            engine=engine,
            start=lambda job: trials is None or job.cell in trials,
        )

    with folder_lock(out, "tune"):  # plan.json is read, asked for more, and written between the rounds
        planned = PlannedTrials(folder, space, store.fingerprint) if sampler == "tpe" else None
        plan = points if planned is None else planned.begin(points)
        outcome = run()
        if planned is not None and not dry_run:
            outcome = _by_tpe(planned, plan, points, outcome, run)
        return state(outcome)


class PlannedTrials:
    """plan.json in the folder of a search by TPE: the settings of every trial that was asked for.

    A trial that failed is run again by the next call. Its new score would change what TPE asks for
    as the later trials, whose folders hold runs already, so those are taken from here. Cell -> hash
    of what its trials depend on -> settings of its trials, the first ones included. Neither the
    number of trials nor the seeds are in the hash: more of either keep the trials that there are.
    """

    def __init__(self, folder: Path, space: Search, fingerprint: str):
        self.path, self.space, self.fingerprint = folder / "plan.json", space, fingerprint
        self.tree: JsonObject = read_json(self.path) if self.path.exists() else {}
        self.kept = {cell.name: self._of(cell) for cell in space.cells}

    def begin(self, points: Plan) -> Plan:
        """Trials of the first round of a call: the first points, or those in the file that every cell has."""
        rounds = min(max(min(map(len, self.kept.values())), STARTUP), self.space.trials)
        return {name: [*trials, *points[name][len(trials) :]][:rounds] for name, trials in self.kept.items()}

    def write(self, plan: Plan) -> None:
        """Keep the plan, as far as it is longer than what is kept."""
        for cell in self.space.cells:
            if len(plan[cell.name]) > len(self.kept[cell.name]):
                self.kept[cell.name] = list(plan[cell.name])
                self.tree.setdefault(cell.name, {})[self._key(cell)] = self.kept[cell.name]
        write_json(self.path, self.tree)

    def _of(self, cell: SearchCell) -> list[Settings]:
        """The trials of a cell that the file holds."""
        ranges = self.space.space_of(cell)
        try:
            trials = self.tree.get(cell.name, {}).get(self._key(cell), [])
            # a choice is given back as it stands in the space, where JSON may have
            # made a list of a tuple
            return [
                {
                    p: v if (range_of := ranges[p]).choice is None else range_of.tidy(range_of.place_of(v))
                    for p, v in trial.items()
                }
                for trial in trials
            ]
        except (AttributeError, KeyError, TypeError, ValueError):
            raise not_ours(f"{self.path} does not hold the trials of a search") from None

    def _key(self, cell: SearchCell) -> str:
        """The hash of what the trials of a cell depend on."""
        ranges = self.space.space_of(cell).items()
        return tree_hash(
            {
                "data": self.fingerprint,
                "recipe": cell.recipe,
                "set": parse_exponents({**self.space.set, **cell.set}),
                # their order decides which base of Halton's points a setting has
                "space": [
                    [path, {k: v for k, v in range_of.dump().items() if v is not None}] for path, range_of in ranges
                ],
                "epochs_share": self.space.epochs_share,
                "seed": self.space.seed,
            }
        )


def _by_tpe(
    planned: PlannedTrials, plan: Plan, points: Plan, outcome: Outcome, run: Callable[[set[str]], Outcome]
) -> Outcome:
    """Ask for a trial of every cell, run them, report their scores, and so on; `plan` grows, until the time is over.

    A round runs its own trials alone: those that failed before were tried again by the
    first round of the call.
    """
    space, estimate, hours = planned.space, list(outcome.estimate), outcome.hours
    while not outcome.not_run and len(plan[space.cells[0].name]) < space.trials:
        trial = len(plan[space.cells[0].name])
        new = {trial_name(cell.name, trial) for cell in space.cells}
        for cell in space.cells:
            tried, earlier_trials = plan[cell.name], planned.kept[cell.name]
            if trial < len(earlier_trials):  # where a cell joined the search later, the others are ahead of it
                tried.append(earlier_trials[trial])
                continue
            scores = [_larger_better(earlier) for earlier in _trials(cell, plan, outcome)]
            # there are as many points as trials, and fewer were tried: one is left
            tried.append(tpe(space.space_of(cell), tried, scores, space.seed, points[cell.name]))
        planned.write(plan)  # before a run folder is made of it
        outcome = run(new)
        estimate, hours = estimate + outcome.estimate, hours + outcome.hours
    outcome.estimate, outcome.hours = estimate, hours
    return outcome


def tuned(space: Search, plan: Plan, store: AnyStore, outcome: Outcome, command: str | None) -> Tree:
    """The state of a search: best settings and scores per cell, the budget, and every trial."""
    trials = {cell.name: _trials(cell, plan, outcome) for cell in space.cells}
    # the trials from the first on that have ended, well or not
    rounds = min(
        next((n for n, trial in enumerate(tried) if not trial["ended"]), len(tried)) for tried in trials.values()
    )
    best = {name: _best(tried[:rounds]) for name, tried in trials.items()}
    return {
        "name": space.name,
        "command": command,
        "split": "validation",
        "best": best,
        "budget": {
            "trials_asked": space.trials,
            "trials_counted": rounds,
            "seeds": list(space.seeds),
            "epochs_share": space.epochs_share,
            "epochs_per_trial": {name: tried[0]["epochs_allowed"] for name, tried in trials.items()},
            "hours": {name: round(sum(trial["hours"] for trial in tried), 5) for name, tried in trials.items()},
            "hours_this_call": round(outcome.hours, 4),
        },
        "data": describe_data(store),
        "machine": environment(),
        "code": code_version(),
        "search": space.dump(),
        "trials": trials,
        "estimate": outcome.estimate,
        "not_run": outcome.not_run,
    }


def best_grid(space: Search, tree: Tree) -> Grid:
    """A grid of the best settings with each cell's full epochs, evaluated on test with seeds 0, 1, 2."""
    cells = []
    for cell in space.cells:
        chosen = (tree["best"].get(cell.name) or {}).get("set", {})
        cells.append(Cell(name=cell.name, recipe=cell.recipe, set={**space.set, **cell.set, **chosen}))
    return Grid(name=space.name, cells=tuple(cells), seeds=(0, 1, 2))


def _trials(cell: SearchCell, plan: Plan, outcome: Outcome) -> list[Tree]:
    """Every trial of a cell: settings, score (None where it failed or did not
    run) and figures of its rows."""
    trials = []
    for trial, settings in enumerate(plan[cell.name]):
        name = trial_name(cell.name, trial)
        rows = [row for row in outcome.newest if row["cell"] == name]
        error = next((row["error"] for row in rows if row.get("error")), None)
        jobs = [job for job in outcome.jobs if job.cell == name]
        experiment, ended = jobs[0].experiment, len(rows) == len(jobs)
        metric = experiment.evaluation.selection
        scores = [
            row["metrics"].get("validation", {}).get(metric) for row in rows
        ]  # None for a metric that was no number
        trials.append(
            {
                "trial": trial,
                "set": settings_of(settings),
                "metric": metric,
                "better": "larger" if selection_sign(experiment.evaluation) > 0 else "smaller",
                "score": statistics.fmean(scores) if ended and error is None and None not in scores else None,
                "seeds": [row["seed"] for row in rows],
                "epochs_allowed": experiment.training.max_epochs,
                "epochs": [row.get("epochs") for row in rows],
                "hours": round(sum(sum(row["seconds"].values()) for row in rows) / 3600, 5),
                "error": error,
                "ended": ended,
            }
        )
    return trials


def _larger_better(trial: Tree) -> Any:
    """A trial's score, its sign turned where smaller is better; None where it has none."""
    return -trial["score"] if trial["score"] is not None and trial["better"] == "smaller" else trial["score"]


def _best(trials: list[Tree]) -> Tree | None:
    """The trial with the best score, the earliest of equals; None where none has a score."""
    scored = [trial for trial in trials if trial["score"] is not None]
    if not scored:
        return None
    top = max(scored, key=_larger_better)
    return {**{key: top[key] for key in ("trial", "set", "metric", "score")}, "default_score": trials[0]["score"]}
