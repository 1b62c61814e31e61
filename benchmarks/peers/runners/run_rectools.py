"""RecTools' SASRec, as its transformer tutorial uses it: softmax loss, its own data preparation and trainer."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from common import Clock, finish, given
from rectools.dataset import Dataset
from rectools.models import SASRecModel

warnings.filterwarnings("ignore")


class Watch(pl.Callback):
    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_start(self, *_: Any) -> None:
        self.clock.start()

    def on_train_batch_end(self, *_: Any) -> None:
        self.clock.batch()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.clock.epoch()


def dataset(path: Path) -> Dataset:
    frame = pd.read_parquet(path)
    frame["datetime"] = pd.to_datetime(frame.pop("timestamp"), unit="s")
    return Dataset.construct(frame.assign(weight=1.0))


def main() -> None:
    folder, out, s = given()
    torch.set_num_threads(s["threads"])
    pl.seed_everything(s["seed"])

    def trainer() -> pl.Trainer:
        limit = timedelta(seconds=s["seconds"])
        return pl.Trainer(
            accelerator="cpu", max_epochs=s["epochs"], max_time=limit, callbacks=[Watch()], logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip

    model = SASRecModel(
        n_blocks=s["layers"], n_heads=s["heads"], n_factors=s["dim"], session_max_len=s["max_length"],
        dropout_rate=s["dropout"], lr=s["lr"], batch_size=s["rows"], loss="softmax", get_trainer_func=trainer,
    )  # fmt: skip
    begun = time.perf_counter()
    model.fit(dataset(folder / "train.parquet"))
    timing: dict[str, Any] = {"library": "RecTools", "version": version("rectools"), "torch": torch.__version__}
    timing["fit_seconds"] = time.perf_counter() - begun
    used = model.fit_trainer  # a copy of the one made above, with a clock of its own
    clock = next(c for c in used.callbacks if isinstance(c, Watch)).clock
    timing |= clock.figures(used.num_training_batches)
    history = dataset(folder / "history.parquet")
    users = history.user_id_map.external_ids
    begun = time.perf_counter()
    lists = model.recommend(users=users, dataset=history, k=s["k"], filter_viewed=True)
    timing |= {"recommend_seconds": time.perf_counter() - begun, "users": len(users)}
    finish(out, timing, lists[["user_id", "item_id", "rank"]])


if __name__ == "__main__":
    main()
