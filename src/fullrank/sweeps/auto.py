"""auto: from a store to the best list within a number of minutes: count, race, blend, and one evaluation on test.

1. Counted models (popularity, item-to-item, session kNN, a graph of transitions): seconds each.
2. A race of recipes that read what the data has (titles, times, features), by successive halving on validation: each
   for as many epochs as an equal share of the time buys, then the best, anew, for as many as the rest does.
3. A blend of the best counted and the best raced runs, without members that bring nothing. It is taken where it is
   better than the best of them by half of its standard error or more; else that one is.

OUT is the run that was taken. OUT-auto holds what it came from: the runs (cells), their rows, and
plan.json, where each decision is written before it is acted on, so that a call that was killed goes
on to the same end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, whole_folder, write_json
from fullrank.core.locks import folder_lock
from fullrank.core.log import Progress, Tell
from fullrank.core.readers import read_json
from fullrank.data.events.store import Store
from fullrank.data.histories import MANY_REPEATS
from fullrank.evaluation.result import EvaluationResult
from fullrank.evaluation.retrieval import evaluate
from fullrank.parallel import Attempt, Local, Runner
from fullrank.run import Run, copy_run
from fullrank.sweeps.cost import JobCost, measure_costs
from fullrank.sweeps.jobs import Cell, Job, Settings, make_jobs
from fullrank.sweeps.records import Row, not_ours
from fullrank.sweeps.schedule import run_jobs
from fullrank.training.blending import blend
from fullrank.training.run_folder import check_place

WITHIN = 0.98
"""Share of the best value that a smaller, faster or fairer choice keeps."""
RESERVED, LEAST_RESERVED = 0.15, 30.0
"""Share of the time that is kept for the blend and the evaluations, and so many seconds at least."""
RACED = 0.35
"""Share of the rest that the first round of the race takes."""
LAST = 2
"""Number of contenders in the second round."""
COUNTED_IN_BLEND, RACED_IN_BLEND = 3, 3
LEAST_GAIN = 0.5
"""Standard errors by which a blend must be better than the best of its members to be taken instead of it."""
BLEND = "blend"
LEAST_RACED = 10.0
"""Seconds below which nothing is raced: pricing a contender takes as long."""
LEAST_EPOCHS, MOST_EPOCHS = 3, 200
"""Fewest epochs of a contender in the first round, and most in any."""
STAGES = ("counting models", "racing recipes", "training the best", "blending", "evaluating on test")


@dataclass(frozen=True)
class Facts:
    """Properties of the data that a choice among recipes depends on."""

    titles: bool
    """Whether items have text."""
    times: bool
    features: bool
    """Whether events, requests or users have declared features."""
    repeats: float
    """Share of validation targets in their own user's history."""
    cold: float
    """Share of validation targets without a training event."""

    @classmethod
    def of(cls, store: Store) -> Facts:
        targets = store.eval_set("validation", without_history=True).truth.flat()
        cold = float((store.catalog.popularity[targets] == 0).mean()) if len(targets) else 0.0
        declared = store.features is not None and bool(store.features.fields)
        titles = store.catalog.titles is not None
        return cls(titles, store.times is not None, declared, store.repeated_share("validation"), cold)

    def sentences(self) -> list[str]:
        """The properties that change the choice, a sentence each."""
        present = [name for name in ("titles", "times", "features") if getattr(self, name)]
        sentences = [
            f"the data has {', '.join(present)}" if present else "the data has neither titles, times nor features"
        ]
        if self.repeats > MANY_REPEATS:
            sentences.append(
                f"{self.repeats:.0%} of what users choose next is in their history already, so lists may hold it "
                "(recommend with seen=keep)"
            )
        if self.cold > 0.01:
            sentences.append(f"{self.cold:.0%} of what they choose next has no training event")
        return sentences


COUNTED = ("popularity", "item_to_item", "transition_graph", "session_knn")
"""Recipes that count, all of which any data can have."""


def contenders(facts: Facts) -> dict[str, tuple[str, Settings]]:
    """Recipes that are raced, by the names of their cells: (recipe, settings); the likeliest first."""
    known: list[tuple[bool, str, str, Settings]] = [
        (True, "sasrec", "sasrec", {}),
        (facts.titles, "hybrid", "fullrank.recipes.classics:fmlp_hybrid", {}),
        (facts.features, "sasrec-features", "sasrec", {"model.features": "auto"}),
        (True, "fmlp", "fmlp", {}),
        (facts.titles, "srt", "srt", {}),
        (facts.times, "sasrec-gaps", "sasrec", {"model.features": {"event": ["gap"], "request": [], "user": []}}),
        (True, "sasrec-small", "sasrec", {"model.dim": 64}),
        (True, "gru4rec", "gru4rec", {}),
    ]
    return {name: (recipe, settings) for fits, name, recipe, settings in known if fits}


@dataclass
class Plan:
    """plan.json: the decisions of a call, each by its name, and what the call was `of`."""

    path: Path
    of: JsonObject
    decided: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, of: JsonObject) -> Plan:
        """The plan at `path`, or a new one.

        Raises `UserError` for a plan of other data, minutes or seed.
        """
        if not path.exists():
            return cls(path, of)
        tree = read_json(path)
        if not isinstance(tree.get("decided"), dict) or not isinstance(tree.get("of"), dict):
            raise not_ours(f"{path} holds no plan")
        if tree["of"] != of:
            raise UserError(
                f"{path.parent} was begun with {tree['of']}, and this call has {of}: delete that folder to begin anew, "
                "or call as before to go on",
                code="other-plan",
            )
        return cls(path, of, tree["decided"])

    def decide(self, decision: str, make: Callable[[], Any]) -> Any:
        """Return a decision; the first call that asks for it makes and writes it."""
        if decision not in self.decided:
            self.decided[decision] = make()
            write_json(self.path, {"of": self.of, "decided": self.decided})
        return self.decided[decision]


@dataclass(frozen=True)
class Choice:
    """A run that could be taken, by what it costs."""

    name: str
    run: Run
    value: float
    """The selection metric on validation; of a blend that of users from whom nothing was learned."""
    ms: float
    """Milliseconds for a user's list, many at a time."""
    bytes: int
    """Size of its folder."""
    gini: float
    """Gini coefficient of how often each item is in lists; 0 is all alike."""


@dataclass(frozen=True)
class AutoResult:
    """The run that `auto` chose, the choices that there were, and its evaluation on test."""

    run: Run
    metric: str
    sentence: str
    """The choice, by how much it is better, and what cheaper choices would cost in accuracy."""
    facts: tuple[str, ...]
    """Properties of the data that changed the choice."""
    choices: tuple[Choice, ...]
    """Best first."""
    rows: tuple[Row, ...]
    test: EvaluationResult
    seconds: float


def work_folder(out: Path) -> Path:
    """The folder with everything that the run in `out` was chosen from."""
    return out.with_name(f"{out.name}-auto")


def auto(
    store: Store,
    out: Path,
    *,
    minutes: float,
    seed: int = 0,
    device: str = "auto",
    overwrite: bool = False,
    engine: Runner | None = None,
    tell: Tell,
) -> AutoResult:
    """Find the best run for a store within `minutes`, and write it into the folder `out`.

    `engine` runs the runs, where not one after another here. `tell` is called with the name of a
    stage and returns its progress, which is called with (done, in all). Raises `UserError` for a
    store without validation targets, and for an `OUT-auto` that was begun with other arguments.
    """
    check_place(out, overwrite=overwrite)
    work, begun = work_folder(out), time.perf_counter()
    with folder_lock(work, "auto"):
        plan = Plan.open(work / "plan.json", {"data": store.fingerprint, "minutes": minutes, "seed": seed})
        limit = minutes * 60 - max(minutes * 60 * RESERVED, LEAST_RESERVED)
        race = Race(store, work, plan, seed, device, engine or Local(device), begun, limit)
        rows = race.run(tell)
        if not rows:
            raise UserError(f"no run ended in {minutes:g} minutes: give more of them", code="too-little-time")
        choices = _choose(race, rows, out, overwrite=overwrite, tell=tell)
        best = choices[0].run
        model: Any = best.model().to(resolve_device(device))
        test = evaluate(model, store, "test", best.spec.lists, progress=tell(STAGES[4]))
    sentence, facts = sentence_of(choices, race.metric), tuple(race.facts.sentences())
    return AutoResult(
        Run.open(out), race.metric, sentence, facts, choices, tuple(rows), test, time.perf_counter() - begun
    )


@dataclass
class Race:
    """The runs on one store that compete, and the time that they have."""

    store: Store
    work: Path
    plan: Plan
    seed: int
    device: str
    engine: Runner
    begun: float
    limit: float
    metric: str = "ndcg@10"

    @cached_property
    def facts(self) -> Facts:
        return Facts.of(self.store)

    @property
    def common(self) -> Settings:
        """Settings of all runs: one metric, and lists that may hold the history
        where many targets stand in it."""
        seen: Settings = {"evaluation.seen": "keep"} if self.facts.repeats > MANY_REPEATS else {}
        return {"evaluation.selection": self.metric} | seen

    @property
    def left(self) -> float:
        """Seconds for training."""
        return max(self.limit - (time.perf_counter() - self.begun), 1.0)

    def share(self, count: int) -> float:
        """Seconds of each of `count` runs that share the time, as many beside each other as the engine runs."""
        return self.left / math.ceil(count / (self.engine.jobs or 1))

    def run(self, tell: Tell) -> list[Row]:
        """The rows of all runs that ended, the best first."""
        rows = self._rows(tell(STAGES[0]), [self._job(name, name, {}) for name in COUNTED])
        known, step = contenders(self.facts), tell(STAGES[1])
        first = self.plan.decide("first", lambda: self._epochs(known))
        raced = self._rows(step, [self._job(f"{name}-first", *known[name], epochs) for name, epochs in first.items()])
        second = self.plan.decide("second", lambda: self._last(raced))
        last = [self._job(f"{name}-last", *known[name], epochs) for name, epochs in second.items()]
        return sorted([*rows, *raced, *self._rows(tell(STAGES[2]), last)], key=self.value, reverse=True)

    def value(self, row: Row) -> float:
        """The selection metric of a row."""
        return float(row["metrics"]["validation"][self.metric])

    def _job(self, cell: str, recipe: str, settings: Settings, epochs: int | None = None) -> Job:
        changes = dict(self.common)
        if epochs is not None:
            changes |= {"training.max_epochs": epochs, "training.schedule": "linear", "training.warmup": 0.05}
        spec = Cell(name=cell, recipe=recipe, set=changes | settings)
        return make_jobs(spec, (self.seed,), ("validation",), selection_only=True)[0]

    def _rows(self, progress: Progress, jobs: Sequence[Job]) -> list[Row]:
        """Run jobs and return the rows of those that did not fail."""
        outcome = run_jobs(
            jobs,
            self.store,
            self.work,
            progress=False,
            engine=self.engine,
            priced=False,
            on_row=lambda outcome: progress(len(outcome.newest), max(len(jobs), 1)),
        )
        return [row for row in outcome.newest if not row.get("error")]

    def _epochs(self, known: Mapping[str, tuple[str, Settings]]) -> dict[str, int]:
        """Epochs of each contender in the first round: as many as an equal share of its time buys.

        Contenders that do not get an epoch are left out, and so are those that this store
        or machine cannot train.
        """
        costs: dict[str, JobCost] = {}
        if self.left < LEAST_RACED:
            return {}
        price = Attempt(partial(measure_costs, store=self.store, device=self.device), self.engine.threads)
        for name, (recipe, settings) in known.items():
            try:
                job = self._job(f"{name}-first", recipe, settings, epochs=1)
                cost = price.result([job])[job.cost_key]
            except UserError:
                continue
            if cost is not None:
                costs[name] = cost
        for count in range(len(costs), 0, -1):  # fewer of them, the likeliest, where all would get too few epochs
            costs = dict(list(costs.items())[:count])
            share = self.share(count) * RACED
            if count <= LAST or all(cost.train * LEAST_EPOCHS + cost.evaluation < share for cost in costs.values()):
                break
        affordable = {
            name: int((share - cost.evaluation) / (cost.step * cost.steps_per_epoch + cost.validation))
            for name, cost in costs.items()
        }
        enough = {name: min(epochs, MOST_EPOCHS) for name, epochs in affordable.items() if epochs > 0}
        if enough or not costs:
            return enough
        quickest = min(costs, key=lambda name: costs[name].train)
        return {quickest: 1} if costs[quickest].total < self.left else {}

    def _last(self, raced: Sequence[Row]) -> dict[str, int]:
        """Epochs of each contender in the second round: as many as the rest of the time buys."""
        best = sorted(raced, key=self.value, reverse=True)[:LAST]
        epochs = {}
        for row in best:
            allowed = int((self.share(len(best)) - row["seconds"]["evaluate"]) / max(seconds_per_epoch(row), 1e-6))
            if allowed > 1.3 * row["epochs"]:
                epochs[row["cell"].removesuffix("-first")] = min(allowed, MOST_EPOCHS)
        return epochs


def seconds_per_epoch(row: Row) -> float:
    """Seconds that an epoch of a run took, validation included."""
    return float(row["seconds"]["train"] / max(row["epochs"], 1))


def _choose(race: Race, rows: Sequence[Row], out: Path, *, overwrite: bool, tell: Tell) -> tuple[Choice, ...]:
    """Blend the best runs, write the best of all into the folder `out`, and
    return the choices, best first."""
    step, cells = tell(STAGES[3]), race.plan.decide("members", lambda: _members(rows))
    values = {row["cell"]: race.value(row) for row in rows}
    runs = {cell: Run.open(race.work / "cells" / f"{cell}-seed{race.seed}") for cell in cells}
    choices = [_measure_choice(race, cell, run, values[cell]) for cell, run in runs.items()]
    if len(runs) > 1:
        joined = _blend_runs(race, runs, step)
        gains = joined.manifest["blend"]
        if gains["blend"] > max(values.values()) + gains["blend_se"] * LEAST_GAIN:
            choices.append(_measure_choice(race, BLEND, joined, gains["blend"]))
    choices.sort(key=lambda choice: -choice.value)
    check_place(out, overwrite=overwrite)
    with whole_folder(out, "auto") as folder:
        copy_run(choices[0].run, folder)
    return tuple(choices)


def _members(rows: Sequence[Row]) -> list[str]:
    """The cells that are blended: the best raced runs, one of each
    contender, and the best counted ones."""
    best = dict[str, Row]()
    for row in rows:  # the best first
        best.setdefault(row["cell"].removesuffix("-first").removesuffix("-last"), row)
    of_counted = [row["cell"] for name, row in best.items() if name in COUNTED][:COUNTED_IN_BLEND]
    return [row["cell"] for name, row in best.items() if name not in COUNTED][:RACED_IN_BLEND] + of_counted


def _blend_runs(race: Race, runs: Mapping[str, Run], progress: Progress) -> Run:
    """A blend of all runs, or of those that bring something where that is as good."""
    settings = [f"{path}={value}" for path, value in race.common.items()]

    def blended(members: Sequence[Run], name: str) -> Run:
        device = resolve_device(race.device)
        return blend(members, race.store, race.work / name, settings, device=device, overwrite=True, progress=progress)

    whole = blended(list(runs.values()), "blend")
    gains = whole.manifest["blend"]
    gain_of_run = zip(runs.values(), gains["members"], strict=True)
    useful = [run for run, gain in gain_of_run if gain["brings"] > gain["brings_se"] / 2]
    if not 2 <= len(useful) < len(runs):
        return whole
    fewer = blended(useful, "blend-fewer")
    return fewer if fewer.manifest["blend"]["blend"] > gains["blend"] - gains["blend_se"] / 4 else whole


def _measure_choice(race: Race, name: str, run: Run, value: float) -> Choice:
    """A run as a choice: its costs are measured by one evaluation on validation."""
    model: Any = run.model().to(resolve_device(race.device))
    begun = time.perf_counter()
    spec = run.spec.lists.model_copy(update={"metrics": (race.metric, "gini@10"), "slices": False, "bootstrap": 0})
    evaluation = evaluate(model, race.store, "validation", spec)
    ms = 1000 * (time.perf_counter() - begun) / evaluation.protocol["users"]
    files = (file for file in run.path.rglob("*") if file.is_file() and "checkpoints" not in file.parts)
    size = sum(file.stat().st_size for file in files)
    return Choice(name, run, value, ms, size, evaluation.metrics["gini@10"])


def sentence_of(choices: Sequence[Choice], metric: str) -> str:
    """Say which of the choices (best first) was taken, by how much, and what cheaper ones would cost."""
    best, others = choices[0], choices[1:]
    if best.name == BLEND:
        members = best.run.manifest["blend"]["members"]
        names = [member["name"].rpartition("-seed")[0] or member["name"] for member in members]
        sentence = f"took a blend of {', '.join(names[:-1])} and {names[-1]}"
    else:
        sentence = f"took {best.name}"
    sentence += f" ({metric} {best.value:.4f} on validation"
    if not others:
        return f"{sentence}); nothing else ended"
    sentence += f", {best.value / max(others[0].value, 1e-12) - 1:.1%} more than {others[0].name})"
    near = [choice for choice in others if choice.value >= WITHIN * best.value]
    if not near:
        return f"{sentence}; nothing else is within {1 - WITHIN:.0%}: {_compared(others[0], best)}"
    picks = {
        "the fastest": min(near, key=lambda choice: choice.ms),
        "the smallest": min(near, key=lambda choice: choice.bytes),
        "the fairest": min(near, key=lambda choice: choice.gini),
    }
    picked = "; ".join(f"{what} {_compared(choice, best)}" for what, choice in picks.items())
    return f"{sentence}; within {1 - WITHIN:.0%}: {picked}"


def _compared(choice: Choice, best: Choice) -> str:
    """A choice beside the best: accuracy, speed, size, and how evenly it lists items."""
    return (
        f"{choice.name} ({choice.value / best.value - 1:+.1%}; {best.ms / max(choice.ms, 1e-9):.1f} times as fast, "
        f"{choice.bytes / best.bytes:.0%} of the size, Gini {choice.gini:.2f} for {best.gini:.2f})"
    )
