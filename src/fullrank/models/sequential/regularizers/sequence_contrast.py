"""Sequence-sequence contrast: a history finds its own augmented copy among the batch (UniSRec, Eq. 8; InfoNCE).

The copy lacks each item but the first with the chance `drop` (item drop). In a share `words`
of the steps it has all items and reads each with that chance by the text vector with words
dropped (word drop, `model.items.augmented`). With s_ij the cosine of the state of history i
and of copy j, the term is the mean over rows of -log softmax_j(s_ij / temperature) at j = i.
The encoder runs once more.

Differs: rows with the same target are left out of the softmax, where the authors' code gives them
the score 0. Rows without a query are left out. Negatives are those of this process's micro-batch:
nothing is gathered, so shards give the mean of their own terms. With one row the term is 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fullrank.core.constraints import PositiveFactor, PositiveShare, Share
from fullrank.core.random import uniform_draws
from fullrank.data.batch import Batch
from fullrank.models import Requirement, States, Step
from fullrank.models.sequential.items import ItemsView, unit
from fullrank.models.sequential.items.unisrec import UniSRecItems
from fullrank.models.sequential.regularizers import (
    ContrastTemperature,
    PenaltySpec,
    SpecPenalty,
    last_queries,
    trained_states,
)
from fullrank.ops.in_batch_contrast import in_batch_contrast

APART = 0x5E9_C0_417
"""Added to the seed: sets these draws apart from those of negatives and of noise."""


class SequenceContrast(PenaltySpec):
    """In-batch contrast of histories and their augmented copies."""

    kind: Literal["sequence_contrast"] = "sequence_contrast"
    weight: PositiveFactor = 1e-3
    """Factor of the term (lambda)."""
    drop: PositiveShare = 0.2
    """Chance that an item is dropped, or read without some of its words."""
    words: Share = 0.0
    """Share of the steps that drop words in place of items; UniSRec has 0.1."""
    temperature: ContrastTemperature = 0.07
    """Divides the cosines."""

    def build(self) -> SequenceContrastPenalty:
        return SequenceContrastPenalty(self)


class SequenceContrastPenalty(SpecPenalty[SequenceContrast]):
    """Runs the encoder once more, on the copies, inside the model's own forward pass."""

    featureless = "it drops events, and what asks for one that is dropped would ask at another place"

    def __init__(self, spec: SequenceContrast):
        super().__init__(spec)
        self.requires = (
            Requirement(
                lambda model: model.task.tokens_per_event == 1 and not model.task.tokens_before,
                "sequence_contrast drops items, and this task reads other tokens than one for each item: set "
                "model.task to next_item, last_item or cloze, or leave the penalty out",
                code="tokens-are-not-items",
            ),
            Requirement(
                lambda model: not spec.words or getattr(model.items, "other", None) is not None,
                f"sequence_contrast: words={spec.words:g} needs items with a second text vector: set "
                "model.items.augmented={{kind: text, word_drop: 0.2}} (of unisrec), or words=0",
                code="items-without-vectors",
            ),
        )

    def forward(self, step: Step) -> Float[Tensor, ""]:
        spec = self.spec
        assert step.inputs is not None
        batch = step.batch.first_view()
        rows, q = len(batch.items), step.queries[0]
        ends = last_queries(q) & (q.rows < rows)
        ended, targets = q.rows[ends], q.sought[ends]
        original = trained_states(step.states, step.inputs)[:rows][ended]
        copy = trained_states(*self._copied(step.model, batch))[ended]
        pair = unit(original.float())[None], unit(copy.float())[None]
        return spec.weight * in_batch_contrast(*pair, targets, temperature=spec.temperature, both=False)

    def _copied(self, model: Any, batch: Batch) -> tuple[States, Batch]:
        """The states of the copies, and what the encoder was given of them."""
        draw = uniform_draws(batch.seed + APART + 1, batch.step, torch.zeros(1, dtype=torch.long), 1)
        if float(draw) < self.spec.words:
            x, inputs = model.task.training_inputs(_Augmented(model.items, batch, self.spec.drop), batch)
        else:
            x, inputs = model.task.training_inputs(model.items.for_one_step(), batch)
            changed = changed_places(batch, x.shape[1], self.spec.drop)
            changed[:, 0] = False
            x, inputs = dropped(x, inputs, changed)
        return model.encoder(x, inputs), inputs


def changed_places(batch: Batch, width: int, chance: float) -> Bool[Tensor, "B T"]:
    """Whether each event is dropped or changed: a function of seed, step, row and place."""
    return uniform_draws(batch.seed + APART, batch.step, batch.row_ids, width) < chance


def dropped(
    x: Float[Tensor, "B T D"], inputs: Batch, changed: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B t D"], Batch]:
    """The rows without these events; the others close up."""
    stays = inputs.valid & ~changed
    lengths = stays.sum(1)
    # a stable sort puts the events that stay first, in their order
    order = (~stays).to(torch.int8).sort(dim=1, stable=True).indices[:, : max(1, int(lengths.max()))]
    columns = {name: getattr(inputs, name) for name in ("items", "times", "hidden")}
    moved = {name: column.gather(1, order) for name, column in columns.items() if column is not None}
    closer = x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))
    return closer, replace(inputs, lengths=lengths, captures=None, **moved)


class _Augmented(ItemsView):
    """Items of which some places of the histories read the second x."""

    items: UniSRecItems

    def __init__(self, items: UniSRecItems, batch: Batch, chance: float):
        super().__init__(items)
        self.batch, self.chance = batch, chance

    def embed(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.items.embed_augmented(ids, changed_places(self.batch, ids.shape[1], self.chance))
