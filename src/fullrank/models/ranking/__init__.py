"""Rankers: the fields of an impression -> the logit of a click.

The room's contract: a Spec whose ``build(fields, dim)`` gives a module that satisfies `Ranker`; `fields` are the
`FieldInfo`s in the order of the schema (one token each) and `dim` the width of a token. A property `reads` of the Spec
says which parts of `FieldTokens` it needs: `tokens`, `linear` or both (without it, `tokens`); only those are made.
A method `flops` of the module (`size.py`) says what an impression costs; without it, runs record none.

Letters, beside those of `batch.py`: F fields, E width of a field's vector, T tokens, D width of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError
from fullrank.data.impressions.fields import FieldInfo

EVERY = frozenset({"*"})
"""Wants every tap."""


class Notes(dict[str, Tensor]):
    """Layer outputs by name, in the order in which they were made; a ranker notes all, only the wanted are kept."""

    def __init__(self, wanted: frozenset[str]):
        super().__init__()
        self.wanted = wanted

    def __call__(self, name: str, value: Float[Tensor, "B T D"]) -> None:
        if name in self.wanted or "*" in self.wanted:
            self[name] = value


@dataclass(frozen=True)
class FieldTokens:
    """One vector per field, and the first-order part of the logit."""

    tokens: Float[Tensor, "B F E"]
    """In the order of the schema; of width 0 for a ranker that does not read them."""
    linear: Float[Tensor, "B"] | None = None
    """Bias plus one weight per id or number, summed; None where the ranker does not read it."""
    wanted: frozenset[str] = frozenset()
    """Names of the taps asked for; `EVERY` asks for all."""

    def notes(self) -> Notes:
        """Empty notes, with the tokens themselves as `embedding`."""
        notes = Notes(self.wanted)
        notes("embedding", self.tokens)
        return notes


@dataclass(frozen=True)
class RankerOutput:
    """What a ranker returns."""

    logits: Float[Tensor, "B"]
    taps: Mapping[str, Tensor] = field(default_factory=dict)
    """Those wanted, [B, T, D], in order: `embedding`, `tokens`, `mixing_0`, `ffn_0`, ...; each ranker names its own."""
    aux: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars that are added to the loss under their names (the balance of experts)."""


@runtime_checkable
class Ranker(Protocol):
    def __call__(self, x: FieldTokens) -> RankerOutput: ...


def reads(spec: object) -> frozenset[str]:
    """The parts of `FieldTokens` that the ranker of this Spec needs."""
    return frozenset(getattr(spec, "reads", ("tokens",)))


def require_fields_to_cross(fields: Sequence[FieldInfo], kind: str) -> None:
    """Raise `UserError` where there is nothing to interact with."""
    if len(fields) < 2:
        raise UserError(
            f"{kind} crosses fields and this store has {len(fields)}: prepare at least two, or use lr or dnn"
        )
