"""Who predicts what.

The room's contract: a Spec whose ``build(dim, max_length, items)`` gives a `Task`. A task says which stretches of which
histories make the rows of an epoch, what the model may see of them, and which states answer for which items. One that
asks with `States.outputs` where a reasoner gives them has the attribute ``reads_outputs = True``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fullrank.data.batch import Batch, Catalogue, Queries, States
from fullrank.models.sequential.items import Items

Segments = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row ids, and the first and one-past-last event of each row within its user's training history."""


class Task(Protocol):
    def segments(self, lengths: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(user, start, end) of an epoch's rows, from the number of training events of each user."""
        ...

    def counts(self, batch: Batch) -> dict[str, int]:
        """Queries by group, without running a model."""
        ...

    def training_inputs(self, items: Items, batch: Batch) -> tuple[Float[Tensor, "B T D"], Batch]:
        """The training view of a batch of rows."""
        ...

    def queries(self, states: States, inputs: Batch, batch: Batch, catalogue: Catalogue) -> tuple[Queries, ...]:
        """Questions to the catalogue, in named groups; their vectors are not normalised yet."""
        ...

    def inference_inputs(self, items: Items, batch: Batch) -> tuple[Float[Tensor, "B T D"], Batch]:
        """The inference view of whole histories."""
        ...

    def readout(self, states: States, inputs: Batch) -> Float[Tensor, "B D"] | Float[Tensor, "B K D"]:
        """One vector per history, to be searched for in the catalogue; or one for each level of the items' codes."""
        ...
