"""Whether the streams of a reasoner say different things, and whom the gate listens to (PLR, Eqs. 7 and 9).

`kl` is KL(p_m || p_m') between what streams m and m' would recommend alone: p_m = softmax of the scores of z_m, the
mean of the stream's steps (Eq. 6), over the whole catalogue, in nats, mean over users. Near 0 the streams are one. The
gate's entropy is normalised (1: it weighs all alike, 0: it picks one); `gate_use` is the share of users whose heaviest
stream it is.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import (
    Activations,
    Claim,
    Figure,
    Missing,
    Row,
    RunResult,
    bars,
)
from fullrank.analysis.diagnostics.diversity import ALONE, ReasoningFigure
from fullrank.models import DenseScorer, ReasoningStates
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


class Streams(ReasoningFigure):
    """Divergence of the streams, and the gate. Without a reasoner it has nothing to say."""

    name = "streams"
    claim_of = Claim(
        "Divergence of the reasoning streams of {}",
        "Left, how different the recommendations of two streams would be if each answered alone (Kullback-Leibler "
        "divergence in nats; 0: the same). Right, how the gate that mixes them divides its trust: the mean weight "
        "of each stream, and for how many people it is the heaviest; the dashed line is equal trust. Bars near "
        "0, or a gate that always picks one stream, means that the others add nothing.",
    )

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
            return self.left_out(ALONE)
        found = []
        if self.kl is not None:
            kl = (self.kl / self.compared).clamp_min(0)
            found += [
                self.row("kl", float(kl[a, b]), head=a, index=b)
                for a in range(streams) for b in range(streams)
            ]  # fmt: skip
            found.append(self.row("mean_kl", float(kl.sum()) / (streams * (streams - 1))))
        entropy = -torch.special.xlogy(gate, gate).sum(1) / math.log(streams)
        found.append(self.row("gate_entropy", float(entropy.mean())))
        use = torch.bincount(gate.argmax(1), minlength=streams) / len(gate)
        for stream in range(streams):
            figures = {"gate_weight": gate[:, stream].mean(), "gate_use": use[stream]}
            found += self.rows_of(figures, head=stream)
        return found

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure | Missing:
        """The matrix of divergences, and weight and use of each stream."""
        kl = result.diagnosis.values(cls.name, "kl", "head", "index")
        if not kl:
            return claim.missing(f"{result.name}: its streams took no step.")
        weight, use = (result.diagnosis.values(cls.name, figure, "head") for figure in ("gate_weight", "gate_use"))
        entropy = result.diagnosis.value(cls.name, "gate_entropy")
        others = tuple(f"from stream {stream + 1}" for stream in weight)
        rows = tuple(
            (f"stream {a + 1}", *(kl[a, b] for b in weight), weight[a], use[a], entropy) for a in weight
        )  # fmt: skip
        headers = ("stream", *others, "mean weight", "heaviest for", "entropy of the gate")
        gain = result.diagnosis.values("gate_gain", None, "name", label=result.accuracy)
        more = "" if "gain" not in gain else (
            f" With equal weights instead, {result.accuracy} would be {gain['even']:.4f}, not {gain['learned']:.4f}."
        )  # fmt: skip
        trust = bars(
            "stream", ("mean weight", "heaviest for"), by="", axis="share", percent=True, level={"": 1 / len(weight)}
        )
        return claim.figure(headers, rows, bars("stream", others, by="", axis="divergence (nats)"), trust, more=more)
