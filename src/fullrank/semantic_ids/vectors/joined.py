"""Vectors of several sources side by side, such as text and what a recommender learned, for any learner of codes.

Each part is scaled to length one before it is joined (times its weight), so that none rules by its scale; an item's
vector depends on itself alone, and a new item's is made as the old ones were. A part that is not known of an item is
zeros.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from fullrank.core.constraints import MOST_ENTRIES, MOST_FACTOR
from fullrank.core.errors import UserError
from fullrank.core.log import Tell
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors import Vectors, VectorsSpec
from fullrank.semantic_ids.vectors.file import FileVectors
from fullrank.semantic_ids.vectors.text import TextVectors

Part = Annotated[TextVectors | FileVectors, Field(discriminator="kind")]


class JoinedVectors(VectorsSpec):
    """Vectors of several sources, joined."""

    kind: Literal["joined"] = "joined"
    parts: tuple[Part, ...] = Field((TextVectors(),), min_length=1, max_length=MOST_ENTRIES)
    """The sources: mappings with kind `text` or `file`."""
    weights: tuple[Annotated[float, Field(gt=0, le=MOST_FACTOR)], ...] = Field((), max_length=MOST_ENTRIES)
    """Length of each part; empty: one."""

    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        """Raises `UserError` where a part cannot be had, or there are not as many weights as parts."""
        if self.weights and len(self.weights) != len(self.parts):
            raise UserError(
                f"joined has {len(self.parts)} parts and {len(self.weights)} weights; give each part a weight, or none",
                code="weights-not-of-parts",
            )
        found = [part.read(catalog, cache, tell) for part in self.parts]
        weights = self.weights or (1.0,) * len(found)
        matrix = torch.cat([w * F.normalize(one.matrix, dim=1) for one, w in zip(found, weights, strict=True)], 1)
        known = torch.stack([one.known for one in found]).any(0)
        marks = [[one.facts.get("fingerprint"), weight] for one, weight in zip(found, weights, strict=True)]
        facts = {
            "kind": "joined", "width": matrix.shape[1], "parts": [one.facts for one in found],
            "fingerprint": hashlib.sha256(repr(marks).encode()).hexdigest(),
            "rows_of_other_items": sum(one.facts.get("rows_of_other_items", 0) for one in found),
        }  # fmt: skip
        return Vectors(matrix, known, facts)
