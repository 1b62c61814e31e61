"""What a reasoner's steps and its gate are worth, on a sample of users: three measurements by evaluating it again.

`step_curve`: accuracy and seconds per 1,000 users after 0, 1, ... steps for everybody, two more than were trained, and
with each user stopped when their list has settled. `oracle_step`: the ceiling of choosing every user's step (it reads
the truth; PLR, Sec. 6.5.2). `gate_gain`: accuracy with the learned gate less that with equal weights, with its paired
interval (what Theorem 4.6 promises of a gate that knows which stream is right).

The seconds are the one figure here that is not the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.ablation import Chosen
from fullrank.analysis.reading import Sample, device_of
from fullrank.core.progress import Progress
from fullrank.data.events.store import Store
from fullrank.evaluation import Evaluation, accuracy_by_steps, compare, evaluate, oracle_ceilings
from fullrank.evaluation.retrieval import Split

USERS = 2048
"""Most users measured: the first of the sample, whose order is random."""
BEYOND = 2
"""Steps of the curve beyond those trained."""
SAMPLES = 200
"""Resamplings of the users behind the interval of the gap."""
FLIPS = 2000
"""Random signs behind the p value of the gate's gain."""


def thinking_rows(
    model: Any, store: Store, sample: Sample, split: Split, spec: Evaluation, progress: Progress | None = None
) -> list[Row]:
    """The three, by the metrics of `spec`; nothing for a model without a reasoner."""
    if getattr(model, "reasoner", None) is None:
        return []
    asked = Chosen(store, sample.first(USERS).users)
    light = spec.model_copy(update={"metrics": (spec.selection,), "slices": False})
    found = step_curve_rows(model, asked, split, light, progress)
    found += oracle_rows(model, asked, split, light.model_copy(update={"bootstrap": SAMPLES}))
    return found + gate_gain_rows(model, asked, split, light)


def step_curve_rows(
    model: Any, store: Chosen, split: Split, spec: Evaluation, progress: Progress | None = None
) -> list[Row]:
    """A point for each number of steps, and the adaptive one."""
    most = model.reasoner.steps + BEYOND
    longer = spec.override(f"reasoning.steps={most}")
    found = [row("step_curve", "trained", model.reasoner.steps)]
    points = accuracy_by_steps(model, store, split, longer, rounds=1, device=device_of(model), progress=progress)
    for point in points:
        label = "adaptive" if point.adaptive else "fixed"
        figures = point.metrics | {"steps": point.steps, "seconds": point.seconds}
        found += [row("step_curve", name, value, index=point.asked, label=label) for name, value in figures.items()]
    return found


def oracle_rows(model: Any, store: Chosen, split: Split, spec: Evaluation) -> list[Row]:
    """The ceiling; `label` names the metric."""
    found = []
    for one in oracle_ceilings(model, store, split, spec, device=device_of(model)):
        figures = {"fixed": one.fixed, "best": one.best, "gap": one.gap}
        figures |= {"gap_low": one.interval[0], "gap_high": one.interval[1]}
        found += [row("oracle_step", name, value, label=one.metric) for name, value in figures.items()]
        for step, (mean, share) in enumerate(zip(one.steps, one.chosen, strict=True)):
            found.append(row("oracle_step", "step", mean, index=step, label=one.metric))
            found.append(row("oracle_step", "chosen", share, index=step, label=one.metric))
    return found


def gate_gain_rows(model: Any, store: Chosen, split: Split, spec: Evaluation) -> list[Row]:
    """Learned weights against equal ones, on the same users; `label` names the metric."""
    reasoner = model.reasoner
    if reasoner.streams == 1 or not callable(getattr(reasoner, "weigh", None)):
        return [left_out("gate_gain", "it has one stream, or no gate that could be evened out")]
    learned = evaluate(model, store, split, spec, device=device_of(model))
    with evenly(reasoner):
        even = evaluate(model, store, split, spec, device=device_of(model))
    found = []
    for metric in learned.metrics:
        gain = compare(even, learned, metric, samples=FLIPS)
        figures = {"learned": gain.b, "even": gain.a, "gain": gain.difference, "p": gain.p}
        figures |= {"gain_low": gain.interval[0], "gain_high": gain.interval[1]}
        found += [row("gate_gain", name, value, label=metric) for name, value in figures.items()]
    return found


@contextmanager
def evenly(reasoner: Any) -> Iterator[None]:
    """While this lasts, the gate weighs all streams alike."""
    reasoner.weigh = lambda start, streams: start.new_full((len(start), streams), 1 / streams)
    try:
        yield
    finally:
        del reasoner.weigh
