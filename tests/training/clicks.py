"""A small store of impressions with a planted interaction, and experiments that train on it in seconds."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl

from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.ranking.model import RankingModel
from fullrank.run import Run
from fullrank.run.experiment import Experiment, Training

SCHEMA = {
    "fields": ["user", "item", {"name": "age", "kind": "numeric"}, {"name": "tags", "kind": "bag"}],
    "group": "user", "split": {"kind": "random"},
}  # fmt: skip


def table(rows: int = 3000, seed: int = 0) -> pl.DataFrame:
    """Even users click even items; some ages are missing."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(20, size=rows), rng.integers(30, size=rows)
    odds = np.where((user + item) % 2 == 0, 2.0, -2.0)
    age = [None if draw < 0.1 else float(a) for draw, a in zip(rng.random(rows), rng.normal(40, 9, rows), strict=True)]
    tags = [[f"t{t}" for t in rng.integers(5, size=n)] for n in rng.integers(0, 4, rows)]
    click = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    return pl.DataFrame({"label": click, "user": user, "item": item, "age": age, "tags": tags, "note": range(rows)})


def with_histories(frame: pl.DataFrame) -> pl.DataFrame:
    """A behaviour sequence beside them, for models that look for one."""
    return frame.with_columns(history=pl.concat_list("item", (pl.col("item") + pl.col("user")) % 30))


HISTORIES = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "history", "kind": "sequence", "shares": "item"}]}


def shop(folder: Path) -> ImpressionStore:
    return prepare_impressions(table(), folder, schema=SCHEMA)


def tiny(*settings: str, ranker: str = "dcnv2") -> Experiment:
    training = Training(max_epochs=4, batch_by="rows", batch_size=128, lr=1e-2, clip_norm=10.0)
    model = RankingModel(
        embedding={"dim": 8, "std": 0.05}, ranker={"kind": ranker, "deep": {"hidden": (16,), "dropout": 0.1}}
    )
    return Experiment(model=model, training=training).override("evaluation.bootstrap=20", *settings)


def as_format_1(folder: Path) -> Run:
    """A run folder as versions wrote it whose runs had no encoder: fields.json alone says what the model reads."""
    fields = [asdict(field) for field in Run.open(folder).fields]
    (folder / "fields.json").write_text(json.dumps({"fields": fields}))
    for name in ("encoder.json", "vocabulary.parquet"):
        (folder / name).unlink()
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format_version": 1}
    del manifest["files"], manifest["finished"], manifest["seal"], manifest["data"]["trained_until"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return Run.open(folder)
