"""Diversity of reasoning streams: how far they are apart, step by step, and how fast they come together.

Claim (PLR, Theorem 4.4): with a step that is L-Lipschitz, the mean over pairs of streams

    D^(t) = mean of |h_{t,m} - h_{t,m'}|^2 <= L^(2t) D^(0)

decays below L = 1 as exp(-2 gamma t), gamma = -log L. Measured here: D^(t), mean over users, from
the openings h_{0,m} on, and gamma by least squares of log D^(t) over t.

Differs: the theorem is an upper bound for any two inputs. The fit says how the streams of
these users really move; a gamma of 0 or less means that they do not come together, and the
bound says nothing then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Figure, Row, RunResult, Runs, lines
from fullrank.models import ReasoningStates

ALONE = "it reasons in one stream, which has no other to differ from"
STILL = "not decaying: the streams do not come together, so Theorem 4.4 bounds nothing here"


@dataclass(frozen=True)
class Contraction:
    """log D^(t) = intercept - 2 gamma t."""

    gamma: float
    intercept: float
    residual: float
    """Root mean square of the residuals, in natural logarithms."""


def contraction(distances: Sequence[float]) -> Contraction | None:
    """Fit a line to log D^(t), t = 0, 1, ...; None for a single step, or a distance of 0."""
    values = np.asarray(distances, dtype=np.float64)
    if len(values) < 2 or not (values > 0).all():
        return None
    steps, logs = np.arange(len(values)), np.log(values)
    slope, intercept = np.polyfit(steps, logs, 1)
    residuals = logs - intercept - slope * steps
    return Contraction(float(-slope / 2), float(intercept), float(np.sqrt(np.mean(residuals**2))))


def mean_distance(states: Float[Tensor, "*n M D"]) -> Float[Tensor, "*n"]:
    """Mean squared distance of all ordered pairs of different streams, in float64."""
    x, m = states.double(), states.shape[-2]
    pairs = [(x[..., a, :] - x[..., b, :]).square().sum(-1) for a in range(m) for b in range(a)]
    return 2 * torch.stack(pairs).sum(0) / (m * (m - 1))


def with_openings(reasoner: Any, states: ReasoningStates) -> Float[Tensor, "B S P D"]:
    """h_{0,m}, h_{1,m}, ...: the openings of the streams (if any), then their steps."""
    openings = getattr(reasoner, "openings", None)
    if not callable(openings):
        return states.steps
    return torch.cat([openings(states.start)[:, None, : states.gate.shape[1]], states.steps], 1)


REASONING = ("diversity", "streams", "latent_attention", "step_curve", "oracle_step")
"""Diagnostics that have rows only for a model with a reasoner."""


def reasons(run: RunResult) -> bool:
    """Whether a run has a reasoner, as far as its diagnosis knows."""
    return any(run.diagnosis.of(name) for name in REASONING)


class ReasoningFigure(Diagnostic):
    """A figure of the runs with a reasoner; the others are left out silently."""

    @classmethod
    def lacks(cls, result: RunResult) -> str | None:
        return super().lacks(result) if reasons(result) else ""


class Diversity(ReasoningFigure):
    """D^(t) and its contraction; no rows without a reasoner."""

    name = "diversity"
    internal = True
    claim = Claim(
        "Distance between reasoning streams",
        "Before it answers, a model can reason in several streams, a few steps each. The curve says how far "
        "apart the streams are after each step (mean squared distance; step 0 is where they start). If it falls to "
        "nothing, all streams end at the same state and more than one was for nothing. The rate says how fast: "
        "with every step the distance shrinks by that power of e; below 0 the streams move apart instead.",
        (lines("step (0: start)", "distance", log="y"),),
    )

    def begin(self) -> None:
        self.reasoner = self.context.model.reasoner
        self.sums: Any = 0.0
        """Sum of D^(t) over the users, by step."""
        self.users = 0
        self.alone = False

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        reasoned = batch.reasoning
        if reasoned is None:
            return
        self.alone = reasoned.gate.shape[1] == 1
        if self.alone:
            return
        self.sums = self.sums + mean_distance(with_openings(self.reasoner, reasoned)).sum(0).cpu()
        self.users += len(reasoned.start)

    def rows(self) -> list[Row]:
        if self.alone:
            return self.left_out(ALONE)
        if not self.users:
            return []
        distances = (self.sums / self.users).tolist()
        first = 0 if callable(getattr(self.reasoner, "openings", None)) else 1
        rows = [self.row("distance", value, index=first + t) for t, value in enumerate(distances)]
        line = contraction(distances)
        if line is None:
            return [*rows, self.row("gamma", None, label="two streams are the same, or there is one step")]
        note = STILL if line.gamma <= 0 else None
        rows += self.rows_of({"gamma": line.gamma, "lipschitz": np.exp(-line.gamma)}, label=note)
        return [*rows, self.row("residual", line.residual)]

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        rows = [
            (run.label, step, distance, run.diagnosis.value(cls.name, "gamma"))
            for run in there
            for step, distance in run.diagnosis.values(cls.name, "distance", "index").items()
        ]
        return claim.figure(("run", "step (0: start)", "distance", "rate (gamma)"), rows)
