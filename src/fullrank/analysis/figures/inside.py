"""Inside the models: the spectrum of the scores, what each layer does to it, and the bound of Theorem 4.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.draw import legend, logarithmic, look, panel, whole_numbers
from fullrank.analysis.report.findings import Finding


def spectrum(findings: Sequence[Finding]) -> Figure | Missing:
    """Singular values of the score matrix over the largest."""
    name, title = "spectrum", "How many directions the scores have"
    there, absent = having(findings, "spectrum")
    if not there:
        return Missing(name, title, " ".join(absent))
    curves = {one.key: [row["value"] for row in one.diagnosis.of("spectrum", "sigma")] for one in there}

    def paint(axes: Any) -> None:
        for one in there:
            values = [value / curves[one.key][0] for value in curves[one.key] if value > 0]
            style = look(findings.index(one)) | {"marker": "o" if len(values) == 1 else ""}
            axes.plot(range(1, len(values) + 1), values, label=one.key, **style)
        logarithmic(axes)
        legend(axes)

    shares = {one.key: one.diagnosis.value("spectrum", "collapse_share") for one in there}
    likeness = {one.key: one.diagnosis.value("spectrum", "popularity_spearman") for one in there}
    caption = (
        "All scores that a model gives (users by items) are a sum of patterns; the curve shows how strong each is, the "
        "first being 1. A curve that drops at once means one pattern decides, and everybody gets nearly the same list. "
        "The collapse share is how much of all scores is that first pattern; its likeness to popularity is the rank "
        "correlation with how often items were used (1: it is a popularity ranking)."
    )
    alt = "Falling curves of singular values. Share of the first: " + "; ".join(
        f"{key} {share:.3f}" for key, share in shares.items() if share is not None
    )
    rows = tuple(
        (f"{one.key} {one.name}", shares[one.key], likeness[one.key],
         one.diagnosis.value("spectrum", "popularity_cosine"), one.diagnosis.value("spectrum", "entropy_rank"),
         one.diagnosis.value("spectrum", "width"), curves[one.key][0])
        for one in there
    )  # fmt: skip
    headers = ("run", "collapse share", "likeness to popularity", "as a cosine", "directions in use", "of", "largest")
    drawn = panel(name, paint, alt, x="pattern, by falling strength", y="strength (first = 1)")
    return Figure(name, title, caption, (drawn,), headers, rows, absent)


def layers(findings: Sequence[Finding]) -> Figure | Missing:
    """Collapse share, entropy rank and largest singular value of the outputs, layer by layer."""
    name, title = "layers", "What each layer does to the states"
    there, absent = having(findings, "layers")
    if not there:
        return Missing(name, title, " ".join(absent))
    figures = {
        "collapse_share": ("collapse share", "share of the strongest direction"),
        "entropy_rank": ("directions in use", "directions in use (entropy rank)"),
        "sigma_1": ("largest singular value", "largest singular value"),
    }
    panels = []
    for figure, (word, label) in figures.items():

        def paint(axes: Any, figure: str = figure) -> None:
            for one in there:
                values = _by_layer(one, "layers", figure)
                axes.plot(list(values), list(values.values()), label=one.key, **look(findings.index(one)))
            if figure == "sigma_1":
                logarithmic(axes)
            whole_numbers(axes)
            legend(axes)

        alt = f"{word} by layer: " + "; ".join(
            f"{one.key} from {values[0]:.3g} to {values[max(values)]:.3g}"
            for one in there if (values := _by_layer(one, "layers", figure))
        )  # fmt: skip
        panels.append(panel(f"{name}-{figure}", paint, alt, x="layer (0: input)", y=label))
    caption = (
        "After each layer every user is a point; these curves say how those points spread. Falling directions and a "
        "rising share mean that users are squeezed towards one line: the model tells them apart less and less."
    )
    rows = tuple(
        (f"{one.key} {one.name}", layer, *(_by_layer(one, "layers", figure).get(layer) for figure in figures))
        for one in there for layer in _by_layer(one, "layers", "sigma_1")
    )  # fmt: skip
    headers = ("run", "layer", *(word for word, _ in figures.values()))
    return Figure(name, title, caption, tuple(panels), headers, rows, absent)


def bound(findings: Sequence[Finding]) -> Figure | Missing:
    """The norm that is measured behind each layer, and the one that Theorem 4.1 allows."""
    name, title = "bound", "What the theory allows, and what is there"
    there, absent = having(findings, "bound")
    if not there:
        return Missing(name, title, " ".join(absent))

    def paint(axes: Any) -> None:
        for one in there:
            style = look(findings.index(one))
            for figure, dashed in (("log10_norm", False), ("log10_bound", True)):
                values = _by_layer(one, "bound", figure)
                kept = style | {"linestyle": "--" if dashed else "-"}
                label = f"{one.key} {'bound' if dashed else 'measured'}"
                axes.plot(list(values), list(values.values()), label=label, **kept)
        whole_numbers(axes)
        legend(axes)

    caption = (
        "How large the states can become behind each layer by Theorem 4.1 of SPRINT (dashed), from the norms of the "
        "model's matrices and its attention, and how large they are (solid), as powers of ten. The bound is far above: "
        "it is what SPRINT presses down, and it says which factors leave room for one direction to take over."
    )
    alt = "Measured norm and bound by layer, powers of ten: " + "; ".join(
        f"{one.key} ends at {measured:.2f} below {limit:.2f}"
        for one in there
        if (measured := top(one, "bound", "log10_norm")) is not None
        and (limit := top(one, "bound", "log10_bound")) is not None
    )
    rows: list[tuple[Any, ...]] = []
    for one in there:
        norms, limits = (_by_layer(one, "bound", figure) for figure in ("log10_norm", "log10_bound"))
        rows += [(f"{one.key} {one.name}", layer, norms[layer], limits.get(layer)) for layer in norms]
        scores = {row["name"]: row["value"] for row in one.diagnosis.of("bound") if row["label"] == "scores"}
        rows.append((f"{one.key} {one.name}", "scores", scores.get("log10_norm"), scores.get("log10_bound")))
    headers = ("run", "layer", "measured (power of ten)", "bound (power of ten)")
    drawn = panel(name, paint, alt, x="layer (0: input)", y="norm (power of ten)")
    return Figure(name, title, caption, (drawn,), headers, tuple(rows), absent)


def having(findings: Sequence[Finding], diagnostic: str) -> tuple[list[Finding], tuple[str, ...]]:
    """The runs that have a diagnostic, and a sentence for each that has not."""
    there = [one for one in findings if one.diagnosis.of(diagnostic)]
    absent = [
        f"Run {one.key} ({one.name}) is not shown: {one.diagnosis.left_out().get(diagnostic, 'it was not measured')}."
        for one in findings if one not in there
    ]  # fmt: skip
    return there, tuple(absent)


def _by_layer(one: Finding, diagnostic: str, name: str) -> dict[int, float]:
    """Layer -> value, where both are there."""
    return {
        row["layer"]: row["value"]
        for row in one.diagnosis.of(diagnostic, name)
        if row["layer"] is not None and row["value"] is not None
    }


def top(one: Finding, diagnostic: str, name: str) -> float | None:
    """A figure behind the last layer that has it; None where no layer has."""
    values = _by_layer(one, diagnostic, name)
    return values[max(values)] if values else None
