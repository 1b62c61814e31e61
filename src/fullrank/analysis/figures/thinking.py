"""Runs that reason against each other: their streams step by step, what a step costs and brings, and the ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fullrank.analysis.figures.inside import having
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.draw import GREY, legend, logarithmic, look, panel, whole_numbers
from fullrank.analysis.report.findings import Finding

DIAGNOSTICS = ("diversity", "streams", "latent_attention", "step_curve", "oracle_step")


def reasons(one: Finding) -> bool:
    """Whether a run has a reasoner, as far as its diagnosis knows."""
    return any(one.diagnosis.of(name) for name in DIAGNOSTICS)


def diversity(findings: Sequence[Finding]) -> Figure | Missing:
    """Squared distance of the streams by step, with the fitted contraction."""
    name, title = "diversity", "Do the streams of thought stay apart?"
    there, absent = _thinking(findings, "diversity")
    if not there:
        return Missing(name, title, " ".join(absent))
    curves = {one.key: _steps(one, "diversity", "distance") for one in there}
    gamma = {one.key: one.diagnosis.value("diversity", "gamma") for one in there}

    def paint(axes: Any) -> None:
        for one in there:
            values = {step: value for step, value in curves[one.key].items() if value > 0}
            axes.plot(list(values), list(values.values()), label=one.key, **look(findings.index(one)))
        if any(value > 0 for values in curves.values() for value in values.values()):
            logarithmic(axes)
        whole_numbers(axes)
        legend(axes)

    caption = (
        "Before it answers, a model can think in several streams at once, a few steps each. The curve says how far "
        "apart the streams are after each step (mean squared distance; step 0 is where they start). If it falls to "
        "nothing, all streams end at the same thought and more than one was for nothing. The rate says how fast: with "
        "every step the distance shrinks by that power of e; below 0 the streams move apart instead."
    )
    alt = "Distance of the streams by step: " + "; ".join(
        f"{key} from {values[min(values)]:.3g} to {values[max(values)]:.3g}" for key, values in curves.items()
    )
    rows = tuple(
        (f"{one.key} {one.name}", step, value, gamma[one.key])
        for one in there for step, value in curves[one.key].items()
    )  # fmt: skip
    drawn = panel(name, paint, alt, x="step of thought (0: start)", y="distance of the streams")
    return Figure(name, title, caption, (drawn,), ("run", "step", "distance", "rate (gamma)"), rows, absent)


def step_curve(findings: Sequence[Finding]) -> Figure | Missing:
    """Accuracy by steps, and accuracy against seconds."""
    name, title = "step_curve", "What another step of thought brings, and costs"
    there, absent = _thinking(findings, "step_curve")
    if not there:
        return Missing(name, title, " ".join(absent))
    metrics = list(dict.fromkeys(one.accuracy for one in there))
    word = metrics[0] if len(metrics) == 1 else "accuracy"
    fixed = {one.key: _curve(one, "fixed") for one in there}
    settled = {one.key: _curve(one, "adaptive") for one in there}

    def by_steps(axes: Any) -> None:
        for one in there:
            style = look(findings.index(one))
            axes.plot([p["steps"] for p in fixed[one.key]], [p["accuracy"] for p in fixed[one.key]], label=one.key,
                      **style)  # fmt: skip
            _stars(axes, settled[one.key], "steps", style, one.key)
            trained = one.diagnosis.value("step_curve", "trained")
            if trained is not None:
                axes.axvline(trained, color=style["color"], lw=0.8, ls=":")
        whole_numbers(axes)
        legend(axes)

    def by_seconds(axes: Any) -> None:
        for one in there:
            style = look(findings.index(one))
            points = fixed[one.key]
            axes.plot([p["seconds"] for p in points], [p["accuracy"] for p in points], label=one.key, **style)
            for p in points:
                axes.annotate(f"{p['steps']:g}", (p["seconds"], p["accuracy"]), xytext=(4, 4), fontsize=7,
                              textcoords="offset points", color=GREY)  # fmt: skip
            _stars(axes, settled[one.key], "seconds", style, one.key)
        legend(axes)

    caption = (
        "The same model, stopped after 0, 1, 2, ... steps of thought (0: it answers at once). Further up finds more of "
        "what people chose next; further right takes longer. The dotted line marks the steps it was trained with. The "
        "star stops every person by themselves, as soon as their list no longer changes. Seconds are of the machine "
        "that drew this page; compare them within the figure only."
    )
    alt = f"{word} by steps: " + "; ".join(
        f"{key} {points[0]['accuracy']:.4f} at {points[0]['steps']:g}, {points[-1]['accuracy']:.4f} at "
        f"{points[-1]['steps']:g}" for key, points in fixed.items()
    )  # fmt: skip
    rows = tuple(
        (f"{one.key} {one.name}", label, p["steps"], p["accuracy"], p["seconds"])
        for one in there
        for label, points in (("fixed", fixed[one.key]), ("adaptive", settled[one.key])) for p in points
    )  # fmt: skip
    panels = (
        panel(f"{name}-steps", by_steps, alt, x="steps of thought", y=word),
        panel(f"{name}-seconds", by_seconds, f"{word} against seconds per 1,000 people, for the same steps as beside.",
              x="seconds per 1,000 people", y=word),
    )  # fmt: skip
    headers = ("run", "stopping", "steps taken", word, "seconds per 1,000 people")
    return Figure(name, title, caption, panels, headers, rows, absent)


def oracle_step(findings: Sequence[Finding]) -> Figure | Missing:
    """The model's accuracy, and what the best step of every user would give."""
    name, title = "oracle_step", "If we knew when to stop"
    there, absent = _thinking(findings, "oracle_step")
    if not there:
        return Missing(name, title, " ".join(absent))
    found = {one.key: _labelled(one, "oracle_step", one.accuracy) for one in there}

    def paint(axes: Any) -> None:
        for place, one in enumerate(there):
            values, colour = found[one.key], look(findings.index(one))["color"]
            axes.bar(place, values["fixed"], 0.6, color=colour, label="as it answers" if not place else None)
            axes.bar(place, values["gap"], 0.6, bottom=values["fixed"], color="#e4e4e4", edgecolor=colour, hatch="//",
                     label="more, at each person's best step" if not place else None)  # fmt: skip
        axes.set_xticks(range(len(there)), [one.key for one in there])
        axes.grid(axis="x", visible=False)
        axes.set_ylim(top=1.4 * axes.get_ylim()[1])
        legend(axes, place="upper left")

    word = there[0].accuracy
    caption = (
        "A ceiling, and no result of the model: for every person it takes the step of thought that happened to place "
        "what they really chose highest, which reads the truth. The hatched part is what perfect stopping would add. A "
        "small gap means that the model already uses what its steps know."
    )
    alt = f"{word} as it answers, and at each person's best step: " + "; ".join(
        f"{key} {values['fixed']:.4f} and {values['best']:.4f}" for key, values in found.items()
    )
    rows = tuple(
        (
            f"{one.key} {one.name}",
            *(found[one.key].get(part) for part in ("fixed", "best", "gap", "gap_low", "gap_high")),
        )
        for one in there
    )
    headers = ("run", f"{word} as it answers", "at the best step (oracle)", "gap", "from", "to")
    drawn = panel(name, paint, alt, x="run", y=word)
    return Figure(name, title, caption, (drawn,), headers, rows, absent)


def _thinking(findings: Sequence[Finding], diagnostic: str) -> tuple[list[Finding], tuple[str, ...]]:
    """The runs that have it, and a sentence for each that reasons and has not: who does not reason is no news."""
    return having([one for one in findings if reasons(one)], diagnostic)


def _steps(one: Finding, diagnostic: str, name: str) -> dict[int, float]:
    found = one.diagnosis.of(diagnostic, name)
    return {row["index"]: row["value"] for row in found if row["index"] is not None and row["value"] is not None}


def _curve(one: Finding, label: str) -> list[dict[str, float]]:
    points: dict[int, dict[str, float]] = {}
    for row in one.diagnosis.of("step_curve"):
        if row["label"] == label and row["value"] is not None:
            key = "accuracy" if row["name"] == one.accuracy else row["name"]
            points.setdefault(row["index"], {})[key] = row["value"]
    return [points[step] for step in sorted(points) if {"accuracy", "steps", "seconds"} <= set(points[step])]


def _stars(axes: Any, points: list[dict[str, float]], along: str, style: dict[str, Any], key: str) -> None:
    for p in points:
        axes.plot(p[along], p["accuracy"], marker="*", ms=11, ls="", color=style["color"], label=f"{key}, each its own")


def _labelled(one: Finding, diagnostic: str, label: str) -> dict[str, float]:
    """Name -> value, of the rows with a label and without a place."""
    found = one.diagnosis.of(diagnostic)
    return {row["name"]: row["value"] for row in found if row["label"] == label and row["index"] is None}
