"""Histories of users, as training sees them (`DataModule`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fullrank.core.checks import known_times
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.evaluation import measure
from fullrank.evaluation.statistics import summarise
from fullrank.experiment import Experiment
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.run import Run
from fullrank.training.cold_start.warm_start import copy_weights
from fullrank.training.distributed import ProcessRank, sum_over_ranks


@dataclass(frozen=True)
class RetrievalData:
    experiment: Experiment
    store: Store
    known: Catalog
    """The store's items, with what the model's items add to them."""

    @classmethod
    def of(cls, experiment: Experiment, store: Store, earlier: Run | None = None) -> RetrievalData:
        """`earlier` is the run that training starts from, or this very run where it goes on.

        Raises `UserError` where the model's items read what cannot be had (`ItemsSpec.add_columns`).
        """
        if not isinstance(experiment.model, Recommender):
            return cls(experiment, store, store.catalog)
        items = experiment.model.items
        known = items.add_columns_of_events(store.catalog, store.trained)
        if earlier is None:
            return cls(experiment, store, items.add_columns(known))
        return cls(experiment, store, items.add_columns_of_run(known, earlier.catalog))

    @property
    def validates(self) -> bool:
        return len(self.store.eval_set("validation")) > 0

    def loader(self, model: RecommenderModel, world: int = 1) -> Loader:
        if model.trains_on_times:
            known_times(
                self.store.times, "this model", f"the store {self.store.path} was prepared without a time column",
                "prepare it with one, or choose a model that reads none (hstu: "
                "model.encoder.attention.rel_bias=positions)",
            )  # fmt: skip
        training = self.experiment.training
        return Loader(
            self.store,
            model.task.segments,
            by=training.batch_by,
            size=training.batch_size,
            seed=self.experiment.seed,
            shards=training.accumulate * world,
            counts=model.task.counts,
            times=model.trains_on_times,
            users=model.reads_users,
        )

    def warm_start(self, model: RecommenderModel, source: Run) -> None:
        copy_weights(model, self.known, source)

    def score(self, model: Any, device: torch.device, rank: ProcessRank) -> float:
        spec = self.experiment.lists.for_selection()
        if model.items.shard is not None:  # all processes rank the same users together, each among its own items
            found = measure(model, self.store, "validation", spec, device=device)
            return float(torch.as_tensor(found.values[spec.selection], dtype=torch.float64).mean())
        found = measure(model, self.store, "validation", spec, shard=(rank.rank, rank.world), device=device)
        values = torch.as_tensor(found.values[spec.selection], dtype=torch.float64)
        total = sum_over_ranks(values.sum().to(device))
        return total / sum_over_ranks(torch.tensor(float(len(values)), dtype=torch.float64, device=device))

    def evaluate_share(self, model: Any, share: int, device: torch.device, *, all_metrics: bool) -> None:
        spec = self.experiment.lists if all_metrics else self.experiment.lists.for_selection()
        rows = measure(model, self.store, "validation", spec, shard=(0, share), device=device)
        if len(rows.users) > 1:
            items = len(self.store.catalog.popularity)
            summarise(rows.values, rows.lists, spec.names(), items=items, samples=spec.bootstrap, seed=0)

    def batch_sizes(self, batch: Batch) -> tuple[int, int]:
        return int(batch.lengths.sum()), batch.items.numel()

    def throughput(self, held: float, computed: float, seconds: float) -> dict[str, Any]:
        pace = round(held / max(1e-9, seconds), 1)
        return {"tokens_per_s": pace, "padding_share": round(1 - held / max(1, computed), 4)}

    def sizes(self) -> dict[str, Any]:
        return self.store.sizes
