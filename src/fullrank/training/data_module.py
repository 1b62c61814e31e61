"""A store as training sees it: one data module for histories of users (retrieval), one for impressions (ranking).

Everything else of this room (steps, checkpoints, log, patience) is one for both problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullrank.core.checks import known_times
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.registry import Problem
from fullrank.data.batch import Batch, Impressions
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.loader import Batches, Loader
from fullrank.data.events.store import Store
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.store import AnyStore, ImpressionStore
from fullrank.evaluation import measure
from fullrank.evaluation.ranking import predict_rows, ranking_result, selection_value, split_rows
from fullrank.evaluation.result import PerImpression
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.evaluation.statistics import summarise
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.run import Run
from fullrank.run.experiment import Experiment
from fullrank.training.distributed import ProcessRank, gather_ranks, sum_over_ranks
from fullrank.training.warm_start import copy_ranking_weights, copy_weights

AnyBatch = Batch | Impressions


def data_manifest(data: DataModule) -> JsonObject:
    """The data in a run's manifest."""
    store = data.store
    location = {"path": str(Path(store.path).resolve()), "split_fingerprint": store.fingerprint}
    whole = getattr(store, "part_of", None)
    return {**location, **({} if whole is None else {"part_of": whole}), **data.sizes()}


@dataclass(frozen=True)
class RetrievalData:
    """Histories of users, as training sees them."""

    experiment: Experiment
    store: Store
    known: Catalog
    """The catalogue that models are built on and the run folder keeps: the store's, with columns that items add."""

    @classmethod
    def of(cls, experiment: Experiment, store: Store, earlier: Run | None = None) -> RetrievalData:
        """`earlier` is the run that training starts from, or this very run where it goes on.

        Raises `UserError` where the model's items read what cannot be had
        (`ItemsSpec.add_columns`).
        """
        if not isinstance(experiment.model, Recommender):
            return cls(experiment, store, store.catalog)
        items = experiment.model.items
        known = items.add_columns_of_events(store.catalog, store.trained)
        if (features := experiment.model.features) is not None:
            known = features.add_columns_of_events(known, store.trained)
        if earlier is None:
            return cls(experiment, store, items.add_columns(known))
        return cls(experiment, store, items.add_columns_of_run(known, earlier.catalog))

    @cached_property
    def validates(self) -> bool:
        """Whether there is something to validate on."""
        users, targets = self.store.eval_set("validation"), self.experiment.lists.targets
        return len(users if targets is None else targets.of_users(users, self.store.features)) > 0

    def loader(self, model: Any, world: int = 1) -> Loader:
        """The batches, in shards for every process and micro-batch."""
        if model.trains_on_times:
            lacking = f"the store {self.store.path} was prepared without a time column"
            remedy = "choose a model that reads none (hstu: model.encoder.attention.rel_bias=positions)"
            known_times(self.store.times, "this model", lacking, f"prepare it with one, or {remedy}")
        training, targets = self.experiment.training, self.experiment.lists.targets
        segments, wanted = model.task.segments, None
        if targets is not None and targets.values:
            if not model.task.chooses_targets:
                raise UserError(
                    "evaluation.targets names types, and this task predicts every event: set model.task=next_item or "
                    "last_item, or name types where it is evaluated alone (fullrank evaluate RUN --set targets=...)",
                    code="task-predicts-all",
                )
            wanted = targets.in_training(self.store)
            segments = partial(segments, wanted=wanted)
        return Loader(
            self.store,
            segments,
            by=training.batch_by,
            size=training.batch_size,
            seed=self.experiment.seed,
            shards=training.accumulate * world,
            counts=model.task.counts,
            times=model.trains_on_times,
            users=model.reads_users,
            features=model.reads_features,
            wanted=wanted,
        )

    def warm_start(self, model: RecommenderModel, source: Run) -> None:
        """Fill a model from an earlier run."""
        copy_weights(model, self.known, source)

    def score(self, model: Any, device: torch.device, rank: ProcessRank) -> float:
        """The selection metric on the validation split, over all processes."""
        spec = self.experiment.lists.for_selection()
        if model.items.shard is not None:  # all processes rank the same users together, each among its own items
            rows = measure(model, self.store, "validation", spec)
            return float(torch.as_tensor(rows.values[spec.selection], dtype=torch.float64).mean())
        rows = measure(model, self.store, "validation", spec, shard=(rank.rank, rank.world))
        values = torch.as_tensor(rows.values[spec.selection], dtype=torch.float64)
        total = sum_over_ranks(values.sum().to(device))
        return total / sum_over_ranks(torch.tensor(float(len(values)), dtype=torch.float64, device=device))

    def evaluate_share(self, model: Any, share: int, *, all_metrics: bool) -> None:
        """Evaluate one in `share` of the validation split, for its cost alone."""
        spec = self.experiment.lists if all_metrics else self.experiment.lists.for_selection()
        rows = measure(model, self.store, "validation", spec, shard=(0, share))
        if len(rows.users) > 1:
            items = len(self.store.catalog.popularity)
            summarise(rows.values, rows.lists, spec.names(), items=items, samples=spec.bootstrap, seed=0)

    def batch_sizes(self, batch: Any) -> tuple[int, int]:
        """Events of a batch, and the positions computed for it (with padding)."""
        return int(batch.lengths.sum()), batch.items.numel()

    def throughput(self, held: float, computed: float, seconds: float) -> JsonObject:
        """An epoch's throughput, from the sums of `batch_sizes`."""
        pace = round(held / max(1e-9, seconds), 1)
        return {"tokens_per_s": pace, "padding_share": round(1 - held / max(1, computed), 4)}

    def sizes(self) -> JsonObject:
        """The sizes of the data, and of impressions when training ends, for the manifest."""
        return self.store.sizes


class ImpressionLoader(Batches):
    """Batches of a store's training rows, about `size` rows each: every epoch all of them once, in a random order."""

    by = "rows"

    def __init__(self, store: ImpressionStore, size: int, seed: int, shards: int = 1):
        self.store, self.seed, self.shards = store, seed, shards
        self.rows = store.split("train")
        if not len(self.rows):
            raise UserError(
                f"the store {store.path} has no training impressions: prepare it with another split", code="empty-split"
            )
        self.total = len(self.rows)
        self.steps_per_epoch = -(-self.total // size)
        draw = np.random.default_rng
        self._order = lru_cache(1)(lambda epoch: self.rows.start + draw([seed, epoch]).permutation(self.total))

    def batch(self, k: int, shard: int = 0) -> Impressions:
        epoch, index = divmod(k, self.steps_per_epoch)
        order = self._order(epoch)
        edges = [part * len(order) // self.steps_per_epoch for part in (index, index + 1)]
        whole = order[edges[0] : edges[1]]
        mine = np.sort(whole[shard :: self.shards])  # rows of a batch have no order; the disk has
        empty_shard = len(mine) == 0
        batch = self.store.batch(whole[:1] if empty_shard else mine)
        return replace(batch, step=k, seed=self.seed, count=len(whole), empty_shard=empty_shard)


@dataclass(frozen=True)
class RankingData:
    """Impressions, as training sees them."""

    experiment: Experiment
    store: ImpressionStore

    @classmethod
    def of(cls, experiment: Experiment, store: ImpressionStore, earlier: Run | None = None) -> RankingData:
        """The encoder is the store's own, whichever run training starts from."""
        return cls(experiment, store)

    @property
    def known(self) -> FieldEncoder:
        return self.store.encoder

    @cached_property
    def validates(self) -> bool:
        return len(self.store.split("validation")) > 0

    @property
    def _spec(self) -> RankingEvaluation:
        assert isinstance(self.experiment.evaluation, RankingEvaluation)
        return self.experiment.evaluation

    def loader(self, model: Any, world: int = 1) -> ImpressionLoader:
        training = self.experiment.training
        return ImpressionLoader(self.store, training.batch_size, self.experiment.seed, training.accumulate * world)

    def warm_start(self, model: RankingModule, source: Run) -> None:
        copy_ranking_weights(model, self.store, source)

    def score(self, model: Any, device: torch.device, rank: ProcessRank) -> float:
        rows = split_rows(self.store, "validation")[rank.rank :: rank.world]
        predicted = predict_rows(model, self.store, rows, self._spec.batch_size)
        probabilities, labels, groups = (
            None if part is None else gather_ranks(torch.from_numpy(part).double().to(device)).cpu().numpy()
            for part in (predicted.probabilities, predicted.labels, predicted.groups)
        )
        assert probabilities is not None and labels is not None
        groups = None if groups is None else groups.astype(np.int64)
        everything = PerImpression(np.arange(len(labels)), probabilities, labels, groups)
        return selection_value(everything, self._spec.selection)

    def evaluate_share(self, model: Any, share: int, *, all_metrics: bool) -> None:
        rows = predict_rows(model, self.store, split_rows(self.store, "validation")[::share], self._spec.batch_size)
        spec = self._spec if all_metrics else self._spec.for_selection()
        ranking_result(rows, spec, "validation", self.store.fingerprint)

    def batch_sizes(self, batch: Any) -> tuple[int, int]:
        return len(batch), len(batch)

    def throughput(self, held: float, computed: float, seconds: float) -> JsonObject:
        return {"rows_per_s": round(held / max(1e-9, seconds), 1)}

    def sizes(self) -> JsonObject:
        return self.store.sizes | {"trained_until": self.store.trained_until}


DataModule = RetrievalData | RankingData
"""A store, as training sees it: both have the same methods, which the first explains."""
DATA_MODULES: Mapping[Problem, Callable[[Experiment, Any, Run | None], DataModule]] = {
    "retrieval": RetrievalData.of,
    "ranking": RankingData.of,
}

_WRONG_STORE: Mapping[Problem, str] = {
    "retrieval": (
        "{recipe} recommends items from histories and {store} holds impressions: choose a ranking model "
        "(`fullrank list rankers`), or a store that `fullrank prepare` wrote"
    ),
    "ranking": (
        "{recipe} predicts clicks and {store} holds histories: choose a store that `fullrank prepare-impressions` "
        "wrote, or a recommender (`fullrank list recipes`)"
    ),
}


def data_module_of(experiment: Experiment, store: AnyStore, earlier: Run | None = None) -> DataModule:
    """The store as this experiment trains on it, from the weights of an `earlier` run where one is given.

    Raises `UserError` where it is for another problem.
    """
    if store.problem != experiment.problem:
        raise UserError(
            _WRONG_STORE[experiment.problem].format(recipe=experiment.recipe, store=store.path),
            code="store-of-other-problem",
        )
    return DATA_MODULES[experiment.problem](experiment, store, earlier)
