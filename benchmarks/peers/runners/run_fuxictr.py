"""FuxiCTR on the ranking task: its loader, models, training and early stopping, told what the experiment says."""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import finish, given
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.torch_utils import seed_everything

NAMES = {"dcnv2": "DCNv2", "finalmlp": "FinalMLP"}


def of_ranker(ranker: dict[str, Any]) -> dict[str, Any]:
    """The names that FuxiCTR's model has for the settings of ours."""
    if ranker["kind"] == "dcnv2":
        deep = ranker["deep"]
        return {
            "model_structure": "parallel", "num_cross_layers": ranker["crosses"],
            "parallel_dnn_hidden_units": deep["hidden"], "net_dropout": deep["dropout"],
            "batch_norm": deep["batch_norm"],
        }  # fmt: skip
    found = {
        "use_fs": ranker["gates"], "fs_hidden_units": ranker["gate_hidden"], "fs1_context": ranker["first_context"],
        "fs2_context": ranker["second_context"], "num_heads": ranker["heads"],
    }  # fmt: skip
    for number, name in ((1, "first"), (2, "second")):
        deep = ranker[name]
        found |= {
            f"mlp{number}_hidden_units": deep["hidden"], f"mlp{number}_dropout": deep["dropout"],
            f"mlp{number}_batch_norm": deep["batch_norm"],
        }  # fmt: skip
    return found


def feature_map(fields: list[dict[str, Any]], folder: Path, longest: dict[str, int], dim: int) -> FeatureMap:
    """FuxiCTR's description of the columns."""
    features = []
    for field in fields:
        spec: dict[str, Any] = {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": field["size"]}
        if field["kind"] != "categorical":
            pooling = "layers.MaskedAveragePooling()"
            spec |= {"type": "sequence", "max_len": longest[field["name"]], "feature_encoder": pooling}
        features.append({field["name"]: spec})
    path = folder / "feature_map.json"
    path.write_text(json.dumps({"dataset_id": "peers", "labels": ["label"], "features": features}), encoding="utf-8")
    made = FeatureMap("peers", str(folder))
    made.load(str(path), {"embedding_dim": dim})
    return made


def write_arrays(folder: Path, out: Path, fields: list[dict[str, Any]]) -> dict[str, int]:
    """The Parquet files as .npz, which FuxiCTR's default loader reads; gives the lengths of the bags."""
    tables = {part: pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "validation", "test")}
    several = [field["name"] for field in fields if field["kind"] != "categorical"]
    longest = {name: max(int(table[name].str.len().max()) for table in tables.values()) for name in several}
    for part, table in tables.items():
        columns = {field["name"]: table[field["name"]].to_numpy() for field in fields}
        for name in several:
            columns[name] = np.stack([np.pad(ids, (0, longest[name] - len(ids))) for ids in table[name]])
        # the test split has none, and the loader wants the column
        columns["label"] = table["label"].to_numpy() if "label" in table else np.zeros(len(table), np.int64)
        np.savez(out / f"{part}.npz", **columns)
    return longest


def timed(model: type) -> type:
    """The model, noting the seconds of each epoch's training and of its validation."""

    class Timed(model):  # type: ignore[misc, valid-type]
        trained: list[float] = []
        validated: list[float] = []

        def train_epoch(self, *given: Any) -> None:
            begun = time.perf_counter()
            super().train_epoch(*given)  # which validates at its end
            self.trained.append(time.perf_counter() - begun - self.validated[-1])

        def eval_step(self) -> None:
            begun = time.perf_counter()
            super().eval_step()
            self.validated.append(time.perf_counter() - begun)

    return Timed


def main() -> None:
    folder, out, s = given()
    torch.set_num_threads(s["threads"])
    model, training = s["experiment"]["model"], s["experiment"]["training"]
    longest = write_arrays(folder, out, s["fields"])
    dim = model["embedding"]["dim"]
    columns = feature_map(s["fields"], out, longest, dim)
    seed_everything(s["experiment"]["seed"])
    sys.path.insert(0, s["zoo"])
    name = NAMES[model["ranker"]["kind"]]
    made = timed(getattr(importlib.import_module(name), name))(
        columns, model_id="peer", gpu=-1, embedding_dim=dim, learning_rate=training["lr"],
        embedding_regularizer=float(model["embedding"]["l2"]), net_regularizer=0.0, optimizer="adam",
        loss="binary_crossentropy", task="binary_classification", metrics=["AUC", "logloss"], monitor="AUC",
        monitor_mode="max", early_stop_patience=training["patience"], model_root=str(out), verbose=0,
        **of_ranker(model["ranker"]),
    )  # fmt: skip
    (out / "peers").mkdir()  # where it keeps its best weights
    train, validation, test = RankDataLoader(
        columns, stage="both", train_data=str(out / "train.npz"), valid_data=str(out / "validation.npz"),
        test_data=str(out / "test.npz"), batch_size=training["batch_size"], shuffle=True, data_format="npz",
    )  # fmt: skip
    begun = time.perf_counter()
    made.fit(
        train, epochs=training["max_epochs"], validation_data=validation, max_gradient_norm=training["clip_norm"]
    )  # fmt: skip
    timing = {
        "library": "fuxictr", "version": version("fuxictr"), "torch": torch.__version__, "epochs": len(made.trained),
        "seconds_per_epoch": median(made.trained), "validation_seconds": median(made.validated),
        "train_seconds": time.perf_counter() - begun,
    }  # fmt: skip
    begun = time.perf_counter()
    found = made.predict(test)
    timing["predict_seconds"] = time.perf_counter() - begun
    finish(out, timing, pd.DataFrame({"row": np.arange(len(found)), "probability": found}), "probabilities")


if __name__ == "__main__":
    main()
