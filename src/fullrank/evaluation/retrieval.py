"""Evaluation of a recommender: the users of a split, their ranked lists, and one row of metrics per user.

`evaluate` is `merge(measure(...))`: `measure` takes the users of one shard and gives their rows,
`merge` (`result.py`) puts the rows of all shards together into means, errors and intervals. The
protocol, a plain dictionary, says everything that a number depends on besides the model; two
results are compared only where all of it agrees.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Int

from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject
from fullrank.core.log import Progress, untold
from fullrank.core.memory import require_memory
from fullrank.core.parted import Flat, occurrences
from fullrank.data.features import NO_TIME, HistoryFeatures
from fullrank.data.histories import EvalSet, Histories
from fullrank.evaluation.adjusted import EventDropout, PopularityDiscount
from fullrank.evaluation.result import EvaluationResult, PerUser, merge
from fullrank.evaluation.sampled import block_of, sampled_hits, shared_negative_metrics, shared_negative_protocol
from fullrank.evaluation.spec import Evaluation
from fullrank.evaluation.statistics import slice_codes
from fullrank.evaluation.summary import UNREAD
from fullrank.inference.batches import Batching, score_batches
from fullrank.inference.features import Reads
from fullrank.inference.recommend import rank
from fullrank.inference.search import Decoding
from fullrank.metrics import ItemCounts, MetricInputs, RankedIds, RankedLists, match
from fullrank.metrics.lists import history_popularity
from fullrank.models import Model, described

PLACE_BYTES = 40
"""Memory of a place in a list while metrics are computed: item, score, hit, and what a metric sums over it."""
Split = Literal["validation", "test"]
TIES = {
    "full": "score descending, item id ascending",
    "sampled": "target first: place = 1 + negatives scored higher",
}


@runtime_checkable
class CountedCatalog(Protocol):
    """A catalogue whose items were counted."""

    @property
    def popularity(self) -> ItemCounts: ...


@runtime_checkable
class EvalStore(Protocol):
    """The members of a prepared store (`fullrank.data.events.store.Store`) that evaluation reads."""

    @property
    def items(self) -> Int[Flat, "E"]: ...
    @property
    def bounds(self) -> Int[np.ndarray, "users 2"]: ...
    @property
    def catalog(self) -> CountedCatalog: ...
    @property
    def fingerprint(self) -> str: ...
    def eval_set(self, split: Split, *, without_history: bool = False) -> EvalSet: ...


def evaluate(
    model: Model,
    store: EvalStore,
    split: str,
    spec: Evaluation = Evaluation(),
    *,
    progress: Progress = untold,
) -> EvaluationResult:
    """The model's metrics on all users of a split (`validation` or `test`).

    Raises `UserError` where the split has no users, the store and the model disagree about the
    catalogue, or the model gives NaN.
    """
    return merge([measure(model, store, split, spec, progress=progress)])


def measure(
    model: Model,
    store: EvalStore,
    split: str,
    spec: Evaluation = Evaluation(),
    *,
    shard: tuple[int, int] = (0, 1),
    progress: Progress = untold,
) -> PerUser:
    """The rows of one shard (rank, world): users rank, rank + world, ... of the split. See `merge`."""
    if not 0 <= shard[0] < shard[1]:
        raise UserError(f"a shard is (rank, world) with 0 <= rank < world, not {shard}", code="invalid-shard")
    everybody, protocol = users_and_protocol(model, store, split, spec)
    users = everybody.take(slice(shard[0], None, shard[1]))
    return measure_users(model, store, users, protocol, spec, progress=progress)


def measure_users(
    model: Model,
    store: EvalStore,
    users: EvalSet,
    protocol: JsonObject,
    spec: Evaluation,
    *,
    progress: Progress = untold,
) -> PerUser:
    """The rows of `users`, who are some of those that `users_and_protocol` gave."""
    model, longest = evaluated_model(model, store, spec), longest_list(spec, model.num_items)
    require_memory(
        PLACE_BYTES * len(users) * longest,
        f"the metrics of {len(users):,} users with lists of {longest:,} items",
        "lower ks and the lengths in metrics",
    )
    how = Batching(spec.batch_size, spec.block, progress)
    blocks = replace(how, block=block_of(spec, model.num_items))
    scored = score_batches(model, users.histories, blocks, budget=spec.reasoning)
    if spec.protocol == "sampled":
        hits = sampled_hits(scored, users, store.catalog.popularity, spec)
        return _rows(users, protocol, store, spec, MetricInputs(hits, users.truth.lengths))
    ranking = ranked(model, users.histories, spec, longest, how)
    rows = rows_of_lists(users, protocol, store, spec, ranking.ids.astype(np.int32), ranking.steps)
    if spec.sampled is None:
        return rows
    sampled = shared_negative_metrics(scored, users, spec)
    return replace(rows, sampled=sampled, protocol=protocol | shared_negative_protocol(spec, model.num_items))


def users_and_protocol(
    model: Model | None, store: EvalStore, split: str, spec: Evaluation
) -> tuple[EvalSet, JsonObject]:
    """All users of a split by ascending row, and the protocol; without a model, that of lists made elsewhere.

    Raises `UserError` where there are none, or where store and model disagree about items.
    """
    popularity = store.catalog.popularity
    if model is not None and len(popularity) != model.num_items:
        raise UserError(
            f"the model ranks {model.num_items} items but the store's catalogue has {len(popularity)}: evaluate on the "
            "store that it was trained on",
            code="catalogue-size-differs",
        )
    if spec.diversity_by is not None:  # an unknown column is refused before minutes are spent
        item_categories(store.catalog, spec.diversity_by)
    users, skipped, of_types = _users(store, split, spec)
    protocol = _protocol(store, split, spec, len(users), skipped) | of_types
    if model is not None:
        protocol |= _inference(model, spec) | features_read(model, store.catalog, users.histories.features)
    if spec.diversity_by is not None:
        protocol["diversity_by"] = spec.diversity_by
    protocol["targets"] = len(users.truth.flat())
    protocol["unreachable"] = users.repeated_targets() if spec.hides_seen else 0
    return users, protocol


def evaluated_model(model: Model, store: EvalStore, spec: Evaluation) -> Model:
    """The model as the spec has it measured.

    It may read each history without some of its events (`drop`), and have its scores lowered
    by popularity (`popularity_discount`).
    """
    if spec.drop:
        model = EventDropout(model, spec.drop, spec.seed)
    if spec.popularity_discount:
        model = PopularityDiscount(model, store.catalog.popularity, spec.popularity_discount)
    return model


def check_split(split: str, *more: str) -> Any:
    """The split. Raises `UserError` for a name that is no split, nor one of `more`."""
    allowed = (*get_args(Split), *more)
    if split not in allowed:
        raise unknown("split", split, allowed)
    return split


def longest_list(spec: Evaluation, items: int) -> int:
    """The length of the lists that all metrics of a spec can be read from: none is longer than the catalogue."""
    return min(max(n.k for n in spec.names()), items)


def ranked(model: Model, histories: Histories, spec: Evaluation, k: int, how: Batching) -> RankedLists:
    """The lists under the spec's seen policy, budget and decoding."""
    return rank(model, histories, k=k, seen=spec.seen, search=spec.decoding, budget=spec.reasoning, how=how)


def rows_of_lists(
    users: EvalSet,
    protocol: JsonObject,
    store: EvalStore,
    spec: Evaluation,
    lists: RankedIds,
    steps: Int[np.ndarray, "U"] | None = None,
) -> PerUser:
    """The rows of users with ranked item ids (-1: an empty place), of a model or made elsewhere."""
    counts = store.catalog.popularity
    if spec.popularity == "all":
        counts = occurrences(store.items, len(counts))
    histories, bases = users.histories.items, {name.base for name in spec.names()}
    chosen = history_popularity(histories, counts) if "lift" in bases else None
    repeats = match(lists, histories) if "repeat" in bases else None
    codes = None if spec.diversity_by is None else item_categories(store.catalog, spec.diversity_by)
    table = MetricInputs(match(lists, users.truth), users.truth.lengths, lists, counts, chosen, repeats, codes)
    return _rows(users, protocol, store, spec, table, steps)


def item_categories(catalog: Any, column: str) -> Int[np.ndarray, "V L"]:
    """Codes of the values of a column of items, of which an item may have several; 0 and less are none.

    Raises `UserError` for a column that is not there or holds no categories.
    """
    if catalog.holds_lists(column):
        return np.asarray(catalog.categories(column).codes)
    return np.asarray(catalog.categorical(column).codes[:, None])


def _rows(
    users: EvalSet,
    protocol: JsonObject,
    store: EvalStore,
    spec: Evaluation,
    table: MetricInputs,
    steps: Int[np.ndarray, "U"] | None = None,
) -> PerUser:
    """One row of metrics, and of slices, for each user."""
    values = {str(n): n(table) for n in spec.names() if n.per_user}
    codes = {}
    if spec.slices and len(users):
        history = users.histories.items
        # A user is new where their training events end before the history begins:
        # nothing of it was trained on.
        new = store.bounds[users.users, 0] <= history.starts
        codes = slice_codes(history.lengths, new, users.truth, store.catalog.popularity)
        if users.types is not None:
            codes["type"] = users.types
    return PerUser(users.users, values, table.ids, codes, protocol, steps)


def _users(store: EvalStore, split: str, spec: Evaluation) -> tuple[EvalSet, int, JsonObject]:
    """The users, by ascending row, how many were left out for want of a history, and
    the protocol's facts on types."""
    whole = store.eval_set(check_split(split), without_history=True)
    if not len(whole):
        raise UserError(
            f"the store has no users with a target in the split {split!r}: prepare it with another split",
            code="no-users-in-split",
        )
    facts: JsonObject = {}
    if spec.targets is not None:
        everybody, encoder = len(whole), getattr(store.catalog, "features", None)
        whole = spec.targets.of_users(whole, encoder)
        facts["slices"] = {"type": spec.targets.known(encoder)[1]}
        if spec.targets.values:
            facts["target_types"] = spec.targets.dump() | {"users_without": everybody - len(whole)}
    keep = (whole.histories.lengths > 0) | (spec.empty == "answer")
    if not keep.any():
        raise UserError(
            f"none of the {len(whole)} users of the split {split!r} has a history: evaluate with empty=answer, or "
            "prepare the store with another split",
            code="no-users-with-history",
        )
    order = np.flatnonzero(keep)[np.argsort(whole.users[keep], kind="stable")]
    return whole.take(order), int(np.sum(~keep)), facts


def features_read(
    model: Model, catalog: Any, known: HistoryFeatures | None, missing: Collection[str] = ()
) -> JsonObject:
    """The features that a model reads, and whether it is told anything of the request of its target (`request_time`):
    known, unknown, or unread where the model reads nothing of it. Empty for a model that reads no
    features.

    `missing` are features that nobody knows.
    """
    reads = Reads.of(model, getattr(catalog, "features", None))
    if not reads.names:
        return {}
    columns, known = set(reads.columns("request")) - set(missing), known or HistoryFeatures()
    at = reads.when and known.asked_at is not None and bool((known.asked_at != NO_TIME).any())
    request_time = "known" if at or (columns and known.asked is not None) else "unknown"
    return {
        "request_time": request_time if reads.names.get("request") else UNREAD,
        "features": {role: list(names) for role, names in reads.names.items()},
    }


def _inference(model: Model, spec: Evaluation) -> JsonObject:
    """Budget, decoding, dropped events and discount, where they are not the defaults:
    other results keep their keys."""
    settings: JsonObject = {}
    budget = described(model, spec.reasoning)
    if budget is not None:
        settings["reasoning"] = budget
    if spec.decoding != Decoding():
        settings["decoding"] = spec.decoding.described()
    if spec.drop:
        settings["dropped"] = {"share": spec.drop, "seed": spec.seed}
    if spec.popularity_discount:
        settings["popularity_discount"] = spec.popularity_discount
    return settings


def _protocol(store: EvalStore, split: str, spec: Evaluation, users: int, skipped: int) -> JsonObject:
    """The parts of a protocol that every evaluation of a recommender has."""
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
