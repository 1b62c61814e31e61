"""Train a very small model for real and check that it learned what was planted."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

USERS, ITEMS, LENGTH = 400, 40, 12
"""Each user walks over the items in steps of one: the next item follows from the last."""
BAR = 0.8
"""Recall@10 that a model reaches which learned the rule; by chance it is 10 / 40."""


def selftest() -> dict[str, Any]:
    """Prepare, train, evaluate and recommend on planted walks; {"ok", "recall", "chance", "seconds", ...}."""
    import numpy as np
    import polars as pl

    from fullrank import api
    from fullrank.data.events.prepare import prepare
    from fullrank.experiment import Experiment, Training
    from fullrank.models.sequential.attention.softmax import Softmax
    from fullrank.models.sequential.encoders.transformer import Transformer
    from fullrank.models.sequential.model import Recommender
    from fullrank.training import fit  # noqa: F401  (seconds of imports that are not the test's)

    start = np.random.default_rng(0).integers(ITEMS, size=(USERS, 1))
    walks = (start + np.arange(LENGTH)) % ITEMS
    table = pl.DataFrame({
        "user_id": np.repeat(np.arange(USERS), LENGTH),
        "item_id": walks.ravel() + 1,
        "timestamp": np.tile(np.arange(LENGTH), USERS),
    })  # fmt: skip
    model = Recommender(dim=16, encoder=Transformer(layers=1, attention=Softmax(heads=1), dropout=0.0))
    training = Training(max_epochs=6, batch_size=512, lr=2e-2)
    experiment = Experiment(recipe="selftest", model=model, training=training)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        store = prepare(table, Path(folder) / "data")
        run = api.train(experiment, store, Path(folder) / "run", progress=False)
        recall = api.evaluate(run, data=store, set=["metrics=[recall@10]", "bootstrap=0"]).metrics["recall@10"]
        best = api.recommend(run, [[3, 4, 5, 6]], k=1)["item"][0]
        spent = time.perf_counter() - begun
    problem = (
        None
        if recall >= BAR and best == 7
        else f"recall@10 is {recall:.3f}, {BAR} was expected, and 7 after 3, 4, 5, 6"
    )
    return {
        "ok": problem is None, "problem": problem, "recall": recall, "chance": 10 / ITEMS, "after_3_4_5_6": best,
        "parameters": run.manifest["parameters"], "seconds": spent,
    }  # fmt: skip
