"""Models, plain PyTorch: sequential recommenders (histories to items), ranking models (impressions to clicks).

This file holds their contracts: what an encoder returns, what a training step holds,
what a recommender owes its callers. The letters of shapes are explained in
`data/batch.py`, beside the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from fullrank.core.constraints import MOST_PARTS, ListLength, Parts, not_with, only_with
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Captures

Flops = dict[str, int | None]
"""FLOPs of one forward pass by component, in the order of computing; None for one that is not counted."""


@dataclass(frozen=True)
class ReasoningStates:
    """The latent states of a reasoner after each row's last event: S steps in P isolated streams (ReaRec: P = 1)."""

    start: Float[Tensor, "B D"]
    """h_0, the encoder's own state of the last event."""
    steps: Float[Tensor, "B S P D"]
    """h_{s,p}: the state of stream p after step s."""
    gate: Float[Tensor, "B P"]
    """Weight of each stream in the answer; a row sums to one."""


@dataclass(frozen=True)
class States:
    """The states that an encoder returns."""

    tokens: Float[Tensor, "B T D"]
    layers: tuple[Float[Tensor, "B T D"], ...] = ()
    """The input of each block, then the output of the last."""
    blocks: tuple[torch.nn.Module, ...] = ()
    """The blocks passed through, in order."""
    outputs: Mapping[str, Float[Tensor, "B D"]] = field(default_factory=dict)
    """Named answers of a reasoner; empty for a plain encoder. `trained` is what the loss reads,
    `answer` what items are searched with, and `step_0` .. `step_S` are the answers after that many
    steps (`step_0` is h_0, `step_S` equals `answer`)."""
    reasoning: ReasoningStates | None = None
    """The states of a reasoner's steps; None for a plain encoder."""


def last(tokens: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B D"]:
    """The state of each row's last valid event, before any answer (of an empty row: its first position)."""
    at = (batch.history - 1).clamp_min(0)[:, None, None].expand(-1, 1, tokens.shape[-1])
    return tokens.gather(1, at)[:, 0]


@runtime_checkable
class ItemVectors(Protocol):
    """A table of item vectors, which queries search; `items.ItemIndex` is the library's own."""

    @property
    def size(self) -> int: ...
    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]: ...
    def all(self) -> Float[Tensor, "V D"]: ...
    def log_q(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]: ...


@dataclass(frozen=True)
class Queries:
    """Vectors, what each should find, and the table that they search."""

    name: str
    vectors: Float[Tensor, "M D"]
    targets: Int[Tensor, "M"]
    table: ItemVectors
    rows: Int[Tensor, "M"]
    """Which row of the batch each query belongs to."""
    positions: Int[Tensor, "M"]
    """Which position of that row it answers for."""
    temperature: float = 1.0
    weight: float = 1.0
    """Factor of the group's term."""
    counted_as: str | None = None
    """The task's group that has as many queries, where this one is not the task's own."""
    items: Int[Tensor, "M"] | None = None
    """The items that are sought, where the targets are parts of them (codes); None where the targets are the items."""
    times: Int[Tensor, "M"] | None = None
    """When the event that each query seeks happened: in training alone, where the batch has times."""

    @property
    def sought(self) -> Int[Tensor, "M"]:
        """The item that each query is to find, whole where the targets are parts of it."""
        return self.targets if self.items is None else self.items

    def first(self, rows: int) -> Queries:
        """The queries of the first rows; queries stand in order of their rows."""
        count = int((self.rows < rows).sum())
        shorter: dict[str, Any] = {name: x[:count] for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **shorter)


QueryGroups = tuple[Queries, ...]
"""The named groups of queries of a step."""


@dataclass(frozen=True)
class Record:
    """The losses of some queries, and the scores that they are made of."""

    losses: Float[Tensor, "M"]
    positive: Float[Tensor, "M"] | None = None
    negative: Float[Tensor, "M N"] | None = None
    negative_ids: Int[Tensor, "M N"] | None = None
    kept: Bool[Tensor, "M N"] | None = None
    """False for the negatives that the loss does not count; None counts all."""


@dataclass(frozen=True)
class Step:
    """Everything that one training step computed; weightings and penalties read it."""

    model: Any
    """The model that takes the step."""
    batch: Batch
    states: States
    queries: QueryGroups
    records: Mapping[str, Record] = field(default_factory=dict)
    captures: Captures | None = None
    """Tensors that the modules captured in this step, where a penalty needs them."""
    inputs: Batch | None = None
    """The batch as the encoder read it: lengths and positions of `states.tokens`."""
    first_view_only: bool = False
    """Whether the loss reads the first view of the rows alone."""

    @property
    def reasoning(self) -> ReasoningStates:
        """The states of the model's reasoner; a part that reads them requires one."""
        assert self.states.reasoning is not None
        return self.states.reasoning


@runtime_checkable
class Scorer(Protocol):
    """A model's answer to some histories: the scores of one block of items at a time."""

    @property
    def size(self) -> int: ...
    def block(self, low: int, high: int) -> Float[Tensor, "B n"]: ...


@dataclass(frozen=True)
class DenseScorer:
    """An answer by inner product: score = vectors @ table.T / temperature. Larger is better."""

    vectors: Float[Tensor, "B D"]
    table: Float[Tensor, "V D"]
    temperature: float = 1.0

    @property
    def size(self) -> int:
        return len(self.table)

    def block(self, low: int, high: int) -> Float[Tensor, "B n"]:
        return (self.vectors / self.temperature) @ self.table[low:high].T


class Model(ABC):
    """A recommender as retrieval, evaluation and serving see it, trained or not.

    In evaluation mode an answer changes nothing in the model, so that many threads may share it.
    """

    num_items: int
    max_length: int
    """Longest history read; older events are dropped before `answer`."""
    allows_empty: bool = False
    """Whether it recommends to a user without any event."""
    reads_times: bool = False
    """Whether it needs `Batch.times`: every caller then provides them, and none otherwise."""
    reads_users: bool = False
    """Whether it reads `Batch.user_keys`."""
    reads_features: Mapping[str, tuple[str, ...]] | None = None
    """Names of the features that it reads in `Batch.features`, those made of times too, by role
    (event, request, user); None where it reads none."""

    @property
    def reasoner(self) -> Any | None:
        """The part that takes latent steps before the answer (`reasoning.Reasoner`); None without one."""
        return None

    def row_parameters(self) -> list[torch.nn.Parameter]:
        """Tables whose gradients are sparse, updated row by row."""
        return []

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        """Resize what has the length of the training data, so that these saved tensors can be loaded into it."""
        return None

    @abstractmethod
    def answer(self, batch: Batch) -> Scorer:
        """The scores of all items for each history.

        A model that has an item index takes `index` and `budget` too.
        """

    def index_items(self) -> Any | None:
        """Item vectors, made once for many answers and passed to `answer` as `index`;
        None for a model without them."""
        return None

    def similar(self, items: Int[Tensor, "B"], index: Any | None = None) -> Scorer:
        """How alike every item is to each of these.

        Raises `UserError` for a model that cannot say.
        """
        raise UserError(
            "this model has no vectors of items, so none are similar: take one that reads histories",
            code="no-item-similarity",
            public=True,
        )


@dataclass(frozen=True)
class Requirement:
    """A condition on the assembled model, and the sentence for a model that does not meet it."""

    holds: Callable[[Any], bool]
    """Whether a `RecommenderModel` meets it; its parts are built, its penalties not attached yet."""
    sentence: str
    """What the user reads: `{part}` is the kind of the part that requires it, `{spec}` the model's settings."""
    code: str


def check_parts(model: Any, spec: Any, parts: Iterable[tuple[str, Any]]) -> None:
    """Raise `UserError` for the first requirement of these (kind, part) that the model does not meet."""
    for kind, part in parts:
        for requirement in part.requires:
            if not requirement.holds(model):
                raise UserError(requirement.sentence.format(part=kind, spec=spec), code=requirement.code)


@runtime_checkable
class _ReasonerSize(Protocol):
    """The steps and streams that a reasoner was trained with, which a budget reads."""

    steps: int
    streams: int


class Budget(Spec):
    """Reasoning at inference. Refused for a model without a reasoner where anything is set."""

    steps: int | None = Field(None, ge=0, le=MOST_PARTS)
    """Reasoning steps; 0 answers by the encoder alone, null takes as many as in training."""
    streams: Parts | None = None
    """Parallel streams, the first ones of those trained; null takes all."""
    adaptive: Annotated[ListLength | None, not_with("steps", 0)] = None
    """Reasoning stops when so many first items of a user's list stay the same; null takes every step."""
    patience: Annotated[Parts | None, only_with("adaptive")] = None
    """Steps in a row in which these items have to stay the same; null is 1."""

    def steps_of(self, reasoner: _ReasonerSize) -> int:
        """Steps that the reasoner may take."""
        return reasoner.steps if self.steps is None else self.steps

    def streams_of(self, reasoner: _ReasonerSize) -> int:
        """Streams that it may use. Raises `UserError` for more than were trained."""
        if self.streams is not None and self.streams > reasoner.streams:
            raise UserError(
                f"this model was trained with {reasoner.streams} streams: {self.streams} cannot be asked for; train "
                "one with more (model.reasoner.streams)",
                code="too-many-streams",
                public=True,
            )
        return self.streams or reasoner.streams


AS_TRAINED = Budget()
"""The budget of a trained model: every step in every stream."""


def check_budget(model: Model, budget: Budget) -> None:
    """Raise `UserError` for a budget that a model cannot keep: any without a
    reasoner, more streams than trained."""
    reasoner = model.reasoner
    if reasoner is not None:
        budget.streams_of(reasoner)
    elif budget is not AS_TRAINED and budget != AS_TRAINED:  # comparing settings takes longer than reading them
        settings = ", ".join(f"{key}={value}" for key, value in budget.dump().items() if value is not None)
        raise UserError(
            f"this model does not reason, so reasoning.{settings} has no effect: leave it out, or train a recipe "
            "with a reasoner (`fullrank list recipes`)",
            code="no-reasoner",
            public=True,
        )


def described(model: Model, budget: Budget) -> dict[str, Any] | None:
    """The reasoning that an answer depends on, for a result's protocol; None for a model that does not reason."""
    reasoner = model.reasoner
    if reasoner is None:
        return None
    protocol = {"steps": budget.steps_of(reasoner), "streams": budget.streams or reasoner.streams}
    if budget.adaptive is not None:
        protocol |= {"adaptive": budget.adaptive, "patience": budget.patience or 1}
    return protocol
