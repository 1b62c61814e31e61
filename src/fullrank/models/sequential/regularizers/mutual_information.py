"""Mutual information: a history's states tell which target is theirs, among the batch (FAIR, Eq. 11; InfoNCE).

With h the mean of a history's final states, x the vector of the item that follows it and s the
cosine, the term is the mean over rows of -log softmax_j(s(x_i, h_j) / temperature) at j = i: log B
minus it bounds their mutual information from below (Eq. 16).

Differs: Sec. 3.4 pools embeddings of the source sequence, which may be those that the encoder reads
(`source=inputs`); the introduction reads final states, which is the default. Eq. 11's anchor is the
target and its negatives are other sequences; `direction` has the other way, and both, summed.
Histories with the same target are no negatives of each other. A row's target is that of its last
query; rows without one are left out. Negatives are those of this process's micro-batch: nothing is
gathered, so shards give the mean of their own terms. With one row the term is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fullrank.core.constraints import PositiveFactor
from fullrank.models import Step, last
from fullrank.models.sequential.items import unit
from fullrank.models.sequential.regularizers import ContrastTemperature, PenaltySpec, SpecPenalty, last_queries
from fullrank.ops.in_batch_contrast import in_batch_contrast


class MutualInformation(PenaltySpec):
    """In-batch contrast of histories and their targets."""

    kind: Literal["mutual_information"] = "mutual_information"
    weight: PositiveFactor = 0.01
    """Factor of the term (beta)."""
    temperature: ContrastTemperature = 0.03
    """Divides the cosines."""
    direction: Literal["target_to_sequence", "sequence_to_target", "both"] = "target_to_sequence"
    """Direction of the search: negatives are other sequences, other targets, or each in turn (the sum of the two)."""
    source: Literal["mean", "last", "inputs"] = "mean"
    """A history's vector: the mean of its final states, the last of them, or the mean of its items' vectors."""

    def build(self) -> MutualInformationPenalty:
        return MutualInformationPenalty(self)


class MutualInformationPenalty(SpecPenalty[MutualInformation]):
    reads_every_item = False

    def forward(self, step: Step) -> Float[Tensor, ""]:
        spec, q = self.spec, step.queries[0]
        ends = last_queries(q)
        rows, targets = q.rows[ends], q.sought[ends]
        sequences = unit(self._sources(step)[rows].float())[None]
        vectors = q.table.embed(targets) if q.items is None else step.model.items.embed(targets)
        items = unit(vectors.float())[None]
        pair = (sequences, items) if spec.direction == "sequence_to_target" else (items, sequences)
        both = spec.direction == "both"
        return spec.weight * in_batch_contrast(*pair, targets, temperature=spec.temperature, both=both)

    def _sources(self, step: Step) -> Float[Tensor, "B D"]:
        """The vector of each history, as `source` says."""
        tokens, inputs = step.states.tokens, step.inputs
        assert inputs is not None
        if self.spec.source == "last":
            return last(tokens, inputs)
        # tokens behind the history are made of the target
        before = replace(inputs, lengths=inputs.history, answer=0)
        held = before.valid
        # events, not the user's token; that of `generate` has always been pooled
        if step.model.features is not None:
            held = held & (before.positions(from_end=False) >= step.model.task.tokens_before)
        if self.spec.source == "inputs":
            tokens = step.model.items.read(inputs.items)
            # a covered item is a target
            held = held if inputs.hidden is None else held & ~inputs.hidden
        total = tokens.masked_fill(~held[..., None], 0.0).sum(1)
        return total / held.sum(1).clamp_min(1)[:, None]
