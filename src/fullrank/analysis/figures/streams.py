"""One run that reasons: whether its streams say different things, whom its gate listens to, and where they look."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullrank.analysis.latent_attention import LABELS, OWN
from fullrank.analysis.report import Figure, Missing
from fullrank.analysis.report.draw import COLOURS, GREY, legend, look, panel
from fullrank.analysis.report.findings import Finding


def streams(one: Finding) -> Figure | Missing:
    """The matrix of divergences, and weight and use of each stream."""
    name, title = f"streams-{one.key}", f"Whether run {one.key} thinks in different ways at once"
    kl = {(row["head"], row["index"]): row["value"] for row in one.diagnosis.of("streams", "kl")}
    if not kl:
        return Missing(name, title, f"{_why(one, 'streams')}.")
    many = 1 + max(a for a, _ in kl)
    table = np.array([[kl[a, b] for b in range(many)] for a in range(many)])
    weight, use = (_by_stream(one, figure) for figure in ("gate_weight", "gate_use"))
    entropy = one.diagnosis.value("streams", "gate_entropy")

    def matrix(axes: Any) -> None:
        axes.imshow(table, cmap="Blues", vmin=0, vmax=max(float(table.max()), 1e-12))
        for a in range(many):
            for b in range(many):
                dark = table[a, b] > 0.6 * table.max()
                axes.text(b, a, f"{table[a, b]:.3g}", ha="center", va="center", color="white" if dark else "black")
        axes.set_xticks(range(many), [str(m + 1) for m in range(many)])
        axes.set_yticks(range(many), [str(m + 1) for m in range(many)])
        axes.grid(visible=False)

    def gate(axes: Any) -> None:
        at = np.arange(many)
        axes.bar(at - 0.2, [100 * weight[m] for m in range(many)], 0.38, color=COLOURS[0], label="mean weight")
        axes.bar(at + 0.2, [100 * use[m] for m in range(many)], 0.38, color=COLOURS[1], label="heaviest for")
        axes.axhline(100 / many, color=GREY, lw=1, ls="--")
        axes.set_xticks(at, [str(m + 1) for m in range(many)])
        axes.grid(axis="x", visible=False)
        legend(axes)

    gain = {row["name"]: row["value"] for row in one.diagnosis.of("gate_gain") if row["label"] == one.accuracy}
    worth = "" if "gain" not in gain else (
        f" With equal weights instead, {one.accuracy} would be {gain['even']:.4f}, not {gain['learned']:.4f}."
    )  # fmt: skip
    caption = (
        "Left, how different the recommendations of two streams would be if each answered alone (Kullback-Leibler "
        "divergence in nats; 0: the same). Right, how the gate that mixes them divides its trust: the mean weight of "
        "each stream, and for how many people it is the heaviest; the dashed line is equal trust. A matrix near 0, or "
        f"a gate that always picks one stream, means that the others add nothing.{worth}"
    )
    alt = f"Divergence between {many} streams, at most {table.max():.3g} nats."
    told = "; ".join(f"{m + 1} {weight[m]:.0%} and {use[m]:.0%}" for m in range(many))
    rows = tuple((f"stream {m + 1}", *table[m].tolist(), weight[m], use[m], entropy) for m in range(many))
    headers = ("", *(f"from stream {m + 1}" for m in range(many)), "mean weight", "heaviest for", "entropy of the gate")
    panels = (
        panel(f"{name}-kl", matrix, alt, x="stream", y="stream"),
        panel(f"{name}-gate", gate, f"Mean weight of each stream, and share of people: {told}.", x="stream",
              y="percent"),
    )  # fmt: skip
    return Figure(name, title, caption, panels, headers, rows)


def looks(one: Finding) -> Figure | Missing:
    """Attention of every stream and step over the history, by how far back events lie."""
    name, title = f"looks-{one.key}", f"Where run {one.key} looks while it thinks"
    mass = {
        (row["layer"], row["head"], row["index"], row["label"]): row["value"]
        for row in one.diagnosis.of("latent_attention", "mass")
    }  # fmt: skip
    if not mass:
        return Missing(name, title, f"{_why(one, 'latent_attention')}.")
    even = {row["label"]: row["value"] for row in one.diagnosis.of("latent_attention", "even")}
    labels = [label for label in (*LABELS, OWN) if label in even or label == OWN]
    places = sorted({key[:3] for key in mass})
    panels = []
    for layer in sorted({place[0] for place in places}):

        def paint(axes: Any, layer: int = layer) -> None:
            at = range(len(labels))
            axes.plot(at, [100 * even.get(label, 0) for label in labels], color=GREY, ls=":", label="even attention")
            for _, stream, step in (place for place in places if place[0] == layer):
                values = [100 * mass[layer, stream, step, label] for label in labels]
                style = look(stream) | {"linestyle": ("-", "--", "-.", ":")[(step - 1) % 4]}
                axes.plot(at, values, label=f"stream {stream + 1}, step {step}", **style)
            axes.set_xticks(list(at), labels)
            axes.tick_params(axis="x", labelsize=7)
            axes.set_ylim(top=1.5 * axes.get_ylim()[1])
            legend(axes, place="upper center")

        tops = "; ".join(
            f"stream {stream + 1}, step {step}: {mass[layer, stream, step, labels[0]]:.0%}"
            for key, stream, step in places if key == layer
        )  # fmt: skip
        alt = f"Layer {layer + 1}, attention by how long ago events were. To the last event: {tops}."
        panels.append(
            panel(f"{name}-{layer}", paint, alt, x=f"place from the end of the history (layer {layer + 1})",
                  y="percent of attention")
        )  # fmt: skip
    caption = (
        "At each step a stream of thought reads the history again. Lines say how much it reads of the most recent "
        "event, of the two before it, and so on back to the oldest; colours are streams, dashes are steps, the dotted "
        "line is reading everything alike. Streams with different lines look at different parts of the past. "
        f"'{OWN}' is what a stream reads of its own thoughts."
    )
    rows = tuple(
        (f"layer {layer + 1}, stream {stream + 1}, step {step}",
         *(mass[layer, stream, step, label] for label in labels))
        for layer, stream, step in places
    )  # fmt: skip
    first = (("even attention", *(even.get(label) for label in labels)),)
    return Figure(name, title, caption, tuple(panels), ("", *labels), first + rows)


def _by_stream(one: Finding, name: str) -> dict[int, float]:
    return {row["head"]: row["value"] for row in one.diagnosis.of("streams", name)}


def _why(one: Finding, diagnostic: str) -> str:
    return f"{one.name}: {one.diagnosis.left_out().get(diagnostic, 'it was not measured')}"
