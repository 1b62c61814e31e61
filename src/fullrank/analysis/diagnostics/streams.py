"""Whether the streams of a reasoner say different things, and whom the gate listens to (PLR, Eqs. 7 and 9).

`kl` is KL(p_m || p_m') between what streams m and m' would recommend alone: p_m = softmax of the scores of z_m, the
mean of the stream's steps (Eq. 6), over the whole catalogue, in nats, mean over users. Near 0 the streams are one. The
gate's entropy is normalised (1: it weighs all alike, 0: it picks one); `gate_use` is the share of users whose heaviest
stream it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.activations import Activations
from fullrank.analysis.diagnosis import Row, not_measured, row, rows_of
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.analysis.diagnostics.diversity import ALONE, reasons
from fullrank.analysis.report import Figure, Missing, Shown
from fullrank.analysis.report.draw import COLOURS, GREY, legend, panel
from fullrank.analysis.report.results import RunResult
from fullrank.models.contracts import DenseScorer, ReasoningStates
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel

USERS = 1024
"""Most users whose distributions over the catalogue are compared: the first of the sample."""
CELLS = 1 << 24
"""Most scores held at once."""


def pooled(states: ReasoningStates) -> Float[Tensor, "B P D"]:
    """z_m, the mean of each stream's steps."""
    return states.steps.mean(1)


def log_shares(vectors: Float[Tensor, "*n D"], scorer: DenseScorer, *, cosine: bool) -> Float[Tensor, "*n V"]:
    """log p over the catalogue of any states, scored as the model scores its own."""
    scored = unit(vectors) if cosine else vectors
    return ((scored / scorer.temperature) @ scorer.table.T).log_softmax(-1)


def divergences(log_p: Float[Tensor, "B M V"]) -> Float[Tensor, "M M"]:
    """KL(p_m || p_m'), summed over the rows, from the M x M products of shares and log shares."""
    exact = log_p.double()  # the difference of two cross-entropies: single precision would lose small ones
    cross = exact.exp() @ exact.mT
    return (cross.diagonal(dim1=1, dim2=2)[:, :, None] - cross).sum(0)


class Streams(Diagnostic):
    """Divergence of the streams, and the gate. Without a reasoner it has nothing to say."""

    name = "streams"

    def begin(self) -> None:
        self.cosine = isinstance(self.context.model, RecommenderModel) and self.context.model.cosine
        self.kl: Tensor | None = None
        self.compared = 0
        self.gates: list[Tensor] = []

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        reasoned = batch.reasoning
        if reasoned is None or not isinstance(batch.scorer, DenseScorer):
            return
        self.gates.append(reasoned.gate.double().cpu())
        streams = reasoned.gate.shape[1]
        near = torch.from_numpy(batch.users < USERS).to(reasoned.start.device)
        if streams == 1 or not bool(near.any()) or not reasoned.steps.shape[1]:
            return
        states = pooled(reasoned)[near]
        at_once = max(1, CELLS // (streams * batch.scorer.size))
        for some in states.split(at_once):
            kl = divergences(log_shares(some, batch.scorer, cosine=self.cosine)).cpu()
            self.kl = kl if self.kl is None else self.kl + kl
            self.compared += len(some)

    def rows(self) -> list[Row]:
        if not self.gates:
            return []
        gate = torch.cat(self.gates)
        streams = gate.shape[1]
        if streams == 1:
            return [not_measured("streams", ALONE)]
        found = []
        if self.kl is not None:
            kl = (self.kl / self.compared).clamp_min(0)
            found += [
                row("streams", "kl", float(kl[a, b]), head=a, index=b)
                for a in range(streams) for b in range(streams)
            ]  # fmt: skip
            found.append(row("streams", "mean_kl", float(kl.sum()) / (streams * (streams - 1))))
        entropy = -torch.special.xlogy(gate, gate).sum(1) / math.log(streams)
        found.append(row("streams", "gate_entropy", float(entropy.mean())))
        use = torch.bincount(gate.argmax(1), minlength=streams) / len(gate)
        for stream in range(streams):
            figures = {"gate_weight": gate[:, stream].mean(), "gate_use": use[stream]}
            found += rows_of(self.name, figures, head=stream)
        return found

    @classmethod
    def figure_of(cls, result: RunResult) -> Shown:
        """The matrix of divergences, and weight and use of each stream."""
        if not reasons(result):
            return None
        name, title = f"streams-{result.key}", f"Divergence of the reasoning streams of run {result.key}"
        kl = result.diagnosis.values(cls.name, "kl", "head", "index")
        if not kl:
            return Missing(name, title, f"{result.name}: {result.why_missing('streams')}.")
        many = 1 + max(a for a, _ in kl)
        table = np.array([[kl[a, b] for b in range(many)] for a in range(many)])
        weight, use = (result.diagnosis.values(cls.name, figure, "head") for figure in ("gate_weight", "gate_use"))
        entropy = result.diagnosis.value("streams", "gate_entropy")

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

        gain = result.diagnosis.values("gate_gain", None, "name", label=result.accuracy)
        worth = "" if "gain" not in gain else (
            f" With equal weights instead, {result.accuracy} would be {gain['even']:.4f}, not {gain['learned']:.4f}."
        )  # fmt: skip
        caption = (
            "Left, how different the recommendations of two streams would be if each answered alone (Kullback-Leibler "
            "divergence in nats; 0: the same). Right, how the gate that mixes them divides its trust: the mean weight "
            "of each stream, and for how many people it is the heaviest; the dashed line is equal trust. A matrix near "
            f"0, or a gate that always picks one stream, means that the others add nothing.{worth}"
        )
        alt = f"Divergence between {many} streams, at most {table.max():.3g} nats."
        told = "; ".join(f"{m + 1} {weight[m]:.0%} and {use[m]:.0%}" for m in range(many))
        rows = tuple((f"stream {m + 1}", *table[m].tolist(), weight[m], use[m], entropy) for m in range(many))
        from_streams = (f"from stream {m + 1}" for m in range(many))
        headers = ("", *from_streams, "mean weight", "heaviest for", "entropy of the gate")
        panels = (
            panel(f"{name}-kl", matrix, alt, x="stream", y="stream"),
            panel(f"{name}-gate", gate, f"Mean weight of each stream, and share of people: {told}.", x="stream",
                  y="percent"),
        )  # fmt: skip
        return Figure(name, title, caption, panels, headers, rows)
