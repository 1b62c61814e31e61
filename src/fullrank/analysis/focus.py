"""How much attention goes to relevant events and how much to noise (FAIR, Figure 1 and Table 4).

Claim: a transformer gives much of its attention to noise; focused attention gives more of it to what matters for the
next choice. Of each user of the sample the query is the last event, the keys are the last 20 events, and `relevance.py`
says which are relevant to the target. Users whose events are all relevant, or all noise, say nothing and are left out.

Weights enter by their absolute value over the sum of them, so that rows of any sum, and signed ones, compare: the row
`relevant` is the mean share of relevant events, `even` their share of the events, `ratio` the first over the second.
`signed` adds the weights with their sign over the same sum, once for relevant events and once for noise: focused
attention may subtract noise. Figures are means over users, by layer and head; with `head` null over a layer's heads.

Differs: one token an item, not one a code, so no mean over codes is needed.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.reading import Reading, weights_of
from fullrank.analysis.relevance import LAST, Relevance
from fullrank.data.batch import Batch

KINDS = ("relevant", "noise")


class Focus:
    """Observer: attention of the last event to relevant events and to noise."""

    def __init__(self, targets: Int[np.ndarray, "U"] | None, relevance: Relevance):
        self.targets, self.relevance = targets, relevance
        self.seen: dict[int, Tensor] = {}
        """Layer -> sums over users [3, H]: share of relevant events, signed of relevant events, signed of noise."""
        self.even, self.users, self.asked, self.attentive = 0.0, 0, 0, False

    @torch.no_grad()
    def see(self, reading: Reading) -> None:
        if self.targets is None or not reading.attended:
            return
        self.attentive = True
        relevant, window = self._marked(reading.attended[0].batch, self.targets[reading.at])
        told = (relevant.any(1) & (window & ~relevant).any(1)).float()
        self.asked, self.users = self.asked + len(told), self.users + int(told.sum())
        self.even += float((told * relevant.sum(1) / window.sum(1).clamp_min(1)).sum())
        for attended in reading.attended:
            for rows, batch, weights in weights_of(attended):
                shares = last_shares(weights, batch, window[rows, : weights.shape[-1]])
                mine = relevant[rows, None, : weights.shape[-1]]
                parts = shares.abs() * mine, shares * mine, shares * ~mine
                sums = torch.stack([(part.sum(-1) * told[rows, None]).sum(0) for part in parts]).double().cpu()
                self.seen[attended.layer] = self.seen.get(attended.layer, torch.zeros_like(sums)) + sums

    def rows(self) -> list[Row]:
        name = "focus"
        if self.targets is None:
            return [left_out(name, "the training split has no targets")]
        if not self.attentive:
            return [left_out(name, "it has no attention that shows its weights")]
        if not self.users:
            return [left_out(name, "no user of the sample has both relevant events and noise among the last 20")]
        even = self.even / self.users
        found = [row(name, "users", self.users), row(name, "asked", self.asked), row(name, "even", even)]
        for layer, sums in sorted(self.seen.items()):
            means = sums / self.users
            for head, (share, kept, noise) in [(None, means.mean(1)), *enumerate(means.T)]:
                found.append(row(name, "relevant", float(share), layer=layer, head=head))
                found.append(row(name, "ratio", float(share) / even, layer=layer, head=head))
                for kind, value in zip(KINDS, (kept, noise), strict=True):
                    found.append(row(name, "signed", float(value), layer=layer, head=head, label=kind))
        return found

    def _marked(self, batch: Batch, targets: Int[np.ndarray, "B"]) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Which places hold a relevant event, and which are looked at."""
        window = recent(batch)
        rows, places = (x.cpu().numpy() for x in window.nonzero(as_tuple=True))
        items = batch.items.cpu().numpy()[rows, places]
        relevant = torch.zeros_like(window)
        relevant[window] = torch.from_numpy(self.relevance(items, targets[rows])).to(window.device)
        return relevant, window


def recent(batch: Batch) -> Bool[Tensor, "B T"]:
    """The last 20 events of each row; a covered place is no event."""
    real = batch.valid if batch.hidden is None else batch.valid & ~batch.hidden
    return real & (real.flip(1).cumsum(1).flip(1) <= LAST)


def last_shares(weights: Float[Tensor, "B H T T"], batch: Batch, window: Bool[Tensor, "B T"]) -> Float[Tensor, "B H T"]:
    """The weights of each row's last place over the sum of their absolute values in the window, signed; 0 elsewhere."""
    at = (batch.lengths - 1).clamp_min(0)[:, None, None, None].expand(-1, weights.shape[1], 1, weights.shape[3])
    own = weights.gather(2, at)[:, :, 0].float() * window[:, None]
    return own / own.abs().sum(-1, keepdim=True).clamp_min(1e-30)
