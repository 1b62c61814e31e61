"""Activations of a model in one pass over a sample of users (recommenders) or impressions (ranking models).

Of a recommender: its scorer, its states and the inputs of its layers, which forward hooks record
while the model runs exactly as it does when it recommends. Of a ranking model: the layer outputs
that the ranker itself captures (`models.ranking.RankerOutput`), and by hooks the inputs of its
feed-forwards per token, which lie behind a mixing's last norm and are no layer's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fullrank.analysis.relevance import Relevance
from fullrank.core.checks import check_whole
from fullrank.core.device import device_of
from fullrank.core.errors import UserError
from fullrank.core.log import Progress, untold
from fullrank.data.batch import Batch
from fullrank.data.events.store import Store
from fullrank.data.histories import EvalSet, Histories
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation import Evaluation
from fullrank.evaluation.ranking import row_batches
from fullrank.evaluation.retrieval import Split, check_split
from fullrank.inference.batches import Batching, score_batches
from fullrank.metrics import ItemCounts
from fullrank.models import Model, ReasoningStates, Scorer, States
from fullrank.models.ranking import EVERY
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.model.reading import AttentionInput, blocks_of, note_attentions, reader_of

FAIRNESS = "fair0.8@1"
"""The metric called fairness: niche items among the first recommendations."""


@dataclass(frozen=True)
class Sample:
    """Users of a split in random order, so that the first n are a sample too."""

    eval_set: EvalSet
    popularity: ItemCounts
    """Training events of each item."""

    def __len__(self) -> int:
        return len(self.eval_set)

    def first(self, count: int) -> Sample:
        """The sample of the first `count` users."""
        return Sample(self.eval_set.take(slice(count)), self.popularity)

    @property
    def users(self) -> Int[np.ndarray, "U"]:
        """Rows of the store's users."""
        return self.eval_set.users

    @property
    def histories(self) -> Histories:
        return self.eval_set.histories

    @property
    def next_items(self) -> Int[np.ndarray, "U"]:
        """The item that each user chose next: the first of their targets."""
        return self.eval_set.next_items


def sample_users(store: Store, split: str, users: int, *, seed: int = 0) -> Sample:
    """Draw `users` users of a split (all, where it has no more), by the seed and the split alone.

    Users without a history are never drawn. Raises `UserError` for an unknown split, and for one
    with fewer than two users.
    """
    check_split(split, "train")
    check_whole("users", users, 2)
    whole = store.eval_set(split)
    if len(whole) < 2:
        raise UserError(
            f"the split {split!r} of {store.path} has {len(whole)} users with a history; 2 are needed",
            code="no-users-in-split",
        )
    chosen = np.random.default_rng([seed, len(whole)]).permutation(len(whole))[:users]
    return Sample(whole.take(chosen), store.catalog.popularity)


def sample_protocol(spec: Evaluation) -> Evaluation:
    """A run's protocol over the full catalogue, reduced to its selection metric and `FAIRNESS`."""
    return Evaluation(
        metrics=(spec.selection, FAIRNESS),
        selection=spec.selection,
        seen=spec.seen,
        popularity=spec.popularity,
        slices=False,
        bootstrap=0,
        decoding=spec.decoding,
    )


class SampleStore:
    """A store of which only `users` are evaluated (`evaluation.retrieval.EvalStore`)."""

    def __init__(self, store: Store, users: Int[np.ndarray, "U"]):
        self.store, self.users = store, users
        self.items, self.bounds = store.items, store.bounds
        self.catalog, self.fingerprint = store.catalog, store.fingerprint

    def eval_set(self, split: Split, *, without_history: bool = False) -> EvalSet:
        whole = self.store.eval_set(split, without_history=without_history)
        return whole.take(np.isin(whole.users, self.users))


@dataclass(frozen=True)
class RetrievalContext:
    """Context of a diagnostic of recommenders: one model, and a sample of a split of a store."""

    model: Any
    """A `models.Model` in evaluation mode, trained or a baseline."""
    store: Store
    split: str
    sample: Sample
    evaluation: Evaluation = field(default_factory=lambda: sample_protocol(Evaluation()))
    """The run's protocol, reduced by `sample_protocol`."""
    vectors: Float[np.ndarray, "V D"] | None = None
    """Item vectors (of their texts, say) that help to tell relevant events from noise."""

    @cached_property
    def relevance(self) -> Relevance:
        """Relevance of events to the item chosen next; counted at the first use."""
        return Relevance(self.store, self.vectors)

    @property
    def targets(self) -> Int[np.ndarray, "U"] | None:
        """The next item of each user of the sample; None for the training split."""
        return None if self.split == "train" else self.sample.next_items

    def first(self, users: int) -> SampleStore:
        """The store with only the first users of the sample, as `evaluate` takes it."""
        return SampleStore(self.store, self.sample.first(users).users)


@dataclass(frozen=True)
class Activations:
    """Outputs of a recommender, and inputs of its layers, for one batch of the sample."""

    users: Int[np.ndarray, "B"]
    """Position in the sample of each row's user."""
    scorer: Scorer
    """Output of the model: user vectors and the item table, or another way to score items."""
    states: States | None = None
    """Output of the encoder; None for a model without one."""
    inputs: Batch | None = None
    """The batch that the encoder read."""
    attentions: Sequence[AttentionInput] = ()
    """Input of each block's attention that shows its weights, in order of depth."""
    module_inputs: dict[nn.Module, Tensor] = field(default_factory=dict)
    """Input of each norm and each feed-forward of the part that reads the history."""

    @property
    def reasoning(self) -> ReasoningStates | None:
        """States of the reasoner; None without one."""
        return None if self.states is None else self.states.reasoning


def activations(
    model: Model, sample: Sample, progress: Progress = untold, *, batch_size: int | None = None
) -> Iterator[Activations]:
    """Run the model on the sample, batch by batch, longest histories first.

    Use the activations of one batch before asking for the next.
    """
    with _recording(model) as record:
        for users, scorer in score_batches(model, sample.histories, Batching(batch_size, progress=progress)):
            yield Activations(
                users, scorer, record.states, record.inputs, tuple(record.attentions), dict(record.module_inputs)
            )
            record.clear()


@dataclass
class _Record:
    """Inputs and outputs that the hooks recorded of the running batch."""

    states: States | None = None
    inputs: Batch | None = None
    attentions: list[AttentionInput] = field(default_factory=list)
    module_inputs: dict[nn.Module, Tensor] = field(default_factory=dict)

    def clear(self) -> None:
        self.states, self.inputs = None, None
        self.attentions.clear()
        self.module_inputs.clear()


@contextmanager
def _recording(model: Model) -> Iterator[_Record]:
    """Put hooks on the encoder, its attentions, norms and feed-forwards; remove them at the end."""
    record, hooks = _Record(), []

    def on_encoder(module: nn.Module, arguments: tuple[Any, ...], states: Any) -> None:
        record.states, record.inputs = states, arguments[1]

    def on_input(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        # a reasoner passes a block several times: its first input counts
        record.module_inputs.setdefault(module, arguments[0])

    if isinstance(model, RecommenderModel):
        hooks.append(model.encoder.register_forward_hook(on_encoder))
        # the norms of a decoder, outside of the reader, read other positions than those of the
        # history
        reader = reader_of(model) or model.encoder
        norms = [m for m in reader.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
        feeds = [getattr(block, "feed_forward", None) for block in blocks_of(model)]
        modules = (m for m in (*norms, *feeds) if isinstance(m, nn.Module))
        hooks += [module.register_forward_pre_hook(on_input) for module in modules]
        hooks += note_attentions(model, record.attentions)
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


ROWS = 2048
"""Impressions in a batch; changes results by rounding alone."""


@dataclass(frozen=True)
class RankingActivations:
    """Outputs of the layers of a ranking model for one batch of the sample."""

    layers: Mapping[str, Tensor]
    """Name -> output [B, T, D], each of its own T and D, in order of depth; layers of width 0 are left out."""
    feed_forward_inputs: Mapping[str, Tensor]
    """Name of a feed-forward's output -> its input [B, T, D]."""


@dataclass(frozen=True)
class RankingContext:
    """Context of a diagnostic of ranking models: one model, and a sample of a split of a store."""

    model: RankingModule
    store: ImpressionStore
    split: str
    rows: Int[np.ndarray, "n"]
    """Row numbers of the sampled impressions, ascending."""


def sample_impressions(store: ImpressionStore, split: str, impressions: int, *, seed: int = 0) -> Int[np.ndarray, "n"]:
    """Draw impressions of a split (all, where it has no more), by the seed and the split alone.

    Gives ascending row numbers. Raises `UserError` for an unknown split, for one without
    impressions, and for a sample of none.
    """
    check_split(split, "train")
    check_whole("impressions", impressions, 1)
    rows = store.split(split)
    if not len(rows):
        raise UserError(
            f"the split {split!r} of {store.path} has no impressions: choose another one", code="no-rows-in-split"
        )
    order = np.random.default_rng([seed, len(rows)]).permutation(len(rows))[:impressions]
    return np.sort(rows.start + order)


def ranking_activations(
    model: RankingModule,
    store: ImpressionStore,
    rows: Int[np.ndarray, "n"],
    progress: Progress = untold,
    *,
    batch_size: int | None = None,
) -> Iterator[RankingActivations]:
    """Run the model on the impressions, batch by batch, as it predicts; its mode is restored."""
    training, device = model.training, device_of(model)
    model.eval()
    try:
        with _recording_ranker(model) as inputs:
            for batch in row_batches(store, rows, batch_size or ROWS, progress):
                with torch.inference_mode():
                    out = model.output(batch.to(device), EVERY)
                layers = {name: layer for name, layer in out.captures.items() if layer.shape[-1]}
                yield RankingActivations(layers, dict(inputs))
                inputs.clear()
    finally:
        model.train(training)


def layers_of(model: RankingModule, name: str) -> list[nn.Module]:
    """The ranker's `mixings` or `feed_forwards`; empty for a ranker without such."""
    layers = getattr(model.ranker, name, None)
    return list(layers) if isinstance(layers, nn.ModuleList) else []


@contextmanager
def _recording_ranker(model: RankingModule) -> Iterator[dict[str, Tensor]]:
    """Record the inputs of a ranker's feed-forwards, by the names of
    their outputs, inside the block."""
    inputs: dict[str, Tensor] = {}

    def record(name: str, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[name] = arguments[0]

    with ExitStack() as stack:
        for layer, module in enumerate(layers_of(model, "feed_forwards")):
            stack.enter_context(module.register_forward_pre_hook(partial(record, f"ffn_{layer}")))
        yield inputs
