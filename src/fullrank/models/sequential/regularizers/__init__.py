"""Penalties on a training step: terms that are added to the loss.

The room's contract: a `PenaltySpec` whose ``build()`` gives a `Penalty`. A penalty that finds
nothing to read raises; it never passes in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import MOST_FACTOR
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Captures
from fullrank.data.events.catalog import Catalog
from fullrank.models import Queries, QueryGroups, ReasoningStates, Requirement, States, Step, last

ContrastTemperature = Annotated[float, Field(ge=0.03, le=MOST_FACTOR)]
"""Divides cosines of a contrast among a batch, whose exponentials stay finite in float32."""


@dataclass(frozen=True)
class Needs:
    """Needs of a penalty in every training step; ``a | b`` serves two penalties."""

    columns: bool = False
    """Column sums of the attention weights: how much each key received (`batch.ColumnSums`)."""
    columns_after_dropout: bool = False
    """Column sums of the weights after dropout."""
    second_view: bool = False
    """Every row read twice in one forward pass, under other dropout."""
    loss_of: Literal["all", "first_view", "both_views"] = "all"
    """Views that the task's loss reads: all that there are, without a wish (`all`) or of necessity (`both_views`, their
    mean), or the first alone."""

    def __or__(self, other: Needs) -> Needs:
        """The needs of both. Raises `UserError` where one step cannot serve both."""
        wishes = {needs.loss_of for needs in (self, other)} - {"all"}
        if len(wishes) > 1:
            raise UserError(
                "one penalty wants the loss of both views and another that of the first; "
                "set loss_views=first on reasoning_contrast",
                code="penalties-disagree",
            )
        joint = Needs(
            self.columns or other.columns,
            self.columns_after_dropout or other.columns_after_dropout,
            self.second_view or other.second_view,
            next(iter(wishes), "all"),
        )
        if joint.columns and joint.columns_after_dropout:
            raise UserError(
                "one penalty reads attention weights before dropout and another those after it; drop one of the two",
                code="penalties-disagree",
            )
        return joint

    def captures(self) -> Captures | None:
        """Empty captures for one step; None where modules need not keep anything."""
        if self.columns or self.columns_after_dropout:
            return Captures(columns=[], after_dropout=self.columns_after_dropout)
        return None


ITEM_VECTORS = Requirement(
    lambda model: not model.task.generates,
    "the penalty {part!r} reads item vectors and the task {spec.task.kind!r} searches codes: leave the penalty out, or "
    "train next_item on these items",
    code="penalty-needs-item-vectors",
)
"""The requirement of a penalty that reads what the first queries search."""


class Penalty(nn.Module, ABC):
    """A function of one training step; its buffers are saved with the weights. Gives a scalar, in fp32."""

    needs: Needs = Needs()
    """Needs that every training step must meet."""
    after_steps: int = 0
    """Optimizer step before which it needs no second view."""
    requires: tuple[Requirement, ...] = ()
    """Requirements on the model's other parts."""
    reads_every_item: bool = True
    """Whether one process must hold the vectors of all items. False where the penalty reads none, or the queries'."""

    featureless: str = ""
    """Why features may not stand beside the items of its step (`items/event_features.py`); empty where they may."""
    reads_start: bool = False
    """Whether it reads the weights that training starts from, which a run that was cut off then reads again."""

    def read_items(self, catalog: Catalog) -> None:
        """See the item table once, before `attach`: keep the columns that the penalty is about.

        Raises `UserError` where they are not there.
        """

    def attach(self, model: nn.Module) -> None:
        """See the model once, when that is built: find the blocks to read and make the buffers that belong to them.

        Raises `UserError` where there is nothing to read.
        """

    def begin(self, model: nn.Module) -> None:
        """See the model once, when training begins or goes on, and read what inference does not need.

        With `reads_start` its weights are then those that training started from. Raises `UserError`
        where what is named cannot be read or belongs to another model.
        """

    def extra_queries(self, queries: QueryGroups, states: States) -> QueryGroups:
        """Further groups of queries for the model's loss, made of the task's; vectors are not normalised yet."""
        return ()

    @abstractmethod
    def forward(self, step: Step) -> Float[Tensor, ""]:
        """The term that is added to the loss of a training step."""


class PenaltySpec(Spec):
    """Base of every penalty."""

    @abstractmethod
    def build(self) -> Penalty: ...


S = TypeVar("S", bound=PenaltySpec)


class SpecPenalty(Penalty, Generic[S]):
    """A penalty that reads its settings from its spec."""

    def __init__(self, spec: S):
        super().__init__()
        self.spec = spec


class QueryPenalty(SpecPenalty[S]):
    """A penalty whose term is the model's loss of its `extra_queries`."""

    def forward(self, step: Step) -> Float[Tensor, ""]:
        """Zero: the term is in the model's loss of these queries already."""
        return torch.zeros((), device=step.batch.items.device)


def user_vectors(step: Step) -> Float[Tensor, "B D"]:
    """The vectors of each row's queries (first group), summed, over the longest history that the model reads.

    SPRINT's authors divide by the batch's padded length; with the model's, a batch's own padding
    has no say.
    """
    q = step.queries[0]
    vectors = q.vectors.float()  # a sum of many in bf16 would drop the small ones
    summed = vectors.new_zeros(len(step.batch.items), vectors.shape[1]).index_add(0, q.rows, vectors)
    return summed / step.model.max_length


def trained_states(states: States, inputs: Batch) -> Float[Tensor, "B D"]:
    """The state that each row is trained by: a reasoner's, or that of the last event."""
    return states.outputs.get("trained", last(states.tokens, inputs))


def last_queries(q: Queries) -> Bool[Tensor, "M"]:
    """The last query of each row."""
    ends = torch.ones_like(q.rows, dtype=torch.bool)
    # queries stand in order of their rows, a row's in order of time
    ends[:-1] = q.rows[1:] != q.rows[:-1]
    return ends


REASONER = Requirement(
    lambda model: model.reasoner is not None,
    "the penalty {part} reads the steps of a reasoner, and this model has none: set model.reasoner=plr (or rearec, "
    "lares), or drop the penalty",
    code="no-reasoner",
)


def flat_states(reasoning: ReasoningStates, *, start: bool) -> Float[Tensor, "B n D"]:
    """All states of each row: n = S P, and h_0 before them on request."""
    steps = reasoning.steps.flatten(1, 2)
    return torch.cat([reasoning.start[:, None], steps], 1) if start else steps


def states_by_view(reasoning: ReasoningStates, batch: Batch) -> tuple[Float[Tensor, "n B D"], Float[Tensor, "n B D"]]:
    """The states of the first and of the second view, by step and stream."""
    first, second = flat_states(reasoning, start=False).float().chunk(2)
    assert batch.views == 2 and len(first) == len(second)
    return first.transpose(0, 1), second.transpose(0, 1)
