"""Who is asked: the users of a split, their histories and targets, and everything that a result depends on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
from jaxtyping import Int

from fullrank.core.errors import UserError, unknown
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Model
from fullrank.data.histories import EvalSet, Histories
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.decoding import Decoding
from fullrank.models.sequential.reasoning.budget import described

Split = Literal["validation", "test"]
TIES = {
    "full": "score descending, item id ascending",
    "sampled": "target first: place = 1 + negatives scored higher",
}


@runtime_checkable
class CountedCatalog(Protocol):
    """A catalogue whose items were counted."""

    @property
    def popularity(self) -> Int[np.ndarray, "V"]: ...


@runtime_checkable
class EvalStore(Protocol):
    """What evaluation reads of a prepared store (`fullrank.data.events.store.Store`)."""

    @property
    def items(self) -> Int[np.ndarray, "E"]: ...
    @property
    def bounds(self) -> Int[np.ndarray, "users 2"]: ...
    @property
    def catalog(self) -> CountedCatalog: ...
    @property
    def fingerprint(self) -> str: ...
    def eval_set(self, split: Split, *, without_history: bool = False) -> EvalSet: ...


@dataclass(frozen=True)
class Asked:
    """Users by ascending row, and everything that a number depends on besides the model."""

    eval_set: EvalSet
    protocol: dict[str, Any]

    @property
    def users(self) -> Int[np.ndarray, "U"]:
        """Rows of the store's users."""
        return self.eval_set.users

    @property
    def histories(self) -> Histories:
        return self.eval_set.histories

    @cached_property
    def truth(self) -> Jagged:
        """[U rows] the distinct ids of each user's targets."""
        return self.eval_set.targets.distinct()

    def part(self, some: slice) -> Asked:
        """Some of the users, under the protocol of all."""
        return Asked(self.eval_set.take(some), self.protocol)


def asked(model: Model, store: EvalStore, split: str, spec: Evaluation) -> Asked:
    """All users of a split. Raises `UserError` where there are none, or where store and model disagree about items."""
    popularity = store.catalog.popularity
    if len(popularity) != model.num_items:
        raise UserError(f"the model ranks {model.num_items} items but the store's catalogue has {len(popularity)}")
    users, skipped = _users(store, split, spec)
    protocol = _protocol(store, split, spec, len(users), skipped)
    protocol |= _inference(model, spec)
    protocol["unreachable"] = _unreachable(users) if _hides(spec) else 0
    return Asked(users, protocol)


def _users(store: EvalStore, split: str, spec: Evaluation) -> tuple[EvalSet, int]:
    """The users, by ascending row, and how many were left out for want of a history."""
    if split not in get_args(Split):
        raise unknown("split", split, get_args(Split))
    whole = store.eval_set(cast(Split, split), without_history=True)
    if not len(whole):
        raise UserError(f"the store has no users with a target in the split {split!r}: prepare it with another split")
    keep = (whole.histories.lengths > 0) if spec.empty == "skip" else np.ones(len(whole), dtype=bool)
    if not keep.any():
        raise UserError(f"none of the {len(whole)} users of the split {split!r} has a history")
    order = np.flatnonzero(keep)[np.argsort(whole.users[keep], kind="stable")]
    return whole.take(order), int(np.sum(~keep))


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


def _protocol(store: EvalStore, split: str, spec: Evaluation, users: int, skipped: int) -> dict[str, Any]:
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


def _unreachable(users: EvalSet, chunk: int = 1 << 16) -> int:
    """How many targets are in their own user's history, so that excluding it makes them impossible to hit."""
    found = 0
    for low in range(0, len(users), chunk):
        some = users.take(slice(low, low + chunk))
        truth, seen = some.targets.distinct(), some.histories.items
        rows, items = seen.row_of(), seen.flat()
        if bool((truth.lengths == 1).all()):  # one target each: no need to sort anything
            found += len(np.unique(rows[items == truth.values[rows]]))
            continue
        width = int(max(truth.values.max(initial=0), items.max(initial=0))) + 1
        found += int(np.isin(truth.keys(width), seen.keys(width)).sum())
    return found
