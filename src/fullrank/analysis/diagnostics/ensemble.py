"""What several streams are worth together: PLR's theory taken as measurements of this model.

Theorem 4.1, exact: p_m is what stream m would recommend alone, and their mixture (1/M) sum p_m has a loss L_ens that is
the streams' mean loss L_ind less a benefit I >= 0, which is 0 where all say the same. Proposition 4.2 claims I >= c D
for a constant c > 0 and the streams' mean squared distance D; here c is fitted over users (least squares through 0),
the largest c that holds for every user stands beside it, and their correlation. Corollary 4.5 puts L_ind less
c exp(-2 gamma t) D^(0) above L_ens step by step; whether it holds with the fitted c and gamma is measured.

Differs: the mixture of distributions is the theory's, not the model's, which adds up vectors; both losses are given.
Expectations are over the users of a sample, each with the item that came next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Diagnostic, Row
from fullrank.analysis.diagnostics.diversity import ALONE, contraction, mean_distance, with_openings
from fullrank.analysis.diagnostics.spectrum import spearman
from fullrank.analysis.diagnostics.streams import CELLS, log_shares, pooled
from fullrank.models import DenseScorer, ReasoningStates
from fullrank.models.sequential.model import RecommenderModel

USERS = 2048
"""Most users whose losses are computed: the first of the sample."""


def mixture_loss(log_p: Float[Tensor, "*n M"]) -> Float[Tensor, "*n"]:
    """-log of the mean of the streams' shares."""
    return torch.tensor(log_p.shape[-1], dtype=log_p.dtype).log().to(log_p.device) - log_p.logsumexp(-1)


class Ensemble(Diagnostic):
    """Losses of streams and mixture, step by step. Without a reasoner it has nothing to say."""

    name = "ensemble"

    def begin(self) -> None:
        model = self.context.model
        self.reasoner = model.reasoner
        self.cosine = isinstance(model, RecommenderModel) and model.cosine
        self.targets = self.context.targets
        self.parts: list[dict[str, Tensor]] = []
        self.why: str | None = None

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        reasoned = batch.reasoning
        if reasoned is None or not isinstance(batch.scorer, DenseScorer) or not reasoned.steps.shape[1]:
            return
        if reasoned.gate.shape[1] == 1 or self.targets is None:
            self.why = "the training split has no targets" if self.targets is None else ALONE
            return
        near = torch.from_numpy(np.flatnonzero(batch.users < USERS)).to(reasoned.start.device)
        if not len(near):
            return
        kept = ReasoningStates(reasoned.start[near], reasoned.steps[near], reasoned.gate[near])
        target = torch.from_numpy(self.targets[batch.users][near.cpu().numpy()].astype(np.int64)).to(near.device)
        vectors = torch.cat([kept.steps, pooled(kept)[:, None]], 1)
        log_p = self._at_targets(vectors.flatten(1, 2), target, batch.scorer).unflatten(1, vectors.shape[1:3])
        scorer = DenseScorer(batch.scorer.vectors[near], batch.scorer.table, batch.scorer.temperature)
        own = self._at_targets(scorer.vectors[:, None], target, scorer)[:, 0]
        self.parts.append({
            "log_p": log_p.cpu(), "gate": kept.gate.double().cpu(), "answer": -own.cpu(),
            "steps": mean_distance(with_openings(self.reasoner, kept)).cpu(),
            "pooled": mean_distance(pooled(kept)).cpu(),
        })  # fmt: skip

    def _at_targets(
        self, vectors: Float[Tensor, "B n D"], targets: Int[Tensor, "B"], scorer: DenseScorer
    ) -> Float[Tensor, "B n"]:
        """log p of each row's target under each of its vectors, float64."""
        at_once = max(1, CELLS // (vectors.shape[1] * scorer.size))
        parts = zip(vectors.split(at_once), targets.split(at_once), strict=True)
        found = [
            log_shares(some, scorer, cosine=self.cosine).gather(2, t[:, None, None].expand(-1, some.shape[1], 1))
            for some, t in parts
        ]
        return torch.cat(found)[..., 0].double()

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
        found = self.rows_of(figures)
        constant = self._proposition(found, benefit.numpy(), whole["pooled"].numpy())
        return found + self._by_step(whole, constant)

    def _by_step(self, whole: dict[str, Tensor], constant: float | None) -> list[Row]:
        """Theorem 4.1 with each step's own states, and Corollary 4.5 with the fitted constants."""
        found = []
        distances = whole["steps"].mean(0)
        line = contraction(distances.tolist())
        opened = len(distances) - (whole["log_p"].shape[1] - 1)
        for t in range(whole["log_p"].shape[1] - 1):
            log_p = whole["log_p"][:, t]
            alone, mixed = float(-log_p.mean()), float(mixture_loss(log_p).mean())
            figures: dict[str, float | None] = {
                "step_loss_streams": alone,
                "step_loss_mixture": mixed,
                "step_benefit": alone - mixed,
                "step_distance": float(distances[t + opened]),
            }
            if line is not None and constant is not None and opened:
                limit = alone - constant * float(np.exp(-2 * line.gamma * (t + 1))) * float(distances[0])
                figures |= {"step_bound": limit, "step_bound_holds": float(mixed <= limit)}
            found += self.rows_of(figures, index=t + 1)
        return found

    def _proposition(self, found: list[Row], benefit: np.ndarray, distance: np.ndarray) -> float | None:
        """Adds the rows of Proposition 4.2; the fitted constant."""
        square = float(distance @ distance)
        if square == 0:
            found.append(self.row("constant", None, label="the streams are the same for every user"))
            return None
        constant = float(benefit @ distance) / square
        apart = distance > 0
        both = len(benefit) > 1 and benefit.std() > 0 and distance.std() > 0
        figures = {
            "constant": constant,
            "largest_constant": (benefit[apart] / distance[apart]).min(),
            "correlation": np.corrcoef(benefit, distance)[0, 1] if both else None,
            "rank_correlation": spearman(benefit, distance),
        }
        found += self.rows_of(figures)
        return constant
