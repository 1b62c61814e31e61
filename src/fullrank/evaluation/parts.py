"""Evaluation in parts, on any engine: the rows of neighbouring users by each worker, merged to those of one process.

A worker opens the model and the store once, whatever the number of parts it gets. Metrics are means
over the rows of all users in one order, so they differ from those of one process only where a list
does: scores are equal to float rounding, since other users share a batch, and to the bit for one
number of parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fullrank.core.files import JsonObject
from fullrank.core.log import Progress, untold
from fullrank.data.events.store import Store
from fullrank.data.histories import EvalSet
from fullrank.data.sent_store import StoreAt
from fullrank.evaluation.result import EvaluationResult, PerUser, merge
from fullrank.evaluation.retrieval import measure_users, users_and_protocol
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.history_parts import count_parts, stretch
from fullrank.inference.list_parts import ModelSource
from fullrank.models import Model
from fullrank.parallel import Runner

PART_USERS = 1 << 13
"""Users of a part where the caller does not say how many parts there are."""


@dataclass(frozen=True)
class MeasureTask:
    """The rows of a part."""

    model: ModelSource
    store: StoreAt
    split: str
    spec: Evaluation
    parts: int

    def __call__(self, number: int) -> PerUser:
        predictor = self.model.open()
        store, users, protocol = _measured(self.model, self.store, self.split, self.spec)
        low, high = stretch(number, self.parts, len(users))
        return measure_users(predictor.model, store, users.take(np.arange(low, high)), protocol, self.spec)


def evaluate_parts(
    model: ModelSource,
    opened: Model,
    store: Store,
    split: str,
    spec: Evaluation,
    *,
    runner: Runner,
    parts: int | None,
    progress: Progress = untold,
) -> EvaluationResult:
    """Evaluate as `retrieval.evaluate` does, by workers that open the model. It raises as that does, before they begin.

    `opened` is the same model in this process.

    `parts` stretches of users, or as many as `PART_USERS` asks for. `progress` is called with
    (users done, users in all).
    """
    users, _ = users_and_protocol(opened, store, split, spec)
    count, shards = count_parts(parts, len(users), PART_USERS), []
    task = MeasureTask(model.sent(runner), StoreAt.of(store), split, spec, count)
    for _, rows in runner.results(task, range(count)):
        shards.append(rows)
        progress(sum(len(shard.users) for shard in shards), len(users))
    return merge(shards)


@lru_cache(maxsize=1)
def _measured(model: ModelSource, there: StoreAt, split: str, spec: Evaluation) -> tuple[Store, EvalSet, JsonObject]:
    """The store, the users of the split and the protocol, made once by a process
    that has several parts of them."""
    store: Any = there.open()
    return store, *users_and_protocol(model.open().model, store, split, spec)
