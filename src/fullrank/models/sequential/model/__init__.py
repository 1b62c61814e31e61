"""Recommender: items, encoder, task, loss, weighting and penalties, composed. Plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from fullrank.core.constraints import MOST_LENGTH, MOST_PARTS, Temperature, Width, once
from fullrank.core.registry import Room
from fullrank.core.spec import Spec, later
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.models import Budget, DenseScorer, Model, Queries, Scorer, Step, check_parts
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders import Encoder, EncoderSpec
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.items import ItemIndex, ItemsSpec, unit
from fullrank.models.sequential.items.event_features import AUTO, FeatureInput, FeatureReader, require_readable
from fullrank.models.sequential.items.semantic import SemanticItems, index_codes, score_by_codes
from fullrank.models.sequential.items.table import ShardedScorer, Table
from fullrank.models.sequential.items.text import Text
from fullrank.models.sequential.objectives.losses import LossSpec
from fullrank.models.sequential.objectives.losses.cross_entropy import CrossEntropy
from fullrank.models.sequential.objectives.tasks import HistoryTask, TaskSpec
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer, GenerateTask
from fullrank.models.sequential.objectives.tasks.next_item import NextItem
from fullrank.models.sequential.objectives.weightings import WeightingSpec
from fullrank.models.sequential.reasoning import Reasoner, ReasonerSpec
from fullrank.models.sequential.regularizers import Needs, PenaltySpec
from fullrank.ops.sharded_rows import RowShard
from fullrank.ops.starting_values import start_by_width


class Scoring(Spec):
    """How a state and an item vector become a score: similarity / temperature."""

    similarity: Literal["dot", "cosine"] = "dot"
    """Inner product, or that of vectors of length one."""
    temperature: Temperature = 1.0
    """Divides the similarity in training and inference."""


class Recommender(Spec):
    """A recommender trained by gradient descent."""

    kind: Literal["recommender"] = "recommender"
    dim: Width = 64
    """Width of item vectors and states."""
    max_length: int = Field(50, ge=2, le=MOST_LENGTH)
    """Longest history read, in events; older ones are dropped."""
    items: Annotated[ItemsSpec, Room("items")] = Table()
    """Item id <-> vector."""
    encoder: Annotated[EncoderSpec, Room("encoders")] = Transformer()
    """History -> states."""
    reasoner: Annotated[ReasonerSpec, Room("reasoning")] | None = None
    """Latent steps behind the history; null answers with the encoder's own state."""
    task: Annotated[TaskSpec, Room("objectives.tasks")] = NextItem()
    """Who predicts what."""
    loss: Annotated[LossSpec, Room("objectives.losses")] = CrossEntropy()
    """Scores -> one number per query."""
    scoring: Scoring = Scoring()
    """State and item vector -> score."""
    weighting: Annotated[WeightingSpec, Room("objectives.weightings")] | None = None
    """One factor per query; null counts all the same."""
    penalties: Annotated[
        tuple[Annotated[PenaltySpec, Room("regularizers")], ...],
        once("kind", lambda penalties: [p.kind_of() for p in penalties], code="penalty-repeated"),
    ] = Field((), max_length=MOST_PARTS)
    """Terms added to the loss."""
    initial: Literal["fixed", "width"] = later("fixed")
    """Standard deviation of what starts as N(0, s^2) (projections, tables, triggers): 0.02, or 0.02 sqrt(512 / dim)."""
    features: Annotated[FeatureInput | None, BeforeValidator(lambda setting: {} if setting == AUTO else setting)] = (
        later(None)
    )
    """Features that are read beside the items; `auto` reads every one that the store declares."""

    def build(self, catalog: Catalog, shard: RowShard | None = None) -> RecommenderModel:
        """The untrained model.

        With `shard`, this process's share of one whose item table several hold together.
        """
        return RecommenderModel(catalog, self, shard)

    @property
    def measured_in_bf16(self) -> bool:
        """Whether such models were measured on a CPU in bf16, as quicker and as good (docs/guide/training.md)."""
        return (
            isinstance(self.items, Table | Text)
            and isinstance(self.encoder, Transformer)
            and isinstance(self.encoder.attention, Softmax)
            and isinstance(self.task, NextItem)
            and isinstance(self.loss, CrossEntropy)
            and self.reasoner is None
            and not self.penalties
        )


class RecommenderModel(nn.Module, Model):
    """A recommender trained by gradient descent. `forward` gives the named terms whose sum is minimised."""

    def __init__(self, catalog: Catalog, spec: Recommender, shard: RowShard | None = None):
        super().__init__()
        self.num_items, self.max_length, self.dim = catalog.size, spec.max_length, spec.dim
        if shard is None:
            self.items = spec.items.build(spec.dim, catalog)
        else:
            self.items = spec.items.build_shard(spec.dim, catalog, shard)
        before = int(spec.features is not None and spec.features.user_at == "prefix")
        self.encoder: Encoder | Reasoner = spec.encoder.build(
            spec.dim, before + spec.task.positions(spec.max_length, self.items)
        )
        if spec.reasoner is not None:
            self.encoder = spec.reasoner.build(self.encoder, spec.dim, before + spec.max_length)
        self.reads_times = self.encoder.reads_times
        self.task = spec.task.build(spec.dim, spec.max_length, self.items)
        if spec.features is not None:
            self._read_features(catalog, spec, spec.features)
        self.trains_on_times = self.reads_times or self.items.needs_times
        self.reads_users = self.task.reads_users
        if spec.initial == "width":
            start_by_width(self, spec.dim)  # before penalties read the matrices
        self.loss = spec.loss.build()
        self.weighting = spec.weighting.build() if spec.weighting else None
        penalties = {p.kind_of(): p.build() for p in spec.penalties}
        if spec.features is not None:
            for penalty_spec in spec.penalties:
                require_readable("penalties", penalty_spec, penalties[penalty_spec.kind_of()])
        self.penalties = nn.ModuleDict(penalties)
        # the values of a ModuleDict are typed nn.Module; this tuple keeps Penalty for mypy
        self._penalties = tuple(penalties.values())
        self.cosine, self.temperature = spec.scoring.similarity == "cosine", spec.scoring.temperature
        task, items = (spec.task.kind_of(), self.task), (spec.items.kind_of(), self.items)
        check_parts(self, spec, (task, items, *penalties.items()))
        for penalty in self._penalties:
            penalty.read_items(catalog)
            penalty.attach(self)
        if spec.initial == "width":
            start_by_width(self.penalties, spec.dim)  # what penalties made when they were attached
        self._needs = reduce(Needs.__or__, (penalty.needs for penalty in self._penalties), Needs())
        self._first_view_only = self._needs.loss_of == "first_view"

    @property
    def features(self) -> FeatureReader | None:
        """The reader of features beside the items, where the model has one."""
        return self.task.features if isinstance(self.task, HistoryTask) else None

    @property
    def reasoner(self) -> Reasoner | None:
        """The encoder, where it reasons."""
        return self.encoder if isinstance(self.encoder, Reasoner) else None

    def _read_features(self, catalog: Catalog, spec: Recommender, features: FeatureInput) -> None:
        """Read features beside the items. Raises `UserError` where the
        task or the encoder cannot."""
        require_readable("task", spec.task, self.task)
        require_readable("encoder", spec.encoder, self.encoder)
        assert isinstance(self.task, HistoryTask)
        reader = features.build(spec.dim, catalog)
        self.task.read_features(reader)
        self.reads_features, self.reads_times = reader.names, self.reads_times or reader.reads_times

    def forward(self, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Named terms: each loss is the local sum over the global query count, so
        shards and micro-batches add up."""
        step = self.step(batch)
        views = 1 if self._first_view_only else step.batch.views
        terms = {}
        for q in step.queries:
            losses = step.records[q.name].losses
            if self.weighting is not None:
                losses = losses * self.weighting(q, step)
            # counts are of the rows as loaded, which is one view
            count = len(losses) if batch.counts is None else views * batch.counts[q.counted_as or q.name]
            terms[q.name] = q.weight * losses.sum() / max(1, count)
        return terms | {name: penalty(step) for name, penalty in self.penalties.items()}

    def step(self, batch: Batch) -> Step:
        """One step's states, queries and records."""
        items = self.items.for_one_step()
        x, inputs = self.task.training_inputs(items, batch)
        twice = any(p.needs.second_view and batch.step >= p.after_steps for p in self._penalties)
        rows, views = len(x), 2 if twice else 1
        if views > 1:
            x, inputs, batch = x.repeat(views, 1, 1), inputs.repeated(views), batch.repeated(views)
        captures = self._needs.captures()
        states = self.encoder(x, replace(inputs, captures=captures))
        own = self.task.queries(states, inputs, batch, ItemIndex(items, normalise=self.cosine))
        if self._first_view_only:
            own = tuple(q.first(rows) for q in own)
        more = [q for p in self._penalties for q in p.extra_queries(own, states)]
        queries = tuple(self._scaled(q) for q in (*own, *more))
        records = {q.name: self.loss(q, batch) for q in queries}
        return Step(self, batch, states, queries, records, captures, inputs, self._first_view_only)

    def index_items(self) -> ItemIndex:
        """The vectors that answers search, made whole: every item's (or those of codes), once for many answers.

        It is of the weights as they are now: make it anew when they change. Many
        threads may answer from one.
        """
        with torch.no_grad():
            index = ItemIndex(self.items, normalise=self.cosine)
            if self.task.generates:
                index_codes(index)
            else:
                index.own()
        return index

    def answer(self, batch: Batch, *, index: ItemIndex | None = None, budget: Budget | None = None) -> Scorer:
        """The answer to some histories. `index` is what `index_items` gave; without it the item vectors are made here.

        `budget` says how many steps and streams a reasoner takes (refused by `check_budget`
        for a model without one).
        """
        x, inputs = self.task.inference_inputs(self.items.for_one_step(), batch)
        if isinstance(self.task, GenerateTask):
            return self._generated(self.task, x, inputs, index)
        states = self.encoder(x, inputs, budget) if isinstance(self.encoder, Reasoner) else self.encoder(x, inputs)
        return self.searched(self.task.readout(states, inputs), index)

    def _generated(self, task: GenerateTask, x: Tensor, inputs: Batch, index: ItemIndex | None) -> GeneratedScorer:
        """A scorer that generates codes behind the histories, which are read here, once."""
        index = ItemIndex(self.items, normalise=self.cosine) if index is None else index
        assert isinstance(self.items, SemanticItems) and isinstance(self.encoder, Encoder)
        states, cache = self.encoder.start(x, inputs)
        start, levels = task.readout(states, inputs), index_codes(index)[0]
        return GeneratedScorer(self.encoder, task, self.items, levels, start, cache, self.temperature, self.cosine)

    def searched(
        self, vectors: Float[Tensor, "B D"] | Float[Tensor, "B K D"], index: ItemIndex | None = None
    ) -> Scorer:
        """The answer that these states give, scored as in training.

        A single vector is scored against all items, K vectors against the codes of the K levels.
        """
        index = ItemIndex(self.items, normalise=self.cosine) if index is None else index
        vectors = unit(vectors) if self.cosine else vectors
        if vectors.ndim == 2:
            own = DenseScorer(vectors, index.own(), self.temperature)
            return own if index.shard is None else ShardedScorer(own, index.shard)
        return score_by_codes(vectors / self.temperature, index)

    def similar(self, items: Int[Tensor, "B"], index: ItemIndex | None = None) -> DenseScorer:
        """How alike every item is to each of these: the cosine of their vectors."""
        vectors = unit((ItemIndex(self.items, normalise=False) if index is None else index).all())
        return DenseScorer(vectors[items], vectors)

    def _scaled(self, q: Queries) -> Queries:
        """The queries as the scoring has them: of length one under cosine, at its temperature."""
        vectors = unit(q.vectors) if self.cosine else q.vectors
        return replace(q, vectors=vectors, temperature=self.temperature * q.temperature)
