"""Worth of a reasoner's steps and of its gate, on a sample of users: three diagnostics that evaluate the model again.

    step_curve    accuracy and seconds per 1,000 users after 0, 1, ... steps for everybody, two more than
                  were trained, and with each user stopped when their list stays
    oracle_step   the ceiling of choosing every user's step (it reads the truth; PLR, Sec. 6.5.2)
    gate_gain     accuracy with the learned gate less that with equal weights, with its paired interval
                  (Theorem 4.6 promises a gain for a gate that knows which stream is right)

The seconds are the only figure here that differs from call to call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fullrank.analysis.diagnostics import (
    Claim,
    Diagnostic,
    Figure,
    Row,
    RunResult,
    Runs,
    SampleStore,
    accuracy_word,
    bars,
    lines,
)
from fullrank.analysis.diagnostics.diversity import ReasoningFigure
from fullrank.evaluation import Evaluation, accuracy_by_steps, compare, evaluate, oracle_ceilings

USERS = 2048
"""Most users that are measured: the first of the sample, whose order is random."""
BEYOND = 2
"""Steps of the curve beyond those of the training."""
SAMPLES = 200
"""Resamples of the users for the interval of the gap."""
FLIPS = 2000
"""Draws of random signs for the p value of the gate's gain."""


class StepCurve(ReasoningFigure):
    """Accuracy and seconds by number of steps, and with adaptive stopping."""

    name = "step_curve"
    claim = Claim(
        "Accuracy and cost by reasoning steps",
        "The same model, stopped after 0, 1, 2, ... reasoning steps (0: it answers at once). Further up finds "
        "more of what people chose next; further right takes longer. The dashed line marks the steps it was "
        "trained with. The star stops every person by themselves, as soon as their list no longer changes. Seconds "
        "are of the machine that drew this page; compare them within the figure only.",
    )
    runs_model = True

    def rows(self) -> list[Row]:
        model, (store, spec) = self.context.model, evaluated_with(self)
        if model.reasoner is None:
            return []
        rows = [self.row("trained", model.reasoner.steps)]
        spec = spec.override(f"reasoning.steps={model.reasoner.steps + BEYOND}")
        for point in accuracy_by_steps(model, store, self.context.split, spec, rounds=1, progress=self.progress):
            label = "adaptive" if point.adaptive else "fixed"
            figures = point.metrics | {"steps": point.steps, "seconds": point.seconds}
            rows += self.rows_of(figures, index=point.asked, label=label)
        return rows

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        """Accuracy by steps, and accuracy against seconds."""
        word, seconds = accuracy_word(there), "seconds per 1,000 people"
        rows = [
            (run.label, label, point["steps"], point["accuracy"], point["seconds"])
            for run in there
            for label in ("fixed", "adaptive")
            for point in _curve(run, label)
        ]
        trained = {run.diagnosis.value(cls.name, "trained") or 0 for run in there}
        by_steps = lines("steps taken", word, dash="stopping", upright={f"trained with {n:g}": n for n in trained})
        headers = ("run", "stopping", "steps taken", word, seconds)
        return claim.figure(headers, rows, by_steps, lines(seconds, word, dash="stopping", note="steps taken"))


class OracleStep(ReasoningFigure):
    """The ceiling of choosing every user's step; `label` is the metric."""

    name = "oracle_step"
    claim = Claim(
        "Accuracy with the best number of steps for each user (oracle)",
        "A ceiling, and no result of the model: for every person it takes the reasoning step that happened to "
        "place what they really chose highest, which reads the truth. The second bar is what perfect stopping "
        "would give. A small gap means that the model already uses what its steps know.",
    )
    internal = True
    runs_model = True

    def rows(self) -> list[Row]:
        model, (store, spec) = self.context.model, evaluated_with(self)
        if model.reasoner is None:
            return []
        rows = []
        for ceiling in oracle_ceilings(
            model, store, self.context.split, spec.model_copy(update={"bootstrap": SAMPLES})
        ):
            figures = zip(GAP, (ceiling.fixed, ceiling.best, ceiling.gap, *ceiling.interval), strict=True)
            rows += self.rows_of(dict(figures), label=ceiling.metric)
            for step, (mean, share) in enumerate(zip(ceiling.steps, ceiling.chosen, strict=True)):
                rows += self.rows_of({"step": mean, "chosen": share}, index=step, label=ceiling.metric)
        return rows

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        """The model's accuracy, and what the best step of every user would give."""
        rows = []
        for run in there:
            figures = run.diagnosis.values(cls.name, None, "name", label=run.accuracy, index=None)
            rows.append((run.label, *map(figures.get, GAP)))
        answers, oracle = f"{there[0].accuracy} as it answers", "at the best step (oracle)"
        chart = bars("run", (answers, oracle), by="", axis=there[0].accuracy)
        return claim.figure(("run", answers, oracle, "gap", "from", "to"), rows, chart)


class GateGain(Diagnostic):
    """Accuracy with the gate's learned weights less that with equal ones, by metric."""

    name = "gate_gain"
    runs_model = True

    def rows(self) -> list[Row]:
        model, (store, spec), split = self.context.model, evaluated_with(self), self.context.split
        if model.reasoner is None:
            return []
        if model.reasoner.streams == 1 or not callable(getattr(model.reasoner, "weigh", None)):
            return self.left_out("it has one stream, or no gate that could be evened out")
        learned = evaluate(model, store, split, spec)
        with equal_weights(model.reasoner):
            even = evaluate(model, store, split, spec)
        rows = []
        for metric in learned.metrics:
            gain = compare(even, learned, metric, samples=FLIPS)
            figures = {"learned": gain.b, "even": gain.a, "gain": gain.difference, "p": gain.p}
            figures |= {"gain_low": gain.interval[0], "gain_high": gain.interval[1]}
            rows += self.rows_of(figures, label=metric)
        return rows


GAP = ("fixed", "best", "gap", "gap_low", "gap_high")
"""Names of the rows of `OracleStep`: accuracy as it answers and at the best step, the gap, the ends of its interval."""


def evaluated_with(diagnostic: Diagnostic) -> tuple[SampleStore, Evaluation]:
    """The store with the measured users, and the protocol with its selection metric alone."""
    spec = diagnostic.context.evaluation
    light = spec.model_copy(update={"metrics": (spec.selection,), "slices": False})
    return diagnostic.context.first(USERS), light


@contextmanager
def equal_weights(reasoner: Any) -> Iterator[None]:
    """Make the gate weigh all streams alike while the context lasts."""
    reasoner.weigh = lambda start, streams: start.new_full((len(start), streams), 1 / streams)
    try:
        yield
    finally:
        del reasoner.weigh


def _curve(run: RunResult, label: str) -> list[dict[str, float]]:
    """Points of a run's curve with accuracy, steps and seconds, by rising number of steps."""
    points: dict[int, dict[str, float]] = {}
    for (step, name), value in run.diagnosis.values(StepCurve.name, None, "index", "name", label=label).items():
        points.setdefault(step, {})["accuracy" if name == run.accuracy else name] = value
    return [points[step] for step in sorted(points) if {"accuracy", "steps", "seconds"} <= set(points[step])]
