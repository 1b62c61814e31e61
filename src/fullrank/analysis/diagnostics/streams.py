"""Streams of a reasoner: whether they differ, which of them the gate weighs most, and their worth together.

Let p_m be the recommendations of stream m alone: the softmax, over the whole catalogue, of the
scores of z_m, the mean of the stream's steps (PLR, Eq. 6).

Differences (Eqs. 7 and 9): `kl` is KL(p_m || p_m') in nats, mean over users. Near 0 the streams are
one. The gate's entropy is normalised (1: it weighs all alike, 0: it picks one); `gate_use` is the
share of users whose heaviest stream it is.

Worth together: PLR's theory taken as measurements of this model. Theorem 4.1, exact: the mixture
(1/M) sum p_m has a loss L_ens that is the streams' mean loss L_ind less a benefit I >= 0, which is
0 where all say the same. Proposition 4.2 claims I >= c D for a constant c > 0 and the streams' mean
squared distance D; here c is fitted over users (least squares through 0), beside the largest c that
holds for every user, and the correlation of I and D. Corollary 4.5, step by step:

    L_ens <= L_ind - c exp(-2 gamma t) D^(0)    measured: whether it holds with the fitted c and gamma

Differs: the mixture of distributions is the theory's, not the model's, which adds up vectors; both
losses are measured. Expectations are over the users of a sample, each with the item that came next.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Figure, Missing, Row, RunResult, bars
from fullrank.analysis.diagnostics.diversity import ALONE, ReasoningFigure, contraction, mean_distance, with_openings
from fullrank.analysis.diagnostics.spectrum import spearman
from fullrank.models import DenseScorer, ReasoningStates
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.model import RecommenderModel

USERS = 1024
"""Most users whose distributions over the catalogue are compared: the first of the sample."""
CELLS = 1 << 24
"""Most scores in memory at once."""


def pooled(states: ReasoningStates) -> Float[Tensor, "B P D"]:
    """z_m, the mean of each stream's steps (Eq. 6)."""
    return states.steps.mean(1)


def log_shares(vectors: Float[Tensor, "*n D"], scorer: DenseScorer, *, cosine: bool) -> Float[Tensor, "*n V"]:
    """log p over the catalogue for any state vectors, scored as the model scores its answers."""
    scored = unit(vectors) if cosine else vectors
    return ((scored / scorer.temperature) @ scorer.table.T).log_softmax(-1)


def divergences(log_p: Float[Tensor, "B M V"]) -> Float[Tensor, "M M"]:
    """KL(p_m || p_m'), summed over the rows, from the M x M products of p and log p."""
    exact = log_p.double()  # the difference of two cross-entropies: single precision would lose small ones
    cross = exact.exp() @ exact.mT  # [B, M, M] sum of p_m log p_m'
    return (cross.diagonal(dim1=1, dim2=2)[:, :, None] - cross).sum(0)


class Streams(ReasoningFigure):
    """Divergence of the streams, and the gate; no rows without a reasoner."""

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
        self.kl: Any = 0.0
        """Sum of the divergences [M, M] over the users that are compared."""
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
        for part in pooled(reasoned)[near].split(max(1, CELLS // (streams * batch.scorer.size))):
            self.kl = self.kl + divergences(log_shares(part, batch.scorer, cosine=self.cosine)).cpu()
            self.compared += len(part)

    def rows(self) -> list[Row]:
        if not self.gates:
            return []
        gate = torch.cat(self.gates)
        streams = gate.shape[1]
        if streams == 1:
            return self.left_out(ALONE)
        rows = []
        if self.compared:
            kl = (self.kl / self.compared).clamp_min(0)
            rows += [self.row("kl", kl[a, b], head=a, index=b) for a in range(streams) for b in range(streams)]
            rows.append(self.row("mean_kl", kl.sum() / (streams * (streams - 1))))
        entropy = -torch.special.xlogy(gate, gate).sum(1) / math.log(streams)
        rows.append(self.row("gate_entropy", entropy.mean()))
        use = torch.bincount(gate.argmax(1), minlength=streams) / len(gate)
        for stream in range(streams):
            rows += self.rows_of({"gate_weight": gate[:, stream].mean(), "gate_use": use[stream]}, head=stream)
        return rows

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure | Missing:
        """Charts of the divergences, and of the weight and use of each stream."""
        kl = result.diagnosis.values(cls.name, "kl", "head", "index")
        if not kl:
            return claim.missing(f"{result.name}: its streams took no step.")
        weight, use = (result.diagnosis.values(cls.name, figure, "head") for figure in ("gate_weight", "gate_use"))
        entropy = result.diagnosis.value(cls.name, "gate_entropy")
        others = tuple(f"from stream {stream + 1}" for stream in weight)
        rows = [(f"stream {a + 1}", *(kl[a, b] for b in weight), weight[a], use[a], entropy) for a in weight]
        headers = ("stream", *others, "mean weight", "heaviest for", "entropy of the gate")
        gain, more = result.diagnosis.values("gate_gain", None, "name", label=result.accuracy), ""
        if "gain" in gain:
            even, learned = gain["even"], gain["learned"]
            more = f" With equal weights instead, {result.accuracy} would be {even:.4f}, not {learned:.4f}."
        trust = bars(
            "stream", ("mean weight", "heaviest for"), by="", axis="share", percent=True, level={"": 1 / len(weight)}
        )
        return claim.figure(headers, rows, bars("stream", others, by="", axis="divergence (nats)"), trust, more=more)


ENSEMBLE_USERS = 2048
"""Most users whose losses are computed: the first of the sample."""


def mixture_loss(log_p: Float[Tensor, "*n M"]) -> Float[Tensor, "*n"]:
    """-log of the mean of p over M streams."""
    return torch.tensor(log_p.shape[-1], dtype=log_p.dtype).log().to(log_p.device) - log_p.logsumexp(-1)


class Ensemble(Diagnostic):
    """Losses of streams and mixture, step by step; no rows without a reasoner."""

    name = "ensemble"

    def begin(self) -> None:
        model = self.context.model
        self.reasoner = model.reasoner
        self.cosine = isinstance(model, RecommenderModel) and model.cosine
        self.targets = self.context.targets
        self.parts: list[dict[str, Tensor]] = []
        """Measurements of each batch, by name."""
        self.why: str | None = None

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        reasoned = batch.reasoning
        if reasoned is None or not isinstance(batch.scorer, DenseScorer) or not reasoned.steps.shape[1]:
            return
        if reasoned.gate.shape[1] == 1 or self.targets is None:
            self.why = "the training split has no targets" if self.targets is None else ALONE
            return
        near = torch.from_numpy(np.flatnonzero(batch.users < ENSEMBLE_USERS)).to(reasoned.start.device)
        if not len(near):
            return
        chosen = ReasoningStates(reasoned.start[near], reasoned.steps[near], reasoned.gate[near])
        target = torch.from_numpy(self.targets[batch.users][near.cpu().numpy()].astype(np.int64)).to(near.device)
        vectors = torch.cat([chosen.steps, pooled(chosen)[:, None]], 1)  # [B, S + 1, M, D]
        log_p = self._at_targets(vectors.flatten(1, 2), target, batch.scorer).unflatten(1, vectors.shape[1:3])
        answer = self._at_targets(batch.scorer.vectors[near][:, None], target, batch.scorer)[:, 0]
        self.parts.append(
            {
                "log_p": log_p.cpu(),
                "gate": chosen.gate.double().cpu(),
                "answer": -answer.cpu(),
                "steps": mean_distance(with_openings(self.reasoner, chosen)).cpu(),
                "pooled": mean_distance(pooled(chosen)).cpu(),
            }
        )

    def _at_targets(
        self, vectors: Float[Tensor, "B n D"], targets: Int[Tensor, "B"], scorer: DenseScorer
    ) -> Float[Tensor, "B n"]:
        """log p of each row's target under each of its vectors, float64."""
        at_once = max(1, CELLS // (vectors.shape[1] * scorer.size))
        parts = zip(vectors.split(at_once), targets.split(at_once), strict=True)
        log_p = [
            log_shares(part, scorer, cosine=self.cosine).gather(2, t[:, None, None].expand(-1, part.shape[1], 1))
            for part, t in parts
        ]
        return torch.cat(log_p)[..., 0].double()

    def rows(self) -> list[Row]:
        if self.why is not None:
            return self.left_out(self.why)
        if not self.parts:
            return []
        whole = {name: torch.cat([part[name] for part in self.parts]) for name in self.parts[0]}
        log_p, gate = whole["log_p"][:, -1], whole["gate"]
        alone, mixed = -log_p.mean(1), mixture_loss(log_p)
        benefit = alone - mixed
        figures: dict[str, Any] = {
            "users": float(len(log_p)),
            "loss_streams": alone.mean(),
            "loss_mixture": mixed.mean(),
            "benefit": benefit.mean(),
            "least_benefit": benefit.min(),
            "loss_gated": -(gate.clamp_min(1e-300).log() + log_p).logsumexp(1).mean(),
            "loss_answer": whole["answer"].mean(),
        }
        rows = self.rows_of(figures)
        fit = _proposition(benefit.numpy(), whole["pooled"].numpy())
        if fit:
            rows += self.rows_of(fit)
        else:
            rows.append(self.row("constant", None, label="the streams are the same for every user"))
        return rows + self._by_step(whole, fit.get("constant"))

    def _by_step(self, whole: dict[str, Tensor], constant: float | None) -> list[Row]:
        """Theorem 4.1 with the states of each step, and Corollary 4.5 with the fitted constants."""
        rows = []
        distances = whole["steps"].mean(0)
        line, steps = contraction(distances.tolist()), whole["log_p"].shape[1] - 1
        opened = len(distances) - steps  # 1 where the distance of the openings comes first
        for t in range(steps):
            log_p = whole["log_p"][:, t]
            alone, mixed = float(-log_p.mean()), float(mixture_loss(log_p).mean())
            figures = {
                "step_loss_streams": alone,
                "step_loss_mixture": mixed,
                "step_benefit": alone - mixed,
                "step_distance": float(distances[t + opened]),
            }
            if line is not None and constant is not None and opened:
                limit = alone - constant * float(np.exp(-2 * line.gamma * (t + 1))) * float(distances[0])
                figures |= {"step_bound": limit, "step_bound_holds": float(mixed <= limit)}
            rows += self.rows_of(figures, index=t + 1)
        return rows


def _proposition(benefit: Float[np.ndarray, "U"], distance: Float[np.ndarray, "U"]) -> dict[str, Any]:
    """The figures of Proposition 4.2: the fitted and the largest constant, and correlations.

    Empty where the streams are the same for every user.
    """
    square, differing = float(distance @ distance), distance > 0
    if square == 0:
        return {}
    varies = len(benefit) > 1 and benefit.std() > 0 and distance.std() > 0
    return {
        "constant": float(benefit @ distance) / square,
        "largest_constant": (benefit[differing] / distance[differing]).min(),
        "correlation": np.corrcoef(benefit, distance)[0, 1] if varies else None,
        "rank_correlation": spearman(benefit, distance),
    }
