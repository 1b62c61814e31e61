"""Ranking (CTR) models: the fields of an impression -> the logit of a click.

The room's contract: a `RankerSpec` whose ``build(fields, dim)`` gives a `Ranker`; `fields` are the
`FieldInfo`s in the order of the schema (one token each) and `dim` the width of a token. FLOPs are
counted on shapes, so a ranker has nothing to write for them.

Letters, beside those of `data/batch.py`: F fields of all kinds, E width of a field's vector, T
tokens, D width of a token, W width of a flat vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Impressions
from fullrank.data.impressions.schema import FieldInfo
from fullrank.models import Flops
from fullrank.models.ranking.calibration import CalibrationCurve
from fullrank.ops.model_cost import by_part, forward_flops

Fields = Sequence[FieldInfo]
"""The fields of a store, in the order of its schema."""
EVERY = frozenset({"*"})
"""As `wanted`: the output of every layer is captured."""


class LayerOutputs(dict[str, Tensor]):
    """Outputs of layers by name, in the order in which they were made; a ranker offers all, `wanted` ones are kept."""

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
    """Fields in the order of the schema; of width 0 for a ranker that does not read them."""
    linear: Float[Tensor, "B"] | None = None
    """Bias plus one weight per id or number, summed; None where the ranker does not read it."""
    wanted: frozenset[str] = frozenset()
    """Names of the layers whose outputs are captured; `EVERY` captures all."""
    contexts: tuple[Float[Tensor, "B _ E"], ...] = ()
    """Second vectors of the fields in each group of `RankerSpec.contexts`, in its order."""
    events: Float[Tensor, "B n E"] | None = None
    """The newest events of each sequence, sequence after sequence, for a ranker that reads them;
    zeros where there are fewer."""

    def layer_outputs(self) -> LayerOutputs:
        """A dict for the outputs of a ranker's layers, with the tokens themselves as `embedding`."""
        outputs = LayerOutputs(self.wanted)
        outputs("embedding", self.tokens)
        return outputs


@dataclass(frozen=True)
class RankerOutput:
    """Logits of a ranker, with captured layers and terms of the loss."""

    logits: Float[Tensor, "B"]
    captures: Mapping[str, Tensor] = field(default_factory=dict)
    """Wanted outputs of layers, [B, T, D], in order, by names of the ranker's own: `embedding`, `mixing_0`, ..."""
    aux: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars that are added to the loss under their names (the balance of experts)."""


class Ranker(nn.Module, ABC):
    """`FieldTokens` -> `RankerOutput`."""

    events: int = 0
    """Number of vectors that it reads of `FieldTokens.events`."""
    flop_parts: ClassVar[Mapping[str, str]] = {"": "ranker"}
    """The parts of `flops` by the submodules that compute them (`fullrank.ops.model_cost.by_part`)."""
    context_fields: tuple[int, ...] = ()
    """Number of fields of each of the `contexts` that it reads."""

    @abstractmethod
    def forward(self, x: FieldTokens) -> RankerOutput:
        """The logits of some impressions, and what the layers gave on the way."""

    def flops(self, fields: int, dim: int) -> Flops:
        """FLOPs of one impression's forward pass by part, with so many fields of width `dim` (`Size` in `model.py`).

        Counted on shapes. None where that fails; a ranker whose kernels torch's counter
        does not know overrides it.
        """
        rows = 2  # batch norm refuses one in training
        tokens = torch.empty(rows, fields, dim, device="meta")
        events = tokens.new_empty(rows, self.events, dim) if self.events else None
        contexts = tuple(tokens.new_empty(rows, count, dim) for count in self.context_fields)
        x = FieldTokens(tokens, tokens.new_empty(rows), contexts=contexts, events=events)
        by_module = forward_flops(self, x)
        if by_module is None:
            return {"ranker": None}
        return {part: count // rows for part, count in by_part(by_module, self.flop_parts).items()}


class RankerSpec(Spec):
    """Base of every ranker."""

    @property
    def reads(self) -> frozenset[str]:
        """The parts of `FieldTokens` that it needs, `tokens`, `linear` or both; only those are made."""
        return frozenset({"tokens"})

    @property
    def reads_events(self) -> int:
        """Number of newest events of each sequence that it reads, as `FieldTokens.events`."""
        return 0

    @property
    def contexts(self) -> tuple[tuple[str, ...], ...]:
        """Groups of fields of which it needs a second vector, each group from tables of
        its own, beside the tokens."""
        return ()

    @abstractmethod
    def build(self, fields: Fields, dim: int) -> Ranker: ...


class ClickModel(nn.Module, ABC):
    """Impressions -> click probabilities: what evaluation, prediction, cascades and services ask of a ranking model."""

    def __init__(self) -> None:
        super().__init__()
        self.calibration: CalibrationCurve | None = None
        """The curve behind the logits of a run that was calibrated; training does not know it."""

    @property
    @abstractmethod
    def parallel(self) -> list[list[int]]:
        """Groups of bags, by their numbers in a batch, in which value i of each bag is of the same event."""

    @abstractmethod
    def row_parameters(self) -> list[nn.Parameter]:
        """Tables whose gradients are sparse, updated row by row."""

    @abstractmethod
    def raw_logits(self, batch: Impressions) -> Float[Tensor, "B"]:
        """Logits before calibration."""

    def logits(self, batch: Impressions) -> Float[Tensor, "B"]:
        """Logits, calibrated where the run is; in double precision, in which large ones stay apart."""
        logits = self.raw_logits(batch).double()
        return logits if self.calibration is None else self.calibration(logits)

    def probabilities(self, batch: Impressions) -> Float[Tensor, "B"]:
        """Probabilities of a click, in double precision."""
        return torch.sigmoid(self.logits(batch))


def require_fields_to_cross(fields: Fields, kind: str) -> None:
    """Raise `UserError` where there is nothing to interact with."""
    if len(fields) < 2:
        raise UserError(
            f"{kind} crosses fields and this store has {len(fields)}: prepare at least two, or use lr or dnn",
            code="too-few-fields",
        )
