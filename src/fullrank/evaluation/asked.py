"""Who is asked: the users of a split, their histories and targets, and everything that a result depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
from jaxtyping import Int

from fullrank.batch import Model
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.errors import UserError, unknown
from fullrank.evaluation.spec import Evaluation
from fullrank.metrics import Truth, flatten
from fullrank.reasoning.budget import described
from fullrank.retrieval.decoding import Decoding

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


@dataclass(frozen=True)
class Asked:
    """Users by ascending row; user u's history is items[starts[u]:ends[u]], the targets items[ends[u]:target_ends[u]].

    `protocol` is everything that a number depends on besides the model.
    """

    users: Int[np.ndarray, "U"]
    starts: Int[np.ndarray, "U"]
    ends: Int[np.ndarray, "U"]
    target_ends: Int[np.ndarray, "U"]
    protocol: dict[str, Any]

    def part(self, some: slice) -> Asked:
        """Some of the users, under the protocol of all."""
        ranges = (self.users[some], self.starts[some], self.ends[some], self.target_ends[some])
        return Asked(*ranges, self.protocol)

    def histories(self, store: Held) -> Histories:
        return Histories(Jagged(store.items, self.starts, self.ends), store.times, self.users)

    def truth(self, store: Held) -> Truth:
        return Truth.of(store.items, self.ends, self.target_ends)


def asked(model: Model, store: Held, split: str, spec: Evaluation) -> Asked:
    """All users of a split. Raises `UserError` where there are none, or where store and model disagree about items."""
    popularity = store.catalog.popularity
    if len(popularity) != model.num_items:
        raise UserError(f"the model ranks {model.num_items} items but the store's catalogue has {len(popularity)}")
    users, starts, ends, target_ends, skipped = _users(store, split, spec)
    protocol = _protocol(store, split, spec, len(users), skipped)
    protocol |= _inference(model, spec)
    protocol["unreachable"] = _unreachable(store.items, starts, ends, target_ends) if _hides(spec) else 0
    return Asked(users, starts, ends, target_ends, protocol)


def _users(store: Held, split: str, spec: Evaluation) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
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


def _inference(model: Model, spec: Evaluation) -> dict[str, Any]:
    """How a model was asked that thinks or sees less; nothing for all others, whose results keep their keys."""
    found: dict[str, Any] = {}
    budget = described(model, spec.reasoning)
    if budget is not None:
        found["reasoning"] = budget
    if spec.decoding != Decoding():
        found["decoding"] = spec.decoding.described()
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
