"""What a reasoner's steps and its gate are worth, on a sample of users: three diagnostics that evaluate it again.

`step_curve`: accuracy and seconds per 1,000 users after 0, 1, ... steps for everybody, two more than were trained, and
with each user stopped when their list stays. `oracle_step`: the ceiling of choosing every user's step (it reads
the truth; PLR, Sec. 6.5.2). `gate_gain`: accuracy with the learned gate less that with equal weights, with its paired
interval (what Theorem 4.6 promises of a gate that knows which stream is right).

The seconds are the one figure here that is not the same each time.
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
"""Most users measured: the first of the sample, whose order is random."""
BEYOND = 2
"""Steps of the curve beyond those trained."""
SAMPLES = 200
"""Resamplings of the users behind the interval of the gap."""
FLIPS = 2000
"""Random signs behind the p value of the gate's gain."""


class StepCurve(ReasoningFigure):
    """Accuracy and seconds of each number of steps, and of the adaptive one; nothing without a reasoner."""

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
        if self.context.model.reasoner is None:
            return []
        model, (store, spec) = self.context.model, evaluated_with(self)
        most = model.reasoner.steps + BEYOND
        longer = spec.override(f"reasoning.steps={most}")
        found = [self.row("trained", model.reasoner.steps)]
        points = accuracy_by_steps(model, store, self.context.split, longer, rounds=1, progress=self.progress)
        for point in points:
            label = "adaptive" if point.adaptive else "fixed"
            figures = point.metrics | {"steps": point.steps, "seconds": point.seconds}
            found += self.rows_of(figures, index=point.asked, label=label)
        return found

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        """Accuracy by steps, and accuracy against seconds."""
        word, seconds = accuracy_word(there), "seconds per 1,000 people"
        rows = tuple(
            (one.label, label, point["steps"], point["accuracy"], point["seconds"])
            for one in there for label in ("fixed", "adaptive") for point in _curve(one, label)
        )  # fmt: skip
        trained = {one.diagnosis.value(cls.name, "trained") or 0 for one in there}
        by_steps = lines("steps taken", word, dash="stopping", upright={f"trained with {n:g}": n for n in trained})
        headers = ("run", "stopping", "steps taken", word, seconds)
        return claim.figure(headers, rows, by_steps, lines(seconds, word, dash="stopping", note="steps taken"))


class OracleStep(ReasoningFigure):
    """The ceiling of choosing every user's step; `label` names the metric. Nothing without a reasoner."""

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
        if self.context.model.reasoner is None:
            return []
        model, (store, spec) = self.context.model, evaluated_with(self)
        spec = spec.model_copy(update={"bootstrap": SAMPLES})
        found = []
        for one in oracle_ceilings(model, store, self.context.split, spec):
            figures = {"fixed": one.fixed, "best": one.best, "gap": one.gap}
            figures |= {"gap_low": one.interval[0], "gap_high": one.interval[1]}
            found += self.rows_of(figures, label=one.metric)
            for step, (mean, share) in enumerate(zip(one.steps, one.chosen, strict=True)):
                found += self.rows_of({"step": mean, "chosen": share}, index=step, label=one.metric)
        return found

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        """The model's accuracy, and what the best step of every user would give."""
        values = [one.diagnosis.values(cls.name, None, "name", label=one.accuracy, index=None) for one in there]
        parts = ("fixed", "best", "gap", "gap_low", "gap_high")
        rows = tuple((one.label, *map(of.get, parts)) for one, of in zip(there, values, strict=True))
        answers, oracle = f"{there[0].accuracy} as it answers", "at the best step (oracle)"
        chart = bars("run", (answers, oracle), by="", axis=there[0].accuracy)
        return claim.figure(("run", answers, oracle, "gap", "from", "to"), rows, chart)


class GateGain(Diagnostic):
    """Learned weights of the gate against equal ones, on the same users; `label` names the metric."""

    name = "gate_gain"
    runs_model = True

    def rows(self) -> list[Row]:
        if self.context.model.reasoner is None:
            return []
        model, (store, spec), split = self.context.model, evaluated_with(self), self.context.split
        reasoner = model.reasoner
        if reasoner.streams == 1 or not callable(getattr(reasoner, "weigh", None)):
            return self.left_out("it has one stream, or no gate that could be evened out")
        learned = evaluate(model, store, split, spec)
        with equal_weights(reasoner):
            even = evaluate(model, store, split, spec)
        found = []
        for metric in learned.metrics:
            gain = compare(even, learned, metric, samples=FLIPS)
            figures = {"learned": gain.b, "even": gain.a, "gain": gain.difference, "p": gain.p}
            figures |= {"gain_low": gain.interval[0], "gain_high": gain.interval[1]}
            found += self.rows_of(figures, label=metric)
        return found


def evaluated_with(diagnostic: Diagnostic) -> tuple[SampleStore, Evaluation]:
    """The users that are measured, and the run's protocol with its selection metric alone."""
    spec = diagnostic.context.evaluation
    light = spec.model_copy(update={"metrics": (spec.selection,), "slices": False})
    return diagnostic.context.first(USERS), light


@contextmanager
def equal_weights(reasoner: Any) -> Iterator[None]:
    """While this lasts, the gate weighs all streams alike."""
    reasoner.weigh = lambda start, streams: start.new_full((len(start), streams), 1 / streams)
    try:
        yield
    finally:
        del reasoner.weigh


def _curve(one: RunResult, label: str) -> list[dict[str, float]]:
    points: dict[int, dict[str, float]] = {}
    for (step, name), value in one.diagnosis.values(StepCurve.name, None, "index", "name", label=label).items():
        points.setdefault(step, {})["accuracy" if name == one.accuracy else name] = value
    return [points[step] for step in sorted(points) if {"accuracy", "steps", "seconds"} <= set(points[step])]
