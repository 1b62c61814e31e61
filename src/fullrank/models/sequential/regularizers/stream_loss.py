"""Stream loss: each of a reasoner's streams predicts the target on its own. Ours, in no paper.

weight * (1/P) sum_m loss(z_m), with z_m the mean of stream m's steps (PLR, Eq. 6) and `loss` the
model's own. It is added to the loss of the gated sum (PLR, Eq. 9), under the names
`last_stream_0`, `last_stream_1`, ...

Why: the derivative of that loss by g_m is z_m times its slope at z_rea. Streams that are alike get
the same, of which a softmax makes nothing: the gate does not learn, and nothing asks a stream to be
of use alone. Here each one has to rank the target by itself, and where one does that better than
the others for some histories, the gate has something to choose. It costs as many more softmaxes
over the catalogue as there are streams.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fullrank.core.constraints import Factor
from fullrank.models import QueryGroups, Requirement, States
from fullrank.models.sequential.regularizers import REASONER, PenaltySpec, QueryPenalty


class StreamLoss(PenaltySpec):
    """The loss of each stream alone."""

    kind: Literal["stream_loss"] = "stream_loss"
    weight: Factor = 1.0
    """Factor of the mean of the streams' losses; 0 leaves the term out."""

    def build(self) -> StreamLossPenalty:
        return StreamLossPenalty(self)


STREAMS = Requirement(
    lambda model: model.reasoner.streams > 1,
    "stream_loss: this reasoner has one stream, whose loss is the model's already; set model.reasoner=plr with two "
    "streams or more, or drop the penalty",
    code="setting-without-effect",
)


class StreamLossPenalty(QueryPenalty[StreamLoss]):
    requires = (REASONER, STREAMS)

    def extra_queries(self, queries: QueryGroups, states: States) -> QueryGroups:
        if not self.spec.weight or states.reasoning is None:
            return ()
        streams = states.reasoning.steps.mean(1).unbind(1)
        weight = self.spec.weight / len(streams)
        return tuple(
            replace(q, name=f"{q.name}_stream_{m}", vectors=z[q.rows], weight=weight, counted_as=q.name)
            for m, z in enumerate(streams)
            for q in queries
        )
