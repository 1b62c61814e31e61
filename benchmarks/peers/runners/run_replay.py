"""RePlay's SasRec through its Parquet module and default transforms: full cross-entropy, Lightning trainer."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from common import Clock, finish, given
from replay.data import FeatureHint, FeatureSource, FeatureType
from replay.data.nn import ParquetModule, TensorFeatureInfo, TensorFeatureSource, TensorSchema
from replay.nn.lightning import LightningModule
from replay.nn.lightning.callback import PandasTopItemsCallback
from replay.nn.lightning.optimizer import OptimizerFactory
from replay.nn.lightning.postprocessor import SeenItemsFilter
from replay.nn.sequential import SasRec
from replay.nn.transform.template import make_default_sasrec_transforms

warnings.filterwarnings("ignore")


class Watch(L.Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_start(self, *_: Any) -> None:
        self.clock.start()

    def on_train_batch_end(self, *_: Any) -> None:
        self.clock.batch()

    def on_train_epoch_end(self, *_: Any) -> None:
        self.clock.epoch()


def sequences(path: Path, out: Path, shape: int) -> tuple[str, int]:
    """One row per user, as the Parquet module reads it; returns the file and the longest history."""
    frame = pd.read_parquet(path).sort_values(["user_id", "timestamp"], kind="stable")
    rows = frame.groupby("user_id", sort=True)["item_id"].agg(list).reset_index()
    rows["seen_ids"] = rows["item_id"]
    rows["item_id"] = [items[-shape:] for items in rows["item_id"]]
    rows.to_parquet(out, index=False)
    return str(out), int(rows["seen_ids"].map(len).max())


def schema_of(s: dict[str, Any]) -> TensorSchema:
    source = [TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")]
    return TensorSchema([
        TensorFeatureInfo(
            "item_id", FeatureType.CATEGORICAL, is_seq=True, feature_hint=FeatureHint.ITEM_ID, feature_sources=source,
            cardinality=s["items"], padding_value=s["items"], embedding_dim=s["dim"],
        )
    ])  # fmt: skip


def trainer_of(s: dict[str, Any], *callbacks: L.Callback) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu", max_epochs=s["epochs"], max_time=timedelta(seconds=s["seconds"]), callbacks=list(callbacks),
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        limit_val_batches=0,
    )  # fmt: skip


def main() -> None:
    folder, out, s = given()
    torch.set_num_threads(s["threads"])
    L.seed_everything(s["seed"])
    schema, pad = schema_of(s), s["items"]
    train, _ = sequences(folder / "train.parquet", out / "train_rows.parquet", s["max_length"] + 1)
    history, longest = sequences(folder / "history.parquet", out / "history_rows.parquet", s["max_length"])
    items = {"padding": pad}
    data = ParquetModule(
        batch_size=s["rows"],
        metadata={
            "train": {"item_id": items | {"shape": s["max_length"] + 1}},
            "predict": {
                "user_id": {}, "item_id": items | {"shape": s["max_length"]}, "seen_ids": items | {"shape": longest},
            },
        },
        transforms=make_default_sasrec_transforms(schema), train_path=train, predict_path=history,
    )  # fmt: skip
    model = SasRec.from_params(
        schema, embedding_dim=s["dim"], num_heads=s["heads"], num_blocks=s["layers"],
        max_sequence_length=s["max_length"], dropout=s["dropout"],
    )  # fmt: skip
    module, clock = LightningModule(model, OptimizerFactory(learning_rate=s["lr"])), Clock()
    trainer = trainer_of(s, Watch(clock))
    begun = time.perf_counter()
    trainer.fit(module, datamodule=data)
    timing: dict[str, Any] = {"library": "RePlay", "version": version("replay-rec"), "torch": torch.__version__}
    timing |= clock.figures(trainer.num_training_batches)
    timing["fit_seconds"] = time.perf_counter() - begun
    top = PandasTopItemsCallback(s["k"], "user_id", "item_id", postprocessors=[SeenItemsFilter(pad)])
    begun = time.perf_counter()
    trainer_of(s, top).predict(module, datamodule=data, return_predictions=False)
    lists = top.get_result()
    timing |= {"recommend_seconds": time.perf_counter() - begun, "users": int(lists["user_id"].nunique())}
    lists["rank"] = np.tile(np.arange(1, s["k"] + 1), len(lists) // s["k"])
    finish(out, timing, lists[["user_id", "item_id", "rank"]].astype("int64"))


if __name__ == "__main__":
    main()
