"""LightGBM: boosted decision trees on the fields of impressions (Ke et al., NIPS 2017), a baseline for rankers.

What trees read of an impression: the ids of categorical fields as categories, of which missing and
unknown are two; numbers, NaN where missing; of a bag the first id and the count, of a sequence the
newest id and the count.

Weights of a run are the model in LightGBM's own text format, as bytes of one tensor: no pickle, and
hashed like all weights. Needs the extra `lightgbm`. `training/trees.py` fits it, by these settings
of `training`: `max_epochs` (trees), `lr`, `patience` (trees without a better
`evaluation.selection`) and `keep`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.constraints import Count, Factor
from fullrank.core.errors import UserError, package, reason_line
from fullrank.core.spec import Spec
from fullrank.data.batch import Impressions
from fullrank.models.ranking import ClickModel, Fields
from fullrank.models.ranking.fused import places_of

MOST_BYTES = 1 << 28
"""Most bytes of a model's text: 256 MiB, some million leaves."""


class LightGBM(Spec):
    """Boosted trees, fitted to impressions at once."""

    kind: Literal["lightgbm"] = "lightgbm"
    objective: Literal["binary", "lambdarank"] = "binary"
    """The log loss of a click, or the order within a group (Burges 2010), whose scores are no probabilities before
    `fullrank calibrate`; it needs a group column, of requests or users with up to 10,000 impressions."""
    leaves: int = Field(63, ge=2, le=131_072)
    """Most leaves of a tree."""
    least: Count = 20
    """Fewest impressions of a leaf."""
    l2: Factor = 0.0
    """Weight of the squared values of leaves."""
    smoothing: Factor = 10.0
    """Impressions that a category's mean is drawn to the others' by."""

    def build(self, fields: Fields) -> BoostedTrees:
        return BoostedTrees(fields)


class BoostedTrees(ClickModel):
    text: Tensor
    """[n] uint8, the model as LightGBM writes it; nothing before it is fitted."""

    def __init__(self, fields: Fields):
        super().__init__()
        self.fields = tuple(fields)
        self.register_buffer("text", torch.zeros(0, dtype=torch.uint8))
        self._booster: Any = None

    @property
    def parallel(self) -> list[list[int]]:
        return []

    def row_parameters(self) -> list[nn.Parameter]:
        return []

    @property
    def categories(self) -> dict[int, int]:
        """Columns of `columns` that are ids, and how many ids each may have."""
        sizes = [self.fields[p].size for p in places_of(self.fields, "categorical")]
        start = len(sizes) + len(places_of(self.fields, "numeric"))
        several = enumerate(places_of(self.fields, "bag", "sequence"))
        return dict(enumerate(sizes)) | {start + 2 * number: self.fields[p].size for number, p in several}

    @property
    def width(self) -> int:
        """Number of columns that trees read."""
        return len(self.fields) + len(places_of(self.fields, "bag", "sequence"))

    def columns(self, batch: Impressions) -> Float[np.ndarray, "B C"]:
        """Ids of categorical fields, numbers, then an id and a count for each bag and sequence."""
        several = places_of(self.fields, "bag", "sequence")
        parts: list[Tensor] = [batch.categorical, torch.where(batch.missing, torch.nan, batch.numeric)]
        for position, bag in zip(several, batch.bags, strict=True):
            is_bag = self.fields[position].kind == "bag"
            at = torch.zeros_like(bag.lengths) if is_bag else (bag.lengths - 1).clamp_min(0)
            ids = F.pad(bag.ids, (0, 1)).gather(1, at[:, None].long())  # a bag may have no column
            parts += [torch.where(bag.lengths[:, None] > 0, ids, 0), bag.lengths[:, None]]
        return torch.cat([part.double() for part in parts], 1).cpu().numpy()

    def keep(self, text: str) -> None:
        """Take a fitted model. Raises `UserError` where it is too large to be kept."""
        self.make_room({"text": torch.empty(len(text.encode()), dtype=torch.uint8)})
        self.text = torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())

    def make_room(self, tensors: Mapping[str, Tensor]) -> None:
        """Prepare for a model of this length. Raises `UserError` where it is too large."""
        saved = tensors.get("text")
        if saved is not None and saved.ndim == 1:
            if len(saved) > MOST_BYTES:
                raise UserError(
                    f"the trees take {len(saved):,} bytes, and at most {MOST_BYTES:,} are read: fit fewer trees "
                    "(training.max_epochs) or smaller ones (model.leaves)",
                    code="model-too-large",
                )
            self.text = torch.zeros(len(saved), dtype=torch.uint8, device=self.text.device)
        self._booster = None

    @property
    def booster(self) -> Any:
        """The model, read from its text once. Raises `UserError` where LightGBM is missing or cannot read it."""
        if self._booster is None:
            lightgbm = lightgbm_package()
            try:
                booster = lightgbm.Booster(model_str=self.text.cpu().numpy().tobytes().decode())
                features = booster.num_feature()
            except (lightgbm.basic.LightGBMError, ValueError) as error:
                raise UserError(
                    f"LightGBM cannot read the trees ({reason_line(error)}); the run is damaged", code="file-damaged"
                ) from None
            if features != self.width:
                raise UserError(
                    f"the trees read {features:,} columns, and the fields have {self.width:,}; the run is damaged",
                    code="weights-differ-from-spec",
                )
            self._booster = booster
        return self._booster

    def raw_logits(self, batch: Impressions) -> Float[Tensor, "B"]:
        logits = self.booster.predict(self.columns(batch), raw_score=True, num_threads=torch.get_num_threads())
        return torch.from_numpy(np.asarray(logits, np.float64)).to(batch.categorical.device)


def lightgbm_package() -> Any:
    """LightGBM, imported. Raises `UserError` where it is not installed."""
    return package("lightgbm", "lightgbm", "a model of kind lightgbm")
