"""One run alone: whom it attends to, and what it becomes without each of its blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullrank.analysis.ablation import FAIRNESS
from fullrank.analysis.attention_share import LABELS
from fullrank.analysis.report import Figure, Missing, Panel
from fullrank.analysis.report.draw import COLOURS, GREY, legend, look, panel
from fullrank.analysis.report.findings import Finding


def attention(one: Finding) -> Figure | Missing:
    """Attention to each band of popularity over its share of the events that are read."""
    name, title = f"attention-{one.key}", f"Whom run {one.key} attends to"
    rows = one.diagnosis.of("attention_share")
    if not rows:
        return Missing(name, title, f"{_why(one, 'attention_share')}.")
    keys = {row["label"]: row["value"] for row in rows if row["name"] == "keys"}
    uniform = {row["label"]: row["value"] for row in rows if row["name"] == "uniform"}
    labels = [label for label in LABELS if label in keys]
    ratio = {
        (row["layer"], row["head"], row["label"]): row["value"]
        for row in rows if row["name"] == "ratio" and row["label"] in labels
    }  # fmt: skip
    heads = sorted({(layer, head) for layer, head, _ in ratio})
    means = {
        layer: [float(np.mean([ratio[key, head, label] for key, head in heads if key == layer])) for label in labels]
        for layer in sorted({layer for layer, _ in heads})
    }

    def paint(axes: Any) -> None:
        at = range(len(labels))
        axes.axhline(1, color=GREY, lw=1)
        even = [uniform[label] / keys[label] for label in labels]
        axes.plot(at, even, color=GREY, ls=":", label="even attention")
        for place, (layer, values) in enumerate(means.items()):
            axes.plot(at, values, label=f"layer {layer + 1}", **look(place))
            for head in (head for key, head in heads if key == layer):
                spots = [ratio[layer, head, label] for label in labels]
                axes.plot(at, spots, ".", color=look(place)["color"], alpha=0.45, ms=4)
        axes.set_xticks(list(at), labels)
        legend(axes)

    caption = (
        "While reading a history, the model weighs its items. At 1 a group of items gets as much weight as it has "
        "places in the histories; above 1 it gets more. Lines are layers (small dots their heads); the dotted line is "
        "what weighing everything alike would give, because early items are read more often."
    )
    tops = "; ".join(f"layer {layer + 1} {values[0]:.2f}" for layer, values in means.items())
    alt = f"Attention over share of events by popularity band. For the {labels[0]} of items: {tops}."
    table = tuple(
        (f"layer {layer + 1}, head {head + 1}", *(ratio[layer, head, label] for label in labels))
        for layer, head in heads
    )
    first = (("share of events", *(keys[label] for label in labels)),)
    drawn = panel(name, paint, alt, x="items by popularity", y="attention over share of events")
    return Figure(name, title, caption, (drawn,), ("", *labels), first + table)


def ablation(one: Finding) -> Figure | Missing:
    """Collapse share, fairness and accuracy without each block."""
    name, title = f"ablation-{one.key}", f"Run {one.key} without its parts"
    rows = one.diagnosis.of("ablation")
    if not rows:
        return Missing(name, title, f"{_why(one, 'ablation')}.")
    found: dict[tuple[str, int | None], dict[str, float]] = {}
    for row in rows:
        if row["value"] is not None:
            found.setdefault((str(row["label"]), row["layer"]), {})[row["name"]] = row["value"]
    words = {place: _word(*place) for place in found}
    figures = [name for name in ("collapse_share", FAIRNESS, one.accuracy) if all(name in v for v in found.values())]
    panels: list[Panel] = []
    for figure in figures:

        def paint(axes: Any, figure: str = figure) -> None:
            values = [found[place][figure] for place in found]
            colours = [_colour(label) for label, _ in found]
            axes.barh(range(len(found)), values, color=colours, height=0.7)
            axes.axvline(values[0], color=GREY, lw=1, ls="--")
            axes.set_yticks(range(len(found)), list(words.values()))
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)

        label = figure.replace("_", " ")
        alt = f"{label} of the whole model and without each part: " + "; ".join(
            f"{words[place]} {found[place][figure]:.3f}" for place in found
        )
        shape = 1.3 + 0.24 * len(found)
        panels.append(panel(f"{name}-{len(panels)}", paint, alt, x=label, y="", height=shape))
    caption = (
        "One part at a time is switched off, so that it passes its input on, and everything is measured again on a "
        "sample of users; nothing is trained anew. A part without which the collapse share falls and fairness rises is "
        "one that amplifies popularity. The dashed line is the whole model."
    )
    table = tuple((words[place], *(found[place].get(name) for name in _names(found))) for place in found)
    headers = ("", *(name.replace("_", " ") for name in _names(found)))
    return Figure(name, title, caption, tuple(panels), headers, table)


def _names(found: dict[tuple[str, int | None], dict[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for values in found.values() for name in values))


def _word(label: str, layer: int | None) -> str:
    kind = label.replace("_", "-")
    return "whole model" if label == "whole" else f"no {kind}" if layer is None else f"no {kind} {layer + 1}"


def _colour(label: str) -> str:
    return {"whole": GREY, "attention": COLOURS[0]}.get(label, COLOURS[1])


def _why(one: Finding, diagnostic: str) -> str:
    return f"{one.name}: {one.diagnosis.left_out().get(diagnostic, 'it was not measured')}"
