"""From a model and a split to one row of metrics per user."""

from __future__ import annotations

from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int

from fullrank.batch import Model
from fullrank.errors import UserError, unknown
from fullrank.evaluation.dropped import Forgetful
from fullrank.evaluation.result import Evaluated, PerUser, merge
from fullrank.evaluation.sampled import places
from fullrank.evaluation.slices import groups
from fullrank.evaluation.spec import Evaluation
from fullrank.metrics import Ranking, Table, Truth, flatten, match
from fullrank.metrics.fairness import history_popularity
from fullrank.retrieval.dial import dialled, used
from fullrank.retrieval.rank import Histories, Progress, rank
from fullrank.retrieval.settle import rank_settled

Split = Literal["validation", "test"]
TIES = {
    "full": "score descending, item id ascending",
    "sampled": "target first: place = 1 + negatives scored higher",
}


@runtime_checkable
class Counted(Protocol):
    """A catalogue whose items were counted."""

    @property
    def popularity(self) -> Int[np.ndarray, "V"]: ...


@runtime_checkable
class Held(Protocol):
    """What evaluation reads of a prepared store (`fullrank.data.pack.Store`)."""

    @property
    def items(self) -> Int[np.ndarray, "E"]: ...
    @property
    def times(self) -> Int[np.ndarray, "E"] | None: ...
    @property
    def bounds(self) -> Int[np.ndarray, "users 2"]: ...
    @property
    def catalog(self) -> Counted: ...
    @property
    def fingerprint(self) -> str: ...
    def histories(
        self, split: Split, *, without_history: bool = False
    ) -> tuple[Int[np.ndarray, "Q"], Int[np.ndarray, "Q"], Int[np.ndarray, "Q"], Int[np.ndarray, "Q"]]: ...


def evaluate(
    model: Model,
    store: Held,
    split: str,
    spec: Evaluation | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Evaluated:
    """The model's metrics on all users of a split (`validation` or `test`).

    The model must already be on `device`. Raises `UserError` where the split has no users, the store and the model
    disagree about the catalogue, or the model gives NaN.
    """
    return merge([measure(model, store, split, spec, device=device, progress=progress)])


def measure(
    model: Model,
    store: Held,
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
    popularity = store.catalog.popularity
    if len(popularity) != model.num_items:
        raise UserError(f"the model ranks {model.num_items} items but the store's catalogue has {len(popularity)}")
    users, starts, ends, target_ends, skipped = _asked(store, split, spec)
    protocol = _protocol(store, split, spec, len(users), skipped)
    protocol |= _inference(model, spec)
    protocol["unreachable"] = _unreachable(store.items, starts, ends, target_ends) if _hides(spec) else 0
    mine = slice(shard[0], None, shard[1])
    users, starts, ends, target_ends = users[mine], starts[mine], ends[mine], target_ends[mine]
    truth = Truth.of(store.items, ends, target_ends)
    histories = Histories(store.items, starts, ends, store.times, users)
    asked = Forgetful(model, spec.drop, spec.seed) if spec.drop else model
    with dialled(model, spec.reasoning):
        table, lists, steps = _table(asked, histories, truth, store, spec, device, progress)
    names = [n for n in spec.names() if n.per_user]
    values = {str(n): n(table) for n in names}
    codes = {}
    if spec.slices and len(users):
        codes = groups(ends - starts, store.bounds[users, 0] <= starts, truth, popularity)
    return PerUser(users, values, lists, codes, protocol, steps)


def _asked(store: Held, split: str, spec: Evaluation) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Users (ascending), starts, ends, target ends, and how many users were left out for want of a history."""
    if split not in get_args(Split):
        raise unknown("split", split, get_args(Split))
    users, starts, ends, target_ends = store.histories(cast(Split, split), without_history=True)
    if not len(users):
        raise UserError(f"the store has no users with a target in the split {split!r}: prepare it with another split")
    keep = (ends > starts) if spec.empty == "skip" else np.ones(len(users), dtype=bool)
    if not keep.any():
        raise UserError(f"none of the {len(users)} users of the split {split!r} has a history")
    order = np.flatnonzero(keep)[np.argsort(users[keep], kind="stable")]
    return users[order], starts[order], ends[order], target_ends[order], int(np.sum(~keep))


def _table(
    model: Model,
    histories: Histories,
    truth: Truth,
    store: Held,
    spec: Evaluation,
    device: torch.device | str,
    progress: Progress | None,
) -> tuple[Table, Int[np.ndarray, "U K"] | None, Int[np.ndarray, "U"] | None]:
    """What metrics read, the ranked ids, and where stopping is adaptive, each user's steps."""
    deepest = max(n.k for n in spec.names())
    if spec.protocol == "sampled":
        hits = places(model, histories, truth, store.catalog.popularity, spec, deepest, device, progress)
        return Table(hits, truth.counts), None, None
    ranking, steps = _ranked(model, histories, spec, deepest, device, progress)
    counts = store.catalog.popularity
    if spec.popularity == "all":
        counts = np.bincount(store.items, minlength=len(counts))
    lists = ranking.ids.astype(np.int32)
    chosen = None
    if any(n.needs_histories for n in spec.names()):
        chosen = history_popularity(histories.items, histories.starts, histories.ends, counts)
    return Table(match(lists, truth), truth.counts, lists, counts, chosen), lists, steps


def _ranked(
    model: Model,
    histories: Histories,
    spec: Evaluation,
    k: int,
    device: torch.device | str,
    progress: Progress | None,
) -> tuple[Ranking, Int[np.ndarray, "U"] | None]:
    """The lists; with `reasoning.adaptive` each user's own number of steps, and those numbers."""
    how: dict[str, Any] = {"seen": spec.seen, "batch_size": spec.batch_size, "block": spec.block, "device": device}
    dial = used(model, spec.reasoning)
    if spec.reasoning.adaptive is not None and dial is not None:
        return rank_settled(
            model, histories, k=k, length=dial["adaptive"], most=dial["steps"], patience=dial["patience"],
            progress=progress, **how,
        )  # fmt: skip
    h = histories
    return rank(model, h.items, h.starts, h.ends, k=k, times=h.times, rows=h.rows, progress=progress, **how), None


def _inference(model: Model, spec: Evaluation) -> dict[str, Any]:
    """How a model was asked that thinks or sees less; nothing for all others, whose results keep their keys."""
    found: dict[str, Any] = {}
    dial = used(model, spec.reasoning)
    if dial is not None:
        found["reasoning"] = dial
    if spec.drop:
        found["dropped"] = {"share": spec.drop, "seed": spec.seed}
    return found


def _protocol(store: Held, split: str, spec: Evaluation, users: int, skipped: int) -> dict[str, Any]:
    """Everything that a number depends on besides the model; two results are compared only where all of it agrees."""
    sampled = spec.protocol == "sampled"
    return {
        "split": split,
        "fingerprint": store.fingerprint,
        "users": users,
        "users_without_history": skipped if spec.empty == "skip" else "answered",
        "items": len(store.catalog.popularity),
        "history": "training events" if split == "validation" else "training and validation events",
        "seen": spec.seen,
        "candidates": f"{spec.negatives or 100} {spec.negatives_from or 'uniform'} negatives" if sampled else "full",
        "candidates_seed": spec.seed if sampled else None,
        "ties": TIES[spec.protocol],
        "popularity": None if sampled else f"{spec.popularity} events",
        "ks": sorted({n.k for n in spec.names()}),
        "metrics": [str(n) for n in spec.names()],
        "bootstrap": {"samples": spec.bootstrap, "level": spec.level, "seed": spec.seed, "unit": "user"},
    }


def _hides(spec: Evaluation) -> bool:
    return spec.seen == "exclude" and spec.protocol == "full"


def _unreachable(
    items: Int[np.ndarray, "E"],
    starts: Int[np.ndarray, "U"],
    ends: Int[np.ndarray, "U"],
    target_ends: Int[np.ndarray, "U"],
    chunk: int = 1 << 16,
) -> int:
    """How many targets are in their own user's history, so that excluding it makes them impossible to hit."""
    found = 0
    for low in range(0, len(starts), chunk):
        some = slice(low, low + chunk)
        truth = Truth.of(items, ends[some], target_ends[some])
        rows, seen = flatten(items, starts[some], ends[some])
        if len(truth.items) == len(truth.counts):  # one target each: no need to sort anything
            found += len(np.unique(rows[seen == truth.items[rows]]))
            continue
        width = int(max(truth.items.max(initial=0), seen.max(initial=0))) + 1
        targets = np.repeat(np.arange(len(truth.counts)), truth.counts) * width + truth.items
        found += int(np.isin(targets, rows * width + seen).sum())
    return found
