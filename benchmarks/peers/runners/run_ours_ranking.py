"""This library on the ranking task: the experiment as it is given."""

from __future__ import annotations

import sys
import time
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import finish, given

from fullrank.data.impressions.store import ImpressionStore
from fullrank.inference.predict import ROWS, predict_batch
from fullrank.run.experiment import Experiment
from fullrank.training.fit import fit


def main() -> None:
    folder, out, s = given()
    torch.set_num_threads(s["threads"])
    store = ImpressionStore.open(s["store"])
    begun = time.perf_counter()
    spec = Experiment.parse(s["experiment"]).override(f"training.precision={sys.argv[3]}")
    run = fit(spec, store, out / "run", progress=False)
    spent = time.perf_counter() - begun
    epochs = [row for row in run.rows() if row["event"] == "epoch"]
    try:
        number = version("fullrank")
    except PackageNotFoundError:
        number = "source"
    timing: dict[str, Any] = {
        "library": "fullrank", "version": number, "torch": torch.__version__, "epochs": len(epochs),
        "seconds_per_epoch": median(row["seconds"] for row in epochs),
        "validation_seconds": median(row["validation_seconds"] for row in epochs), "train_seconds": spent,
    }  # fmt: skip
    begun, model, rows = time.perf_counter(), run.model(), store.split("test")
    parts = [range(start, min(start + ROWS, rows.stop)) for start in range(rows.start, rows.stop, ROWS)]
    found = np.concatenate([predict_batch(model, store.batch(part)) for part in parts])
    timing["predict_seconds"] = time.perf_counter() - begun
    table = pd.DataFrame({"row": np.arange(len(found)), "probability": found})
    finish(out, timing, table, "probabilities")


if __name__ == "__main__":
    main()
