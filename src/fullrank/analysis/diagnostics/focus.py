"""Focus: how much attention goes to relevant events and how much to noise (FAIR, Figure 1 and Table 4).

Claim: a transformer gives much of its attention to noise; focused attention gives more of it to
events that matter for the next choice. For each user of the sample the query is the last event, the
keys are the last 20 events, and `relevance.py` says which are relevant to the target. Users whose
events are all relevant, or all noise, say nothing and are left out.

Weights enter by their absolute value over the sum of them, so that rows of any sum, and signed
ones, compare: the row `relevant` is the mean share of relevant events, `even` is their share of the
events, and `ratio` the first over the second. `signed` adds the weights with their sign over the
same sum, once for relevant events and once for noise: focused attention may subtract noise. Figures
are means over users, by layer and head; with `head` null over a layer's heads.

Where an item is one token for each of its codes, an event is all of its tokens, and the
query is the last of them.

Differs: the paper's model has one token a code and takes the mean over codes; here
their shares are added up.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Activations, Claim, Diagnostic, Figure, Row, Runs, lines
from fullrank.analysis.relevance import LAST
from fullrank.data.batch import Batch
from fullrank.models import Model
from fullrank.models.sequential.model.reading import event_places, last_shares, tokens_per_event, weights_of

KINDS = ("relevant", "noise")


class Focus(Diagnostic):
    """Attention of the last event to relevant events and to noise."""

    name = "focus"
    internal = True
    claim = Claim(
        "Attention to related events",
        "Of the last 20 things a person did, some have to do with what they chose next: people who had the one had "
        "the other more often than chance. The lines say how much of its attention the model gives to those; the "
        "dashed line is their share of the events, what attending to everything alike would give. The rest goes to "
        "events that nobody else had together with that choice; it is not wrong to have done them. The table also "
        "has attention with its sign: below 0 a model subtracts what it reads there.",
    )

    def begin(self) -> None:
        self.targets, self.relevance = self.context.targets, self.context.relevance
        self.sums: defaultdict[int, Any] = defaultdict(float)
        """Layer -> sums over users [3, H]: share of relevant events, signed of relevant events, signed of noise."""
        self.even, self.users, self.users_read = 0.0, 0, 0

    @torch.no_grad()
    def observe(self, batch: Activations) -> None:
        if self.targets is None or not batch.attentions:
            return
        relevant, window = self._relevant(batch.attentions[0].batch, self.targets[batch.users])
        mixed = (relevant.any(1) & (window & ~relevant).any(1)).float()  # [B] users with both kinds of events
        self.users_read += len(mixed)
        self.users += int(mixed.sum())
        self.even += float((mixed * relevant.sum(1) / window.sum(1).clamp_min(1)).sum())
        for attention in batch.attentions:
            for rows, part, weights in weights_of(attention):
                shares = last_shares(weights, part, window[rows, : weights.shape[-1]])
                related = relevant[rows, None, : weights.shape[-1]]
                kinds = shares.abs() * related, shares * related, shares * ~related
                sums = torch.stack([(kind.sum(-1) * mixed[rows, None]).sum(0) for kind in kinds])
                self.sums[attention.layer] += sums.double().cpu()

    def rows(self) -> list[Row]:
        if self.targets is None:
            return self.left_out("the training split has no targets")
        if not self.users_read:
            return self.left_out("it has no attention that shows its weights")
        if not self.users:
            return self.left_out("no user of the sample has both relevant events and noise among the last 20")
        even = self.even / self.users
        rows = self.rows_of({"users": self.users, "asked": self.users_read, "even": even})
        for layer, sums in sorted(self.sums.items()):
            means = sums / self.users
            for head, (share, *signed) in [(None, means.mean(1)), *enumerate(means.T)]:
                rows += self.rows_of({"relevant": share, "ratio": share / even}, layer=layer, head=head)
                for kind, value in zip(KINDS, signed, strict=True):
                    rows.append(self.row("signed", value, layer=layer, head=head, label=kind))
        return rows

    def _relevant(self, batch: Batch, targets: Int[np.ndarray, "B"]) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """The positions of relevant events, and those of all recent events."""
        window = recent_events(self.context.model, batch)
        rows = window.nonzero(as_tuple=True)[0].cpu().numpy()
        items = batch.items[window].cpu().numpy()
        relevant = torch.zeros_like(window)
        relevant[window] = torch.from_numpy(self.relevance(items, targets[rows])).to(window.device)
        return relevant, window

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        columns = {
            "attention to related events": ("relevant", None),
            "over even": ("ratio", None),
            "signed, related": ("signed", "relevant"),
            "signed, others": ("signed", "noise"),
        }
        rows: list[tuple[Any, ...]] = []
        for run in there:
            find = partial(run.diagnosis.values, cls.name)
            values = [find(name, "layer", head=None, label=label) for name, label in columns.values()]
            people = run.diagnosis.value(cls.name, "users")
            rows += [(run.label, layer + 1, *(value[layer] for value in values), people) for layer in sorted(values[0])]
        even = float(np.mean([run.diagnosis.value(cls.name, "even") or 0.0 for run in there]))
        shares = lines("layer", next(iter(columns)), percent=True, zero=True, level={"even attention": even})
        return claim.figure(("run", "layer", *columns, "people"), rows, shares)


def recent_events(model: Model, batch: Batch) -> Bool[Tensor, "B T"]:
    """The positions of the last 20 events of each row; covered positions are no events."""
    real = event_places(model, batch)
    # counted from the end: an event is recent where it and all later ones are at most 20
    return real & (real.flip(1).cumsum(1).flip(1) <= LAST * tokens_per_event(model))
