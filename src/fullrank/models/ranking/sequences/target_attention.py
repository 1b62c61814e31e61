"""Target attention: events weighted by how they relate to the target (DIN; Zhou et al., KDD 2018, arXiv:1706.06978).

Claim: a user's interests are many and a target meets few of them; one pooled vector
must carry all (Sec. 4.2).

    v = sum_j a(q, k_j) k_j,   a(q, k) = w . MLP([q; k; q - k; q * k]) + b          (Eq. 3: the local activation unit)

q is the target's vector, k_j that of event j. The weights are not normalised: their sum says how
much of the history the target meets; `softmax` divides it out. Sequences of the same events may be
attended `together`: q and k are then their vectors side by side, and v is cut back into one vector
for each. What a target does not have, such as the rating of a past event, is zeros in q.

Differs: the paper feeds the outer product of q and k; difference and product are its code's and
FuxiCTR's. A history without events has one, the missing value, where FuxiCTR has a vector of zeros;
and Dice takes its statistics over events alone, where FuxiCTR counts the padding.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.errors import UserError, no_effect
from fullrank.models.ranking import Fields
from fullrank.models.ranking.dnn import Deep, xavier
from fullrank.models.ranking.sequences import Groups, SequenceSpec, TargetPooling, require_targets, with_target


class TargetAttention(SequenceSpec):
    """DIN's local activation unit: attention of the target over its history."""

    kind: Literal["target_attention"] = "target_attention"
    unit: Deep = Deep(hidden=(64,), activation="dice")
    """Hidden layers of the activation unit."""
    softmax: bool = False
    """Normalise the weights of a history to one."""
    together: Groups = ()
    """Groups of parallel sequences, such as [[history, history_categories, history_ratings]], that share their weights;
    the first has a target. Each other sequence with a target has an activation unit of its own."""

    @model_validator(mode="after")
    def _groups_are_sound(self) -> TargetAttention:
        alone = next((group for group in self.together if len(group) == 1), None)
        if alone is not None:
            raise no_effect(f"together={[list(alone)]}", "on a sequence alone", "leave it out, or name two or more")
        return self

    def groups(self, fields: Fields) -> Groups:
        names = with_target(fields)
        if not names:
            raise UserError(
                "target_attention needs a sequence that shares the table of a categorical field, its target, and this "
                "store has none: prepare one with {kind: sequence, name: history, shares: item}, or use pooled",
                code="no-sequences",
            )
        grouped = [name for group in self.together for name in group]
        require_targets("together", self.together, fields)
        return (*self.together, *((name,) for name in names if name not in grouped))

    def build(self, width: int) -> ActivationUnit:
        return ActivationUnit(width, self)


class ActivationUnit(TargetPooling):
    """The weights of a group's events, and the weighted sum."""

    def __init__(self, width: int, spec: TargetAttention):
        super().__init__()
        self.softmax = spec.softmax
        self.hidden = spec.unit.build(4 * width)
        # no bias where a softmax follows, which a constant does not change
        self.head = xavier(nn.Linear(self.hidden.out, 1, bias=not spec.softmax))

    def forward(
        self, target: Float[Tensor, "B W"], events: Float[Tensor, "E W"], rows: Int[Tensor, "E"]
    ) -> Float[Tensor, "B W"]:
        weights = self.scores(target[rows], events)
        if self.softmax:
            weights = softmax_by_row(weights, rows, len(target))
        # half precision where autocast is on
        weighted = (weights[:, None] * events).to(events.dtype)
        return torch.zeros_like(target, dtype=events.dtype).index_add(0, rows, weighted)

    def padded(
        self, target: Float[Tensor, "B W"], events: Float[Tensor, "B L W"], inside: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B W"]:
        wide = target[:, None].expand_as(events)
        weights = self.scores(wide.flatten(0, 1), events.flatten(0, 1)).reshape(inside.shape)
        if self.softmax:
            weights = weights.masked_fill(~inside, -torch.inf).softmax(1)
        return (torch.where(inside, weights, 0.0)[..., None] * events).sum(1)

    def scores(self, target: Float[Tensor, "E W"], events: Float[Tensor, "E W"]) -> Float[Tensor, "E"]:
        """a(q, k) of pairs of a target and an event."""
        pairs = torch.cat([target, events, target - events, target * events], 1)
        out: Tensor = self.head(self.hidden(pairs))
        return out.squeeze(-1).float()  # the softmax and the sum are of full precision


def softmax_by_row(scores: Float[Tensor, "E"], rows: Int[Tensor, "E"], count: int) -> Float[Tensor, "E"]:
    """exp(s_j) / sum of the exp(s_i) of the same row, of `count` rows; the row's
    largest score is taken off first."""
    largest = scores.detach().new_full((count,), -torch.inf).scatter_reduce(0, rows, scores.detach(), "amax")
    shares = torch.exp(scores - largest[rows])
    return shares / shares.new_zeros(count).index_add(0, rows, shares)[rows]
