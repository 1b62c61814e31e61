"""Training tasks: which states predict which items.

The room's contract: a `TaskSpec` whose ``build(dim, max_length, items)`` gives a `Task`. A task
says which stretches of which histories make the rows of an epoch, what the model may see of them,
and which states predict which items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, BatchFeatures
from fullrank.models import ItemVectors, QueryGroups, Requirement, States
from fullrank.models.sequential.items import Items
from fullrank.models.sequential.items.event_features import FeatureReader

Segments = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row ids, and the first and one-past-last event of each row within its user's training history."""
Inputs = tuple[Float[Tensor, "B T D"], Batch]
"""The vectors that an encoder reads, and the batch that they are of."""


GOES_ON = "the task {part!r} goes on with a history token by token, and "
"""Beginning of the sentences about encoders that cannot go on with a history."""


def _goes_on(model: Any) -> bool:
    """Whether a task that goes on with a history token by token has an encoder that can."""
    return not model.task.code_by_code or model.encoder.continues


REQUIRES = (
    Requirement(
        lambda model: model.task.causal is None or not model.encoder.decodes,
        "the encoder {spec.encoder.kind!r} reads a history whole for one answer, and the task {part!r} asks at every "
        "position: set model.task.targets=last (of generate), or model.task=last_item",
        code="encoder-answers-once",
    ),
    Requirement(
        lambda model: model.task.causal is not True or model.encoder.causal,
        "the task {part!r} needs a causal encoder; set {spec.encoder.mask}=true or choose another encoder",
        code="task-needs-other-mask",
    ),
    Requirement(
        lambda model: model.task.causal is not False or not model.encoder.causal,
        "the task {part!r} needs a bidirectional encoder; set {spec.encoder.mask}=false or choose another encoder",
        code="task-needs-other-mask",
    ),
    Requirement(
        lambda model: model.reasoner is None or model.task.reads_outputs,
        "the task {part!r} builds its queries from the encoder's own states, so the reasoner would not learn; set "
        "model.task=last_item (or model.task.covers_end=true of cloze), or leave model.reasoner out",
        code="task-ignores-reasoner",
    ),
    Requirement(
        lambda model: _goes_on(model) or model.encoder.causal,
        GOES_ON + "an encoder that sees both sides does not: set {spec.encoder.mask}=true, or "
        "model.encoder.kind=seq2seq",
        code="encoder-does-not-continue",
    ),
    Requirement(
        lambda model: _goes_on(model) or not model.encoder.reads_times,
        GOES_ON + "the encoder reads times, which codes that are generated do not have: set "
        "model.encoder.attention.rel_bias=positions, or choose another attention",
        code="encoder-does-not-continue",
    ),
    Requirement(
        _goes_on,
        GOES_ON + "positions that are added to the input end with it: set {spec.encoder.without_positions}, without "
        "scale_input",
        code="encoder-does-not-continue",
    ),
)
"""Requirements of any task, by what it says of itself (`Task.causal`, `reads_outputs`, `code_by_code`)."""


class Task(nn.Module, ABC):
    """Rows of an epoch, inputs of the encoder, queries of the loss, and the vectors that inference searches with."""

    causal: bool | None = None
    """Whether the encoder must be causal (True), must see both sides (False), or may be either (None)."""
    reads_outputs = False
    """Whether its queries are made of `States.outputs` where a reasoner gives them; without it a
    reasoner would not learn."""
    generates = False
    """Whether its readout scores codes, which decoders may search (`inference/search.py`)."""
    tokens_per_event = 1
    """Positions of the encoder that an event takes."""
    tokens_before = 0
    """Positions of the encoder before the first event."""
    reads_users = False
    """Whether it needs `Batch.user_keys` to know whose row it is."""
    featureless = "it does not say that it reads them"
    """Why features may not stand beside its items (`items/event_features.py`); empty where they may."""
    adds_groups = False
    """Whether inference reads out the sum of what its groups of queries ask with, each times its weight; else the first
    group alone is answered with."""
    chooses_targets = False
    """Whether it predicts the events that are asked for alone (`Batch.wanted`, and `wanted` of its `segments`)."""
    requires: tuple[Requirement, ...] = REQUIRES
    code_by_code = False
    """Whether a code is predicted from those before it, so that answers are generated (`generate.py`)."""

    @abstractmethod
    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> Segments:
        """(user, start, end) of an epoch's rows, from the number of training events of each user."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Queries by group, without running a model."""

    @abstractmethod
    def training_inputs(self, items: Items, batch: Batch) -> Inputs:
        """Encoder inputs in training, for the rows of a batch."""

    @abstractmethod
    def queries(self, states: States, inputs: Batch, batch: Batch, table: ItemVectors) -> QueryGroups:
        """Named groups of vectors for the loss to compare with the catalogue, not normalised yet."""

    @abstractmethod
    def inference_inputs(self, items: Items, batch: Batch) -> Inputs:
        """Encoder inputs at inference, for whole histories."""

    @abstractmethod
    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"] | Float[Tensor, "B K D"]:
        """One vector per history, to be searched for in the catalogue; or one for
        each level of the items' codes."""


class HistoryTask(Task):
    """A task that reads rows without their last event, which is a target alone, and histories whole."""

    def __init__(self) -> None:
        super().__init__()
        self.features: FeatureReader | None = None
        """Reads what is known beside the items."""

    def training_inputs(self, items: Items, batch: Batch) -> Inputs:
        times = None if batch.times is None else batch.times[:, :-1]
        inputs = replace(batch, items=batch.items[:, :-1], lengths=batch.lengths - 1, times=times, wanted=None)
        x = items.read(inputs.items)
        if self.features is None:
            return x, inputs
        known = (batch.features or BatchFeatures()).before_targets(batch.times)
        return self.features(x, replace(inputs, features=known))

    def inference_inputs(self, items: Items, batch: Batch) -> Inputs:
        return self.beside(items.read(batch.items), batch)

    def beside(self, x: Float[Tensor, "B _ D"], batch: Batch) -> Inputs:
        """Encoder inputs at inference, made of item vectors: one position more where users have a token."""
        if self.features is None:
            return x, batch
        known = (batch.features or BatchFeatures()).before_answers(batch.times, batch.lengths, batch.items.shape[1])
        return self.features(x, replace(batch, features=known))

    def read_features(self, reader: FeatureReader) -> None:
        """Read what is known beside the items from now on."""
        self.features, self.tokens_before = reader, reader.tokens_before


class TaskSpec(Spec):
    """Base of every task."""

    def positions(self, max_length: int, items: Items) -> int:
        """Most positions of a row that the encoder reads, where a history has at most `max_length` events."""
        return max_length

    @abstractmethod
    def build(self, dim: int, max_length: int, items: Items) -> Task: ...
