"""Ranking (CTR) models: the fields of an impression -> the logit of a click.

The room's contract: a `RankerSpec` whose ``build(fields, dim)`` gives a `Ranker`; `fields` are the `FieldInfo`s in the
order of the schema (one token each) and `dim` the width of a token.

Letters, beside those of `data/batch.py`: F fields of all kinds, E width of a field's vector, T tokens, D width of a
token, W width of a flat vector.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.impressions.fields import FieldInfo

EVERY = frozenset({"*"})
"""Captures every layer's output."""
Flops = dict[str, int | None]
"""FLOPs of one impression's forward pass by component, in the order of computing; None for one that does not say."""


class LayerOutputs(dict[str, Tensor]):
    """Outputs of layers by name, in the order in which they were made; a ranker offers all, the wanted are kept."""

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
    """Names of the layers whose outputs are captured; `EVERY` captures all."""

    def layer_outputs(self) -> LayerOutputs:
        """Where a ranker puts the outputs of its layers; the tokens themselves are `embedding`."""
        outputs = LayerOutputs(self.wanted)
        outputs("embedding", self.tokens)
        return outputs


@dataclass(frozen=True)
class RankerOutput:
    """What a ranker returns."""

    logits: Float[Tensor, "B"]
    captures: Mapping[str, Tensor] = field(default_factory=dict)
    """Those wanted, [B, T, D], in order: `embedding`, `tokens`, `mixing_0`, `ffn_0`, ...; each ranker names its own."""
    aux: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars that are added to the loss under their names (the balance of experts)."""


class Ranker(nn.Module):
    """`FieldTokens` -> `RankerOutput`."""

    def forward(self, x: FieldTokens) -> RankerOutput:
        raise NotImplementedError

    def flops(self) -> Flops:
        """What an impression costs forward (`Size` in `model.py` says what counts). Without it, runs record none."""
        return {"ranker": None}


class RankerSpec(Spec):
    """Base of every ranker."""

    @property
    def reads(self) -> frozenset[str]:
        """The parts of `FieldTokens` that it needs, `tokens`, `linear` or both; only those are made."""
        return frozenset({"tokens"})

    @abstractmethod
    def build(self, fields: Sequence[FieldInfo], dim: int) -> Ranker: ...


def require_fields_to_cross(fields: Sequence[FieldInfo], kind: str) -> None:
    """Raise `UserError` where there is nothing to interact with."""
    if len(fields) < 2:
        raise UserError(
            f"{kind} crosses fields and this store has {len(fields)}: prepare at least two, or use lr or dnn",
            code="too-few-fields",
        )


def of_linear(layer: nn.Linear, times: int = 1) -> int:
    """FLOPs of a linear layer on `times` vectors."""
    return 2 * layer.weight.numel() * times
