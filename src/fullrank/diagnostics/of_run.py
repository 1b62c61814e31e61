"""Diagnose a run of either kind: users are read for a model that ranks items, impressions for one of clicks.

The size of a sample has the name of what is counted; the other kind's name is refused, because it would say nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from fullrank.data.impressions import ImpressionStore
from fullrank.data.pack import Store
from fullrank.data.stores import AnyStore
from fullrank.diagnostics.diagnose import USERS, Diagnosis, diagnose
from fullrank.diagnostics.diagnose_clicks import IMPRESSIONS, diagnose_clicks
from fullrank.errors import UserError
from fullrank.retrieval.batches import Progress
from fullrank.run import Run, weights_hash


def diagnose_run(
    run: Run,
    store: AnyStore,
    split: str,
    *,
    users: int | None = None,
    impressions: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    vectors: Float[np.ndarray, "V D"] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """The rows of its weights, with their hash. `users`, `impressions`: None is the default of the kind."""
    check_sample(run, users=users, impressions=impressions)
    if run.spec.clicks is not None and vectors is not None:
        raise UserError(f"{run.path} is a click model, which has no history to look into: leave vectors out")
    model: Any = run.model().to(device)
    weights = weights_hash(run.path)
    if run.spec.clicks is not None:
        assert isinstance(store, ImpressionStore)  # the fingerprints agree
        many = IMPRESSIONS if impressions is None else impressions
        return diagnose_clicks(
            model, store, split=split, impressions=many, seed=seed, weights=weights, progress=progress
        )
    assert isinstance(store, Store)
    many = USERS if users is None else users
    return diagnose(
        model, store, split=split, users=many, seed=seed,
        evaluation=run.spec.lists, weights=weights, vectors=vectors, progress=progress,
    )  # fmt: skip


def check_sample(run: Run, *, users: int | None, impressions: int | None) -> None:
    """Raise `UserError` where the size of a sample is given that this kind of run does not have."""
    if run.spec.clicks is not None and users is not None:
        raise UserError(f"{run.path} is a click model, whose sample is of impressions: give impressions, not users")
    if run.spec.clicks is None and impressions is not None:
        raise UserError(f"{run.path} recommends items, and its sample is of users: give users, not impressions")
