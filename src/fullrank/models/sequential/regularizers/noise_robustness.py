"""Noise robustness: a history with noise in it is read as the clean one is, and unlike other histories (FAIR, Eq. 9).

Every digit of every item in the history is masked or replaced by another of its codebook with some
chance (Eq. 8), and the history is read again. With h and h~ the last states of the clean and of the
noisy pass and d one minus the cosine, the term is the mean over ordered pairs of rows of max(0,
d(h_i, h~_i) - d(h_i, h_j) + margin).

A masked digit becomes a padding vector in its item's mean, which still divides by all K; an item
without digits left keeps its place. `pad: learned` is RPG's and FAIR's: row 0 of their code table,
[PAD], is a vector like every other, one for all levels, and learns from this term alone. `pad:
zero` (default) takes the digit away, with no parameter.

Differs: items that are no codes are masked or replaced whole. Targets stay clean and the task's
loss reads the clean pass alone; gradients flow through both (the paper says nothing of either). A
row with the same target is a negative like any other. With a reasoner h is its trained answer; of
two views the first is read. Negatives are those of this process's micro-batch: nothing is gathered,
so shards give the mean of their own terms. With one row the term is 0.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor, nn

from fullrank.core.constraints import Factor, PositiveFactor, Share, only_with
from fullrank.core.errors import UserError
from fullrank.core.spec import later
from fullrank.models import Step
from fullrank.models.sequential.items import Items, ItemsView
from fullrank.models.sequential.items.perturb import Noise
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.models.sequential.regularizers import PenaltySpec, SpecPenalty, trained_states
from fullrank.ops.in_batch_contrast import in_batch_triplet
from fullrank.ops.starting_values import small


class NoiseRobustness(PenaltySpec):
    """Triplet loss between clean and noisy histories."""

    kind: Literal["noise_robustness"] = "noise_robustness"
    weight: PositiveFactor = 1.0
    """Factor of the term (alpha)."""
    margin: Factor = 0.2
    """Margin by which the noisy history must be nearer than another's, in cosine distance."""
    mask: Share = 0.1
    """Chance that a digit (of items without codes: an item) is masked."""
    substitute: Share = 0.1
    """Chance that it is replaced by another."""
    pad: Annotated[Literal["zero", "learned"], only_with("mask")] = later("zero")
    """The vector of a masked digit: zeros, or one that is learned."""

    @model_validator(mode="after")
    def _some_noise(self) -> NoiseRobustness:
        if not 0 < self.mask + self.substitute <= 1:
            raise UserError(
                f"noise_robustness: mask + substitute is {self.mask + self.substitute:g}; it must be at most 1, and "
                "above 0, for without noise the second pass has no effect",
                code="share-out-of-range",
            )
        return self

    def build(self) -> NoiseRobustnessPenalty:
        return NoiseRobustnessPenalty(self)


class NoiseRobustnessPenalty(SpecPenalty[NoiseRobustness]):
    """Reads the histories again with noise, inside the model's own forward pass."""

    def __init__(self, spec: NoiseRobustness):
        super().__init__(spec)
        self.pad: nn.Parameter | None = None

    def attach(self, model: Any) -> None:
        self.pad = small(model.items.part_width()) if self.spec.pad == "learned" else None

    def forward(self, step: Step) -> Float[Tensor, ""]:
        assert step.inputs is not None
        batch = step.batch.first_view()
        noise = Noise.on(batch, self.spec.mask, self.spec.substitute, self.pad)
        x, inputs = step.model.task.training_inputs(Noisy(step.model.items, noise), batch)
        clean = trained_states(step.states, step.inputs)[: len(batch.items)]
        noisy = trained_states(step.model.encoder(x, inputs), inputs)
        return self.spec.weight * in_batch_triplet(clean, noisy, self.spec.margin)


class Noisy(ItemsView):
    """Items whose vectors of a batch of histories have noise in them."""

    def __init__(self, items: Items, noise: Noise):
        super().__init__(items)
        self.noise = noise

    def embed(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.items.perturbed(ids, self.noise)

    def code_vectors(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T K D"]:
        assert isinstance(self.items, SemanticItems)
        return self.items.perturbed_codes(ids, self.noise)
