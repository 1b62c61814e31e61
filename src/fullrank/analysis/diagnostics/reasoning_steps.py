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

from fullrank.analysis.activations import SampleStore, device_of
from fullrank.analysis.diagnosis import Row, not_measured, row, rows_of
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.analysis.diagnostics.diversity import ReasoningFigure
from fullrank.analysis.report import Figure
from fullrank.analysis.report.draw import GREY, integer_ticks, legend, look, panel
from fullrank.analysis.report.lines import plot_run
from fullrank.analysis.report.results import RunResult, Runs, accuracy_word
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
    title = "Accuracy and cost by reasoning steps"
    runs_model = True

    def rows(self) -> list[Row]:
        if self.context.model.reasoner is None:
            return []
        model, (store, spec) = self.context.model, evaluated_with(self)
        most = model.reasoner.steps + BEYOND
        longer = spec.override(f"reasoning.steps={most}")
        found = [row(self.name, "trained", model.reasoner.steps)]
        points = accuracy_by_steps(
            model, store, self.context.split, longer, rounds=1, device=device_of(model), progress=self.progress
        )
        for point in points:
            label = "adaptive" if point.adaptive else "fixed"
            figures = point.metrics | {"steps": point.steps, "seconds": point.seconds}
            found += rows_of(self.name, figures, index=point.asked, label=label)
        return found

    @classmethod
    def draw(cls, there: Runs, results: Runs) -> Figure:
        """Accuracy by steps, and accuracy against seconds."""
        word = accuracy_word(there)
        fixed, adaptive = ({one.key: _curve(one, label) for one in there} for label in ("fixed", "adaptive"))

        def plot(axes: Any, one: RunResult, along: str) -> str:
            plot_run(axes, one, results, {p[along]: p["accuracy"] for p in fixed[one.key]})
            colour: str = look(results.index(one))["color"]
            for p in adaptive[one.key]:
                label = f"{one.key}, each its own"
                axes.plot(p[along], p["accuracy"], marker="*", ms=11, ls="", color=colour, label=label)
            return colour

        def by_steps(axes: Any) -> None:
            for one in there:
                colour, trained = plot(axes, one, "steps"), one.diagnosis.value(cls.name, "trained")
                if trained is not None:
                    axes.axvline(trained, color=colour, lw=0.8, ls=":")
            integer_ticks(axes)
            legend(axes)

        def by_seconds(axes: Any) -> None:
            for one in there:
                plot(axes, one, "seconds")
                for p in fixed[one.key]:
                    axes.annotate(f"{p['steps']:g}", (p["seconds"], p["accuracy"]), xytext=(4, 4), fontsize=7,
                                  textcoords="offset points", color=GREY)  # fmt: skip
            legend(axes)

        caption = (
            "The same model, stopped after 0, 1, 2, ... reasoning steps (0: it answers at once). Further up finds "
            "more of what people chose next; further right takes longer. The dotted line marks the steps it was "
            "trained with. The star stops every person by themselves, as soon as their list no longer changes. Seconds "
            "are of the machine that drew this page; compare them within the figure only."
        )
        alt = f"{word} by steps: " + "; ".join(
            f"{key} {points[0]['accuracy']:.4f} at {points[0]['steps']:g}, {points[-1]['accuracy']:.4f} at "
            f"{points[-1]['steps']:g}" for key, points in fixed.items()
        )  # fmt: skip
        rows = tuple(
            (one.label, label, p["steps"], p["accuracy"], p["seconds"])
            for one in there
            for label, points in (("fixed", fixed[one.key]), ("adaptive", adaptive[one.key])) for p in points
        )  # fmt: skip
        panels = (
            panel(f"{cls.name}-steps", by_steps, alt, x="reasoning steps", y=word),
            panel(f"{cls.name}-seconds", by_seconds,
                  f"{word} against seconds per 1,000 people, for the same steps as beside.",
                  x="seconds per 1,000 people", y=word),
        )  # fmt: skip
        headers = ("run", "stopping", "steps taken", word, "seconds per 1,000 people")
        return Figure(cls.name, cls.title, caption, panels, headers, rows)


class OracleStep(ReasoningFigure):
    """The ceiling of choosing every user's step; `label` names the metric. Nothing without a reasoner."""

    name = "oracle_step"
    title = "Accuracy with the best number of steps for each user (oracle)"
    internal = True
    runs_model = True

    def rows(self) -> list[Row]:
        if self.context.model.reasoner is None:
            return []
        model, (store, spec) = self.context.model, evaluated_with(self)
        spec = spec.model_copy(update={"bootstrap": SAMPLES})
        found = []
        for one in oracle_ceilings(model, store, self.context.split, spec, device=device_of(model)):
            figures = {"fixed": one.fixed, "best": one.best, "gap": one.gap}
            figures |= {"gap_low": one.interval[0], "gap_high": one.interval[1]}
            found += rows_of(self.name, figures, label=one.metric)
            for step, (mean, share) in enumerate(zip(one.steps, one.chosen, strict=True)):
                found += rows_of(self.name, {"step": mean, "chosen": share}, index=step, label=one.metric)
        return found

    @classmethod
    def draw(cls, there: Runs, results: Runs) -> Figure:
        """The model's accuracy, and what the best step of every user would give."""
        found = {one.key: one.diagnosis.values(cls.name, None, "name", label=one.accuracy, index=None) for one in there}

        def paint(axes: Any) -> None:
            for place, one in enumerate(there):
                values, colour = found[one.key], look(results.index(one))["color"]
                axes.bar(place, values["fixed"], 0.6, color=colour, label="as it answers" if not place else None)
                axes.bar(place, values["gap"], 0.6, bottom=values["fixed"], color="#e4e4e4", edgecolor=colour,
                         hatch="//", label="more, at each person's best step" if not place else None)  # fmt: skip
            axes.set_xticks(range(len(there)), [one.key for one in there])
            axes.grid(axis="x", visible=False)
            axes.set_ylim(top=1.4 * axes.get_ylim()[1])
            legend(axes, place="upper left")

        word = there[0].accuracy
        caption = (
            "A ceiling, and no result of the model: for every person it takes the reasoning step that happened to "
            "place what they really chose highest, which reads the truth. The hatched part is what perfect stopping "
            "would add. A small gap means that the model already uses what its steps know."
        )
        alt = f"{word} as it answers, and at each person's best step: " + "; ".join(
            f"{key} {values['fixed']:.4f} and {values['best']:.4f}" for key, values in found.items()
        )
        parts = ("fixed", "best", "gap", "gap_low", "gap_high")
        rows = tuple((one.label, *(found[one.key].get(part) for part in parts)) for one in there)
        headers = ("run", f"{word} as it answers", "at the best step (oracle)", "gap", "from", "to")
        drawn = panel(cls.name, paint, alt, x="run", y=word)
        return Figure(cls.name, cls.title, caption, (drawn,), headers, rows)


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
            return [not_measured(self.name, "it has one stream, or no gate that could be evened out")]
        learned = evaluate(model, store, split, spec, device=device_of(model))
        with equal_weights(reasoner):
            even = evaluate(model, store, split, spec, device=device_of(model))
        found = []
        for metric in learned.metrics:
            gain = compare(even, learned, metric, samples=FLIPS)
            figures = {"learned": gain.b, "even": gain.a, "gain": gain.difference, "p": gain.p}
            figures |= {"gain_low": gain.interval[0], "gain_high": gain.interval[1]}
            found += rows_of(self.name, figures, label=metric)
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
