"""Whether attention goes to what matters for the next choice: over many people, and for one with titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fullrank.analysis.report import Figure, Missing, Panel
from fullrank.analysis.report.draw import COLOURS, GREY, legend, look, panel, whole_numbers
from fullrank.analysis.report.findings import Finding
from fullrank.analysis.report.known import readable

WIDE = 30
"""Characters of a title in the picture; the table has all of it."""


def focus(findings: Sequence[Finding]) -> Figure | Missing:
    """The share of attention that relevant events get, layer by layer, beside their share of the events."""
    name, title = "focus", "Attention to what matters and to noise"
    told = [one for one in findings if one.diagnosis.of("focus", "relevant")]
    absent = tuple(_absent(one, "focus") for one in findings if one not in told)
    if not told:
        return Missing(name, title, _reasons(findings, "focus"))
    shares = {one.key: _by_layer(one, "relevant") for one in told}
    even = float(np.mean([one.diagnosis.value("focus", "even") or 0.0 for one in told]))

    def paint(axes: Any) -> None:
        axes.axhline(100 * even, color=GREY, ls=":", label="even attention")
        for place, one in enumerate(findings):
            if one in told:
                layers = sorted(shares[one.key])
                values = [100 * shares[one.key][layer] for layer in layers]
                axes.plot([layer + 1 for layer in layers], values, label=f"{one.key} {one.name}", **look(place))
        whole_numbers(axes)
        legend(axes)

    caption = (
        "Of the last 20 things a person did, some have to do with what they chose next: people who had the one had the "
        "other more often than chance. The lines say how much of its attention the model gives to those; the dotted "
        "line is their share of the events, what attending to everything alike would give. The rest goes to noise. "
        "The table also has attention with its sign: below 0 a model subtracts what it reads there."
    )
    tops = "; ".join(f"{one.key} " + ", ".join(f"{s:.0%}" for _, s in sorted(shares[one.key].items())) for one in told)
    alt = f"Share of attention to relevant events by layer, {even:.0%} of the events. Layer by layer: {tops}."
    headers = ("run", "layer", "relevant share", "over even", "signed, relevant", "signed, noise", "people")
    rows = tuple(
        (f"{one.key} {one.name}", layer + 1, shares[one.key][layer], _by_layer(one, "ratio")[layer],
         _by_layer(one, "signed", "relevant")[layer], _by_layer(one, "signed", "noise")[layer],
         one.diagnosis.value("focus", "users"))
        for one in told for layer in sorted(shares[one.key])
    )  # fmt: skip
    drawn = panel(name, paint, alt, x="layer", y="percent of attention")
    return Figure(name, title, caption, (drawn,), headers, rows, absent)


def case(findings: Sequence[Finding]) -> Figure | Missing:
    """One user's last events with their titles, and the attention that each run gives them."""
    name, title = "case", "What the runs attend to in one history"
    told = [one for one in findings if one.diagnosis.of("case", "share")]
    if not told:
        return Missing(name, title, _reasons(findings, "case"))
    history = {one.key: _history(one) for one in told}
    longest = max(told, key=lambda one: len(history[one.key]))
    events, about = history[longest.key], _about(longest)
    alike = [one for one in told if _about(one) == about and events[: len(history[one.key])] == history[one.key]]
    absent = tuple(_absent(one, "case") for one in findings if one not in told)
    absent += tuple(
        f"Run {one.key} ({one.name}) is not shown: its case is of other data." for one in told if one not in alike
    )
    if any(not 0 <= item < longest.run.catalog.size for item in (*(item for item, _ in events), about[1])):
        return Missing(name, title, f"{longest.name}: its diagnosis names items that are not in its catalogue.")
    titles = [_title(longest, item) for item, _ in events]
    shares = {one.key: _shares(one) for one in alike}
    panels: list[Panel] = []

    def paint(axes: Any) -> None:
        thick = 0.8 / len(alike)
        for place, one in enumerate(alike):
            values = [100 * float(np.mean(share)) for share in shares[one.key]]
            at = np.arange(len(values)) + (place - (len(alike) - 1) / 2) * thick
            axes.barh(at, values, thick, color=look(findings.index(one))["color"], label=f"{one.key} {one.name}")
        marks = ["✓" if label == "relevant" else "✗" for _, label in events]
        axes.set_yticks(range(len(titles)), [f"{_short(t)} {m}" for t, m in zip(titles, marks, strict=True)])
        for text, mark in zip(axes.get_yticklabels(), marks, strict=True):
            text.set_color("black" if mark == "✓" else COLOURS[1])
        axes.axvline(0, color=GREY, lw=1)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        legend(axes)

    chosen = _title(longest, about[1])
    caption = (
        f"One person's last events, the most recent first, before they chose '{chosen}'. Those with a tick have to do "
        "with it, a cross is noise. Bars are the share of attention that each run gives to an event, mean over its "
        "layers and heads; a bar to the left of 0 is subtracted."
    )
    marked = "; ".join(f"{one.key} {_relevant(shares[one.key], events):.2f}" for one in alike)
    alt = f"Attention to each of {len(events)} events of one person. Sum of the sizes over relevant events: {marked}."
    panels.append(
        panel(name, paint, alt, x="percent of attention", y="", height=1.3 + 0.14 * len(events) * (1 + len(alike)))
    )
    layers = [(one, layer) for one in alike for layer in range(len(shares[one.key][0]))]
    headers = ("event", "item", "title", "is", *(f"{one.key} layer {layer + 1}" for one, layer in layers))
    rows = tuple(
        (n + 1, readable(str(longest.run.catalog.ids[item])), titles[n], label,
         *(shares[one.key][n][layer] if n < len(shares[one.key]) else None for one, layer in layers))
        for n, (item, label) in enumerate(events)
    )  # fmt: skip
    return Figure(name, title, caption, tuple(panels), headers, rows, absent)


def _by_layer(one: Finding, name: str, label: str | None = None) -> dict[int, float]:
    """Means over heads."""
    return {
        row["layer"]: row["value"]
        for row in one.diagnosis.of("focus", name) if row["head"] is None and row["label"] == label
    }  # fmt: skip


def _about(one: Finding) -> tuple[int, int, str]:
    """User, target and data of a case."""
    user, target = (int(one.diagnosis.value("case", name) or 0) for name in ("user", "target"))
    return user, target, str(one.diagnosis.about().get("fingerprint"))


def _history(one: Finding) -> list[tuple[int, str]]:
    """(item, relevant or noise) of the events, the last first."""
    rows = sorted(one.diagnosis.of("case", "item"), key=lambda row: row["index"])
    return [(int(row["value"]), str(row["label"])) for row in rows]


def _shares(one: Finding) -> list[list[float]]:
    """By event (the last first), one for each layer."""
    rows = sorted(one.diagnosis.of("case", "share"), key=lambda row: (row["index"], row["layer"]))
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["index"], []).append(row["value"])
    return list(found.values())


def _relevant(shares: list[list[float]], events: list[tuple[int, str]]) -> float:
    """Sizes of the mean shares of the relevant events, added up."""
    means = [abs(float(np.mean(share))) for share in shares]
    return sum(mean for mean, (_, label) in zip(means, events, strict=False) if label == "relevant")


def _title(one: Finding, item: int) -> str:
    titles = one.run.catalog.titles
    return readable(
        str(one.run.catalog.ids[item]) if titles is None else titles[item] or str(one.run.catalog.ids[item])
    )


def _short(text: str) -> str:
    return text if len(text) <= WIDE else text[: WIDE - 3] + "..."


def _absent(one: Finding, diagnostic: str) -> str:
    return (
        f"Run {one.key} ({one.name}) is not shown: {one.diagnosis.left_out().get(diagnostic, 'it was not measured')}."
    )


def _reasons(findings: Sequence[Finding], diagnostic: str) -> str:
    return (
        "; ".join(f"{one.name}: {one.diagnosis.left_out().get(diagnostic, 'it was not measured')}" for one in findings)
        + "."
    )
