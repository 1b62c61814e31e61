"""Behaviour sequences: the events of a history, and the target that is looked at -> one vector for each sequence.

The room's contract: a `SequenceSpec` that says by `groups` of which sequences it makes vectors
itself, and whose ``build(width)`` gives the `TargetPooling` of a group. The target of a sequence is
the categorical field whose table it shares (`SequenceOf.shares`). All other sequences, and bags,
are pooled where they are looked up (`embedding.bags`).

Events are packed: E events of all rows behind each other, W numbers each, and the row of each. A
row without events has one, the missing value. Sequences of one group run in parallel: value i of
each is of the same event. The first has a target; the others may be what is known of events alone,
such as ratings, of which a target says nothing.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import MOST_ENTRIES, Length, once, only_with
from fullrank.core.errors import no_such
from fullrank.core.spec import Spec
from fullrank.models.ranking import Fields

Groups = Annotated[
    tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...],
    Field(max_length=MOST_ENTRIES),
    once("sequence", of=itertools.chain.from_iterable),
]
"""Names of sequences, each once, those that run in parallel together."""


class TargetPooling(nn.Module, ABC):
    """A target and the events of its history -> one vector."""

    @abstractmethod
    def forward(
        self, target: Float[Tensor, "B W"], events: Float[Tensor, "E W"], rows: Int[Tensor, "E"]
    ) -> Float[Tensor, "B W"]:
        """One vector for each row of packed events; each row has an event at least."""

    @abstractmethod
    def padded(
        self, target: Float[Tensor, "B W"], events: Float[Tensor, "B L W"], inside: Bool[Tensor, "B L"]
    ) -> Float[Tensor, "B W"]:
        """`forward` of padded events: the reference, and the form of exported graphs."""


class SequenceSpec(Spec):
    """Base of every way to read behaviour sequences."""

    learns: ClassVar[bool] = True
    """Whether it makes vectors itself, so that a ranker without vectors has no use for it."""

    search: Groups = ()
    """Hard search: in each group of parallel sequences, such as [[history_categories, history]], keep the events whose
    value in the first is the target's."""
    most: Annotated[Length | None, only_with("search")] = None
    """Events kept of those that the search finds, the newest; null keeps all."""

    uneven: Literal["error", "newest"] = "error"
    """Parallel sequences of which one has fewer events in a row: an error; or aligned at the newest event, where the
    first of the group says how many there are, and what the others lack is missing."""

    def groups(self, fields: Fields) -> Groups:
        """The sequences that it makes vectors of. Raises `UserError` where the
        fields do not suit the settings."""
        return ()

    def build(self, width: int) -> TargetPooling:
        """The pooling of a group whose events have so many numbers."""
        raise NotImplementedError


def require_targets(setting: str, groups: Groups, fields: Fields) -> None:
    """Raise `UserError` for a name that is no sequence, and for a group whose first has no target."""
    several = [field.name for field in fields if field.kind == "sequence"]
    for first, *others in groups:
        for name, allowed in ((first, with_target(fields)), *((other, several) for other in others)):
            if name not in allowed:
                which = " that shares the table of a categorical field" if name == first else ""
                raise no_such(f"{setting}: no sequence{which} is called", name, allowed, code="unknown-field")


def with_target(fields: Fields) -> list[str]:
    """The sequences that share the table of a categorical field, in the order of the schema."""
    return [field.name for field in fields if field.kind == "sequence" and field.shares is not None]
