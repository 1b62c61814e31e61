"""Whether the streams of a reasoner say different things, and whom the gate listens to (PLR, Eqs. 7 and 9).

`kl` is KL(p_m || p_m') between what streams m and m' would recommend alone: p_m = softmax of the scores of z_m, the
mean of the stream's steps (Eq. 6), over the whole catalogue, in nats, mean over users. Near 0 the streams are one. The
gate's entropy is normalised (1: it weighs all alike, 0: it picks one); `gate_use` is the share of users whose heaviest
stream it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.diversity import ALONE
from fullrank.analysis.reading import Reading
from fullrank.data.batch import DenseScorer, ReasoningStates
from fullrank.models.sequential.items import unit

USERS = 1024
"""Most users whose distributions over the catalogue are compared: the first of the sample."""
CELLS = 1 << 24
"""Most scores held at once."""


def pooled(thoughts: ReasoningStates) -> Float[Tensor, "B M D"]:
    """z_m, the mean of each stream's steps."""
    return thoughts.steps.mean(1)


def log_shares(vectors: Float[Tensor, "*n D"], answer: DenseScorer, *, cosine: bool) -> Float[Tensor, "*n V"]:
    """log p over the catalogue of any states, scored as the model scores its answer."""
    scored = unit(vectors) if cosine else vectors
    return ((scored / answer.temperature) @ answer.table.T).log_softmax(-1)


def divergences(log_p: Float[Tensor, "B M V"]) -> Float[Tensor, "M M"]:
    """KL(p_m || p_m'), summed over the rows, from the M x M products of shares and log shares."""
    exact = log_p.double()  # the difference of two cross-entropies: single precision would lose small ones
    cross = exact.exp() @ exact.mT
    return (cross.diagonal(dim1=1, dim2=2)[:, :, None] - cross).sum(0)


class Streams:
    """Observer: divergence of the streams, and the gate. Without a reasoner it has nothing to say."""

    def __init__(self, model: Any):
        self.cosine = bool(getattr(model, "cosine", False))
        self.kl: Tensor | None = None
        self.compared = 0
        self.gates: list[Tensor] = []

    @torch.no_grad()
    def see(self, reading: Reading) -> None:
        thoughts = None if reading.states is None else reading.states.reasoning
        if thoughts is None or not isinstance(reading.answer, DenseScorer):
            return
        self.gates.append(thoughts.gate.double().cpu())
        streams = thoughts.gate.shape[1]
        near = torch.from_numpy(reading.at < USERS).to(thoughts.start.device)
        if streams == 1 or not bool(near.any()) or not thoughts.steps.shape[1]:
            return
        states = pooled(thoughts)[near]
        at_once = max(1, CELLS // (streams * reading.answer.size))
        for some in states.split(at_once):
            kl = divergences(log_shares(some, reading.answer, cosine=self.cosine)).cpu()
            self.kl = kl if self.kl is None else self.kl + kl
            self.compared += len(some)

    def rows(self) -> list[Row]:
        if not self.gates:
            return []
        gate = torch.cat(self.gates)
        streams = gate.shape[1]
        if streams == 1:
            return [left_out("streams", ALONE)]
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
            found.append(row("streams", "gate_weight", float(gate[:, stream].mean()), head=stream))
            found.append(row("streams", "gate_use", float(use[stream]), head=stream))
        return found
