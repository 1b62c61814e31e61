"""Encode: everything that decides the codes of a catalogue."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fullrank.core.constraints import MOST_WIDTH, SeedNumber
from fullrank.core.registry import Room
from fullrank.core.spec import Spec, later
from fullrank.semantic_ids import CodesSpec
from fullrank.semantic_ids.collisions import Policy
from fullrank.semantic_ids.measure import Limits
from fullrank.semantic_ids.opq import Opq
from fullrank.semantic_ids.vectors import VectorSource
from fullrank.semantic_ids.vectors.text import TextVectors


class Encode(Spec):
    """Settings by which items become semantic ids."""

    vectors: VectorSource = TextVectors()
    """Source of item vectors: `text`, a `file` of your own, or both (`joined`)."""
    pca: int | None = Field(None, ge=1, le=MOST_WIDTH)
    """Dimensions kept, by principal components; None keeps all."""
    whiten: bool = False
    """Give every direction the same variance."""
    learner: Annotated[CodesSpec, Room("items.codes")] = Opq()
    """Learner of the codebooks."""
    collisions: Policy = "list"
    """Items with the same codes: `list` of items for a tuple, `extra_digit`, or `sinkhorn` (other last codes)."""
    fit_on: Literal["trained", "all"] = "trained"
    """Learn codebooks from items with training events, or from all. All items get codes."""
    limits: Limits = Limits()
    """Limits at which to stop instead of writing codes."""
    seed: SeedNumber = 0
    """Seed of draws: first codewords, samples."""
    collaborative: VectorSource | None = later(None)
    """Vectors of a trained recommender's items: `letter` learns from them, and the report compares neighbours."""
