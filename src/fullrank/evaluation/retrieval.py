"""From a model and a split to one row of metrics per user."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int

from fullrank.core.errors import UserError
from fullrank.core.progress import Progress
from fullrank.data.batch import Model
from fullrank.data.histories import Histories
from fullrank.evaluation.eval_users import Asked, EvalStore, Split, asked
from fullrank.evaluation.event_dropout import EventDropout
from fullrank.evaluation.result import EvaluationResult, PerUser, merge
from fullrank.evaluation.sampled import places
from fullrank.evaluation.sampled_metrics import sampled_beside, told
from fullrank.evaluation.slices import groups
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.rank import rank
from fullrank.metrics import MetricInputs, Ranking, match
from fullrank.metrics.exposure import history_popularity

__all__ = ["EvalStore", "Split", "evaluate", "measure", "of_lists", "ranked"]


def evaluate(
    model: Model,
    store: EvalStore,
    split: str,
    spec: Evaluation | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> EvaluationResult:
    """The model's metrics on all users of a split (`validation` or `test`).

    The model must already be on `device`. Raises `UserError` where the split has no users, the store and the model
    disagree about the catalogue, or the model gives NaN.
    """
    return merge([measure(model, store, split, spec, device=device, progress=progress)])


def measure(
    model: Model,
    store: EvalStore,
    split: str,
    spec: Evaluation | None = None,
    *,
    shard: tuple[int, int] = (0, 1),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> PerUser:
    """The rows of one shard (rank, world): users rank, rank + world, ... of the split. See `merge`."""
    spec = spec or Evaluation()
    if not 0 <= shard[0] < shard[1]:
        raise UserError(f"a shard is (rank, world) with 0 <= rank < world, not {shard}")
    mine = asked(model, store, split, spec).part(slice(shard[0], None, shard[1]))
    teller = EventDropout(model, spec.drop, spec.seed) if spec.drop else model
    deepest = max(n.k for n in spec.names())
    if spec.protocol == "sampled":
        hits = places(teller, mine.histories, mine.truth, store.catalog.popularity, spec, deepest, device, progress)
        return _rows(mine, store, spec, MetricInputs(hits, mine.truth.lengths))
    ranking = ranked(teller, mine.histories, spec, deepest, device, progress)
    rows = of_lists(mine, store, spec, ranking.ids.astype(np.int32), ranking.steps)
    if spec.sampled is None:
        return rows
    beside = sampled_beside(teller, mine.histories, mine.truth, spec, device, progress)
    return replace(rows, sampled=beside, protocol=rows.protocol | told(spec, model.num_items))


def of_lists(
    mine: Asked,
    store: EvalStore,
    spec: Evaluation,
    lists: Int[np.ndarray, "U K"],
    steps: Int[np.ndarray, "U"] | None = None,
) -> PerUser:
    """The rows of users whose ranked item ids are given (-1: an empty place), whoever ranked them."""
    counts = store.catalog.popularity
    if spec.popularity == "all":
        counts = np.bincount(store.items, minlength=len(counts))
    chosen = None
    if any(n.needs_histories for n in spec.names()):
        chosen = history_popularity(mine.histories.items, counts)
    table = MetricInputs(match(lists, mine.truth), mine.truth.lengths, lists, counts, chosen)
    return _rows(mine, store, spec, table, steps)


def _rows(
    mine: Asked,
    store: EvalStore,
    spec: Evaluation,
    table: MetricInputs,
    steps: Int[np.ndarray, "U"] | None = None,
) -> PerUser:
    values = {str(n): n(table) for n in spec.names() if n.per_user}
    codes = {}
    if spec.slices and len(mine.users):
        known = mine.histories.items
        fresh = store.bounds[mine.users, 0] <= known.starts
        codes = groups(known.lengths, fresh, mine.truth, store.catalog.popularity)
    return PerUser(mine.users, values, table.ids, codes, mine.protocol, steps)


def ranked(
    model: Model,
    histories: Histories,
    spec: Evaluation,
    k: int,
    device: torch.device | str,
    progress: Progress | None,
) -> Ranking:
    """The lists under the spec's seen policy, budget and decoding."""
    return rank(
        model, histories, k=k, seen=spec.seen, batch_size=spec.batch_size, block=spec.block, device=device,
        progress=progress, decoding=spec.decoding, budget=spec.reasoning,
    )  # fmt: skip
