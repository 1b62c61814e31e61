"""This library at the same settings: width, layers, heads, feed-forward, dropout, learning rate, rows a batch."""

from __future__ import annotations

import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import Clock, finish, given

from fullrank.data.events.store import Store
from fullrank.inference.recommend import rank
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.run.experiment import Experiment, Training
from fullrank.training import TrainState
from fullrank.training.fit import fit

PILOT = 3
"""Epochs of a first run that tells how many fit into the budget."""


class Watch:
    def __init__(self) -> None:
        self.clock = Clock()
        self.clock.start()

    def on_epoch(self, state: TrainState) -> dict[str, Any]:
        self.clock.batch()
        self.clock.epoch()
        return {}


def experiment(s: dict[str, Any], store: Store) -> Experiment:
    """`rows` histories of mean length make a batch; everything else is as the peers have it."""
    mean = float(np.mean(np.minimum(store.bounds[:, 0] - store.offsets[:-1], s["max_length"] + 1)))
    encoder = Transformer(
        layers=s["layers"], attention=Softmax(heads=s["heads"], bias=True), norm="layer", feed_forward="mlp",
        inner=s["dim"], bias=True, dropout=s["dropout"],
    )  # fmt: skip
    model = Recommender(dim=s["dim"], max_length=s["max_length"], encoder=encoder)
    rows = max(1, round(s["rows"] * mean))
    training = Training(lr=s["lr"], betas=(0.9, 0.98), batch_size=rows, precision=sys.argv[3])
    return Experiment(recipe="peers", model=model, training=training, seed=s["seed"])


def run(spec: Experiment, store: Store, epochs: int, evaluations: int) -> tuple[Any, Clock, float]:
    """The run's folder is temporary: model, clock and seconds in all. `evaluations` checks on validation."""
    watch, every = Watch(), max(1, epochs // evaluations)
    spec = spec.override(f"training.max_epochs={epochs}", f"training.evaluate_every={every}")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        made = fit(spec, store, Path(folder) / "run", callbacks=(watch,), progress=False)
        seconds = time.perf_counter() - begun
        return made.model(), watch.clock, seconds


def main() -> None:
    folder, out, s = given()
    torch.set_num_threads(s["threads"])
    store = Store.open(s["store"])
    spec = experiment(s, store)
    _, pilot, _ = run(spec, store, PILOT, 1)
    per_epoch = pilot.epochs[1] - pilot.epochs[0]
    # one epoch's time in ten is left for the checks on validation
    epochs = min(s["epochs"], max(1, int(s["seconds"] / (1.1 * per_epoch))))
    model, clock, seconds = run(spec, store, epochs, 8)
    try:
        number = version("fullrank")
    except PackageNotFoundError:
        number = "source"
    timing: dict[str, Any] = {"library": "fullrank", "version": number, "torch": torch.__version__} | clock.figures(1)
    if epochs > PILOT:  # else there are too few to tell a pass over the data from a check on validation
        per_epoch = float(np.median(np.diff(clock.epochs)))
    timing |= {"seconds_per_epoch": per_epoch, "fit_seconds": seconds}
    asked = store.eval_set("test")
    users = asked.users
    begun = time.perf_counter()
    found = rank(model, asked.histories, k=s["k"])
    timing |= {"recommend_seconds": time.perf_counter() - begun, "users": len(users)}
    places = np.tile(np.arange(1, s["k"] + 1), len(users))
    lists = pd.DataFrame({"user_id": np.repeat(users, s["k"]), "item_id": found.ids.ravel(), "rank": places})
    finish(out, timing, lists[lists["item_id"] >= 0])


if __name__ == "__main__":
    main()
