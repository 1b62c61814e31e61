"""Small whole models and a store in memory: histories in which low ids are the popular ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fullrank.analysis.activations import RetrievalContext, Sample, activations, sample_users
from fullrank.analysis.diagnosis import Row
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.core.spec import Spec
from fullrank.data.events.store import Store
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from tiny import shaken, store

ITEMS, DIM, LONGEST = 30, 8, 10


def shop(users: int = 40, seed: int = 0) -> Store:
    """A store in memory whose items are drawn by a power law."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, ITEMS + 1)
    rows = [rng.choice(ITEMS, n, p=chances / chances.sum()).tolist() for n in rng.integers(3, 15, users)]
    return store(rows, ITEMS)


def recommender(encoder: Spec | None = None, *settings: str) -> Recommender:
    encoder = encoder or Transformer(layers=2, attention=Softmax(heads=2), feed_forward="mlp")
    return Recommender(dim=DIM, max_length=LONGEST, encoder=encoder).override(*settings)


def model_of(spec: Spec, on: Store, *, scale: float = 0.3) -> Any:
    """The spec built and shaken (a baseline: fitted), in evaluation mode."""
    torch.manual_seed(0)
    model: Any = spec.build(on.catalog)  # type: ignore[attr-defined]
    if hasattr(model, "fit"):
        model.fit(on)
        return model.eval()
    return shaken(model, scale).eval()


def everyone(on: Store) -> Sample:
    return sample_users(on, "test", 10_000)


def context_of(
    model: Any, some: Sample, on: Store | None = None, split: str = "test", **given: Any
) -> RetrievalContext:
    """What a diagnostic is given; most of them read nothing of the store."""
    return RetrievalContext(model, shop() if on is None else on, split, some, **given)


def observed(model: Any, some: Sample, *diagnostics: type[Diagnostic] | Diagnostic, **given: Any) -> list[list[Row]]:
    """The rows of each diagnostic after one pass."""
    made = [one(context_of(model, some, **given)) if isinstance(one, type) else one for one in diagnostics]
    for batch in activations(model, some):
        for one in made:
            one.observe(batch)
    return [one.rows() for one in made]


def values(rows: list[Row], name: str, **where: Any) -> list[Any]:
    """The values of the rows of a name at a place."""
    return [one["value"] for one in rows if one["name"] == name and all(one[k] == v for k, v in where.items())]


def history(some: Sample, place: int, longest: int = LONGEST) -> np.ndarray:
    """What the model reads of one user of a sample."""
    (row,) = some.histories.items.take(np.array([place])).last(longest)
    return np.asarray(row)
