"""Small whole models and a store in memory: histories in which low ids are the popular ones."""

from typing import Any

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import RetrievalContext, Sample, activations, sample_users
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.core.spec import Spec
from fullrank.data.events.store import Store
from parts import Recommender, Softmax, Transformer
from tiny import shaken, store

ITEMS, DIM, LONGEST = 30, 8, 10


def shop(users: int = 40, seed: int = 0) -> Store:
    """A store in memory whose items are drawn by a power law; it has no table of users, so their keys are numbers."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, ITEMS + 1)
    rows = [rng.choice(ITEMS, n, p=chances / chances.sum()).tolist() for n in rng.integers(3, 15, users)]
    made = store(rows, ITEMS)
    vars(made)["user_keys"] = np.arange(users)
    return made


def recommender(encoder: Spec | None = None, *settings: str) -> Recommender:
    encoder = encoder or Transformer(layers=2, attention=Softmax(heads=2), feed_forward="mlp")
    return Recommender(dim=DIM, max_length=LONGEST, encoder=encoder).override(*settings)


def model_of(spec: Spec | None = None, on: Store | None = None, *, scale: float = 0.3) -> Any:
    """The spec built and shaken (a baseline: fitted), in evaluation mode."""
    on = on or STORE
    torch.manual_seed(0)
    model = (spec or recommender()).build(on.catalog)
    if hasattr(model, "fit"):
        model.fit(on)
        return model.eval()
    return shaken(model, scale).eval()


def everyone(on: Store) -> Sample:
    return sample_users(on, "test", 10_000)


STORE = shop()
EVERYONE = everyone(STORE)


def context_of(
    model: Any, some: Sample = EVERYONE, on: Store = STORE, split: str = "test", **given: Any
) -> RetrievalContext:
    """What a diagnostic is given; most of them read nothing of the store."""
    return RetrievalContext(model, on, split, some, **given)


def observed(model: Any, *diagnostics: type | Diagnostic, some: Sample = EVERYONE, **given: Any) -> list:
    """The rows of each diagnostic after one pass."""
    made = [one(context_of(model, some, **given)) if isinstance(one, type) else one for one in diagnostics]
    for batch in activations(model, some):
        for one in made:
            one.observe(batch)
    return [one.rows() for one in made]


def values(rows: list, name: str, **where: Any) -> list:
    """The values of the rows of a name at a place."""
    return [one["value"] for one in rows if one["name"] == name and all(one[k] == v for k, v in where.items())]


def expect(
    rows: list, name: str, wanted: float, rel: float | None = None, abs: float | None = None, **where: Any
) -> None:
    """The (first) row of a name at a place has this value."""
    assert values(rows, name, **where)[0] == pytest.approx(wanted, rel=rel, abs=abs), (name, where)


def history(some: Sample, place: int, longest: int = LONGEST) -> np.ndarray:
    """What the model reads of one user of a sample."""
    (row,) = some.histories.items.take(np.array([place])).last(longest)
    return np.asarray(row)
