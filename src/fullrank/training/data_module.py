"""What training needs of the data: one `DataModule` for each problem, in `retrieval_data.py` and `ranking_data.py`.

Everything else of this room (steps, checkpoints, log, patience) is one for both problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fullrank.core.errors import UserError
from fullrank.core.registry import Problem
from fullrank.data.batch import Batch, Impressions
from fullrank.data.impressions.store import AnyStore
from fullrank.experiment import Experiment
from fullrank.run import CatalogOrEncoder, Run
from fullrank.training.distributed import ProcessRank
from fullrank.training.ranking_data import RankingData
from fullrank.training.retrieval_data import RetrievalData

AnyBatch = Batch | Impressions


@runtime_checkable
class Batches(Protocol):
    """Training batches; batch k is a pure function of (seed, k)."""

    steps_per_epoch: int
    shards: int
    total: int
    """Events or rows in an epoch, in the unit `by` (`tokens` are events)."""

    @property
    def by(self) -> str: ...

    def batch(self, k: int, shard: int = 0) -> AnyBatch: ...
    def iterate(self, start: int, stop: int, shards: range) -> Iterator[AnyBatch]: ...


@runtime_checkable
class DataModule(Protocol):
    """A store, as training sees it."""

    @property
    def store(self) -> AnyStore: ...
    @property
    def known(self) -> CatalogOrEncoder:
        """What models are built on, kept in the run folder."""
        ...

    @property
    def validates(self) -> bool:
        """Whether there is something to validate on."""
        ...

    def loader(self, model: Any, world: int = 1) -> Batches:
        """The batches, in shards for every process and micro-batch."""
        ...

    def warm_start(self, model: Any, source: Run) -> None:
        """Fill a model from an earlier run."""
        ...

    def score(self, model: Any, device: torch.device, rank: ProcessRank) -> float:
        """The selection metric on the validation split, over all processes."""
        ...

    def evaluate_share(self, model: Any, share: int, device: torch.device, *, all_metrics: bool) -> None:
        """Evaluate one in `share` of the validation split, for its cost alone."""
        ...

    def batch_sizes(self, batch: Any) -> tuple[int, int]:
        """What a batch holds, and the places computed for it (with padding)."""
        ...

    def throughput(self, held: float, computed: float, seconds: float) -> dict[str, Any]:
        """An epoch's throughput, from the sums of `batch_sizes`."""
        ...

    def sizes(self) -> dict[str, Any]:
        """The sizes of the data, and of impressions when training ends, for the manifest."""
        ...


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


def data_manifest(data: DataModule) -> dict[str, Any]:
    """The data in a run's manifest."""
    store = data.store
    location = {"path": str(Path(store.path).resolve()), "split_fingerprint": store.fingerprint}
    whole = getattr(store, "part_of", None)
    return {**location, **({} if whole is None else {"part_of": whole}), **data.sizes()}
