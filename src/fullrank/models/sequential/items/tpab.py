"""TPAB: an intrinsic vector of each item, and a vector of how popular it is at the time (Yoo et al., KDD 2025).

The time of the training events is cut into `stages` of equal length. An item's events in a stage
fall into one of `buckets`, bucket i up to n^((i + 1) / buckets) events, with n the most of any
item in any stage (exponential coarsening). With v intrinsic, p the vector of a bucket and h the
state that asks at time t,

    s(h, i, t) = h . v_i + h . p_b(i, t)

so that v need not explain what was popular when. At inference the popularity is that of the stage
to come, forecast as c + growth (c - c'), where c and c' are the item's events in the last two
stages. The penalty `tpab` adds bootstrapping.

Differs: the paper factorises a matrix, where a user has a second vector for popularity. Here a
linear map of h would take its place, and since p can absorb that map, there is none. Training
events alone are counted: the authors' forecast for the test reads the events of validation. An
encoder reads intrinsic vectors. In the code of SPRINT's authors for sequences popularity runs over
batches, one stage for all rows of a batch, and answers are intrinsic (`answers: intrinsic`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from fullrank.core.checks import known_times
from fullrank.core.constraints import Several, only_with
from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.models import Requirement
from fullrank.models.sequential.items import Items, ItemsSpec, TrainingEvents
from fullrank.ops.starting_values import small, start_small

COUNTS, STARTS = "stage_counts", "stage_starts"
"""Columns of a run's item table: an item's training events in each stage, and the second in which each stage begins."""
GROWTH = 0.2
"""Default of `TPAB.growth`."""
READER = "model.items=tpab"
"""These items as sentences name them."""


class TPAB(ItemsSpec):
    """Item vectors with a part for popularity at the time of an event (needs times in training)."""

    kind: Literal["tpab"] = "tpab"
    buckets: Several = 20
    """Vectors of popularity, K of the paper."""
    stages: Several = 8
    """Equally long stretches that the time of the training events is cut into."""
    answers: Literal["forecast", "intrinsic"] = "forecast"
    """What is searched at inference: items as popular as is forecast, or their intrinsic vectors alone."""
    growth: Annotated[float | None, only_with("answers", "forecast")] = Field(None, ge=-1, le=10)
    """Of the change over the last two stages, the share that is forecast to go on; default 0.2, 0 is the last stage."""

    def add_columns_of_events(self, catalog: Catalog, events: Callable[[], TrainingEvents]) -> Catalog:
        """The catalogue with each item's training events by stage.

        Raises `UserError` for events without times.
        """
        _, items, times = events()
        times = known_times(
            None if times is None or not len(times) else times,
            READER,
            "this store was prepared without a time column",
            "prepare it with one, or choose model.items=table",
        )
        first, duration = int(times.min()), int(times.max()) - int(times.min()) + 1
        # rounded up, so that a stage begins with its first whole second
        starts = first + -(-duration * np.arange(self.stages) // self.stages)
        stage = np.searchsorted(starts, times, side="right") - 1
        places = items.astype(np.int64) * self.stages + stage
        counts = np.bincount(places, minlength=catalog.size * self.stages).reshape(catalog.size, self.stages)
        columns = {COUNTS: counts, STARTS: np.broadcast_to(starts, counts.shape)}
        kind = pl.Array(pl.Int64, self.stages)
        return catalog.with_columns({name: pl.Series(value, dtype=kind) for name, value in columns.items()})

    def build(self, dim: int, catalog: Catalog) -> TPABItems:
        return TPABItems(dim, catalog, self)


class TPABItems(Items):
    uncounted = "what popularity adds to a score is computed by the loss, of each query and its negatives"
    needs_times = True
    requires = tuple(
        Requirement(
            holds,
            "items of the kind {part!r} add to the inner product what an item's popularity at the time of a target "
            f"says, of the target and sampled negatives: set {remedy}, or choose other items",
            code="items-need-sampled-dots",
        )
        for holds, remedy in (
            (lambda model: not model.cosine, "model.scoring.similarity=dot"),
            (lambda model: model.loss.sampled, "model.loss=bce, gbce or sampled_softmax"),
        )
    )
    stage_buckets: Tensor
    stage_starts: Tensor

    def __init__(self, dim: int, catalog: Catalog, spec: TPAB):
        super().__init__()
        self.reads_apart = spec.answers == "forecast"
        counts, starts = _stages(catalog, spec.stages)
        growth = GROWTH if spec.growth is None else spec.growth
        forecast = counts[:, -1] + growth * (counts[:, -1] - counts[:, -2])
        by_stage = bucket_of(np.column_stack([counts, forecast]), int(counts.max()), spec.buckets)
        self.register_buffer("stage_buckets", torch.as_tensor(by_stage, dtype=torch.int16))
        self.register_buffer("stage_starts", torch.as_tensor(starts))
        self.count_items(catalog.popularity)
        self.embedding = nn.Embedding(catalog.size, dim)
        self.popular = small(spec.buckets, dim)
        start_small(self)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        vectors: Tensor = self.embedding(ids)
        return vectors + self.popular[self.stage_buckets[ids, -1].long()] if self.reads_apart else vectors

    def all(self) -> Float[Tensor, "V D"]:
        return self.embed(torch.arange(self.size, device=self.popularity.device))

    def read(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        return self.embedding(ids)

    def added(
        self,
        vectors: Float[Tensor, "M D"],
        ids: Int[Tensor, "M n"],
        times: Int[Tensor, "M"] | None,
        order: Int[Tensor, "M"] | None,
    ) -> Float[Tensor, "M n"]:
        """The scores of popularity at these times, less those in `embed`; with an
        `order`, at other queries' times."""
        times = known_times(
            times,
            READER,
            "the batch or the task gives no times",
            "prepare the store with a time column and use model.task=next_item, last_item or mojito",
        )
        stage = torch.searchsorted(self.stage_starts, times.contiguous(), right=True).sub(1).clamp_min(0)
        then = self.stage_buckets[ids, stage[:, None]].long()
        by_bucket = vectors.float() @ self.popular.float().T
        term = by_bucket.gather(1, then if order is None else then[order])
        return term - by_bucket.gather(1, self.stage_buckets[ids, -1].long()) if self.reads_apart else term


def bucket_of(counts: Any, most: int, buckets: int) -> np.ndarray:
    """The bucket of each number of events: the first whose upper bound most^((i + 1) /
    buckets) it does not exceed."""
    edges = float(max(most, 1)) ** (np.arange(1, buckets) / buckets)  # the last bucket takes all beyond
    return np.asarray(np.searchsorted(edges, counts, side="left"))


def _stages(catalog: Catalog, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """[V, S] events of each item by stage, 0 of items that came later, and [S] the
    seconds in which stages begin."""
    frame = catalog.frame
    if COUNTS not in frame.columns or STARTS not in frame.columns:
        raise UserError(
            "the items have no counts by stage, which training makes of the events of a store: train with "
            "model.items=tpab on a store with times",
            code="items-without-stages",
        )
    known = frame.filter(pl.col(COUNTS).is_not_null())
    counts, starts = known[COUNTS].to_numpy(), known[STARTS][:1].to_numpy()
    if counts.ndim != 2 or counts.shape[1] != stages or starts.shape != (1, stages):
        raise UserError(
            f"the items have counts of {counts.shape[-1]} stages, and model.items.stages={stages}: give the number "
            "that they were counted with",
            code="other-stages",
        )
    whole = np.zeros((catalog.size, stages), np.int64)
    whole[known["item"].to_numpy()] = counts
    return whole, starts[0].astype(np.int64)
