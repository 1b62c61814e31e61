"""Impressions, as training sees them (`DataModule`), and their batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from fullrank.core.errors import UserError
from fullrank.data.batch import Impressions
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation.ranking import predict_rows, ranking_result, selection_value, split_rows
from fullrank.evaluation.result import PerImpression
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.experiment import Experiment
from fullrank.models.ranking.model import RankingModule
from fullrank.run import Run
from fullrank.training.cold_start.warm_start_ranking import copy_ranking_weights
from fullrank.training.distributed import ProcessRank, gather_ranks


class ImpressionLoader:
    """Batches of a store's training rows, about `size` rows each: every epoch all of them once, in a random order."""

    def __init__(self, store: ImpressionStore, size: int, seed: int, shards: int = 1):
        self.store, self.seed, self.shards = store, seed, shards
        self.rows = store.split("train")
        if not len(self.rows):
            raise UserError(
                f"the store {store.path} has no training impressions: prepare it with another split", code="empty-split"
            )
        self.by, self.total = "rows", len(self.rows)
        self.steps_per_epoch = -(-len(self.rows) // size)
        self._epoch: tuple[int, Int[np.ndarray, "N"]] | None = None

    def batch(self, k: int, shard: int = 0) -> Impressions:
        """One shard of global batch k (from 0, over all epochs)."""
        epoch, index = divmod(k, self.steps_per_epoch)
        order = self._order(epoch)
        edges = [place * len(order) // self.steps_per_epoch for place in (index, index + 1)]
        whole = order[edges[0] : edges[1]]
        mine = np.sort(whole[shard :: self.shards])  # rows of a batch have no order; the disk has
        empty_shard = len(mine) == 0
        batch = self.store.batch(whole[:1] if empty_shard else mine)
        return replace(batch, step=k, seed=self.seed, count=len(whole), empty_shard=empty_shard)

    def iterate(self, start: int, stop: int, shards: range) -> Iterator[Impressions]:
        """The given shards of batches start .. stop - 1, in order."""
        for k in range(start, stop):
            for shard in shards:
                yield self.batch(k, shard)

    def _order(self, epoch: int) -> Int[np.ndarray, "N"]:
        if self._epoch is None or self._epoch[0] != epoch:
            drawn = np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))
            self._epoch = epoch, self.rows.start + drawn
        return self._epoch[1]


@dataclass(frozen=True)
class RankingData:
    experiment: Experiment
    store: ImpressionStore

    @classmethod
    def of(cls, experiment: Experiment, store: ImpressionStore, earlier: Run | None = None) -> RankingData:
        """The encoder is the store's own, whichever run training starts from."""
        return cls(experiment, store)

    @property
    def known(self) -> FieldEncoder:
        return self.store.encoder

    @property
    def validates(self) -> bool:
        return len(self.store.split("validation")) > 0

    @property
    def _spec(self) -> RankingEvaluation:
        assert isinstance(self.experiment.evaluation, RankingEvaluation)
        return self.experiment.evaluation

    def loader(self, model: RankingModule, world: int = 1) -> ImpressionLoader:
        training = self.experiment.training
        return ImpressionLoader(self.store, training.batch_size, self.experiment.seed, training.accumulate * world)

    def warm_start(self, model: RankingModule, source: Run) -> None:
        copy_ranking_weights(model, self.store, source)

    def score(self, model: Any, device: torch.device, rank: ProcessRank) -> float:
        rows = split_rows(self.store, "validation")[rank.rank :: rank.world]
        found = predict_rows(model, self.store, rows, self._spec.batch_size, device=device)
        parts = [found.probabilities, found.labels, found.groups]
        whole = [
            None if p is None else gather_ranks(torch.from_numpy(p).double().to(device)).cpu().numpy() for p in parts
        ]
        probabilities, labels, groups = whole
        assert probabilities is not None and labels is not None
        whose = None if groups is None else groups.astype(np.int64)
        return selection_value(
            PerImpression(np.arange(len(labels)), probabilities, labels, whose), self._spec.selection
        )

    def evaluate_share(self, model: Any, share: int, device: torch.device, *, all_metrics: bool) -> None:
        rows = predict_rows(
            model, self.store, split_rows(self.store, "validation")[::share], self._spec.batch_size, device=device
        )
        spec = self._spec if all_metrics else self._spec.for_selection()
        ranking_result(rows, spec, "validation", self.store.fingerprint)

    def batch_sizes(self, batch: Impressions) -> tuple[int, int]:
        return len(batch), len(batch)

    def throughput(self, held: float, computed: float, seconds: float) -> dict[str, Any]:
        return {"rows_per_s": round(held / max(1e-9, seconds), 1)}

    def sizes(self) -> dict[str, Any]:
        return self.store.sizes | {"trained_until": self.store.trained_until}
