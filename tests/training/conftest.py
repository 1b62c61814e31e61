"""A small prepared marketplace, experiments that train on it in seconds, and how runs are compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from fullrank.api import train
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.run import Run
from fullrank.run.experiment import Experiment, Training
from fullrank.training import TrainState
from markets import planted_store


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("market") / "store"
    # no repeats: `test_settled.py`
    return planted_store(place, "duplicates=first", users=300, items=80, events_per_user=12)


def tiny(*settings: str, dropout: float = 0.2) -> Experiment:
    """A SASRec of 2 x 16."""
    encoder = Transformer(layers=2, attention=Softmax(heads=2), feed_forward="mlp", dropout=dropout)
    training = Training(max_epochs=6, batch_size=512, lr=3e-3)
    return Experiment(model=Recommender(dim=16, max_length=12, encoder=encoder), training=training).override(*settings)


class Stopped(Exception):
    """A machine that is lost."""


class Stop:
    """A callback that ends training in an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch(self, state: TrainState) -> dict[str, float]:
        if state.epoch == self.epoch:
            raise Stopped
        return {}


class Runs:
    """``runs("whole", "seed=3")``: `tiny` with these settings, trained on the market in that folder of the test's.

    Of another `made`, as the tiny ranker is, on its store.
    """

    def __init__(self, store: Any, home: Path, made: Callable[..., Experiment] = tiny) -> None:
        self.store, self.home, self.made = store, home, made

    def __call__(self, folder: str | Path, *settings: str, dropout: float | None = None, **how: Any) -> Run:
        spec = self.made(*settings) if dropout is None else self.made(*settings, dropout=dropout)
        return train(spec, self.store, self.home / folder, progress=False, **how)


@pytest.fixture
def runs(market: Store, tmp_path: Path) -> Runs:
    return Runs(market, tmp_path)


@pytest.fixture(scope="session")
def run(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs of `tiny`. Tests that change its folder copy it."""
    return Runs(market, tmp_path_factory.mktemp("runs"))("run", "training.max_epochs=2")


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def weights(run: Run | Path) -> dict[str, Tensor]:
    return read_tensors((run if isinstance(run, Path) else run.path) / "weights.safetensors")


def same_weights(one: Run | Path, other: Run | Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def epochs(run: Run) -> list[dict[str, Any]]:
    return [row for row in run.rows() if row["event"] == "epoch"]


def column(run: Run, name: str = "train/loss") -> list[Any]:
    """A figure of each epoch that has it."""
    return [row[name] for row in epochs(run) if name in row]


def change_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None takes one out."""
    tree = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))


def histories(store: Store, split: str = "test") -> pl.DataFrame:
    """The events that a split's users are asked with, as a caller has them."""
    asked = store.eval_set(split)
    assert asked.histories.seconds is not None
    rows = [
        (int(user), store.catalog.ids[int(item)], int(time))
        for user, items, times in zip(asked.users, asked.histories.items, asked.histories.seconds, strict=True)
        for item, time in zip(items, times, strict=True)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def share_of_hits(store: Store, lists: pl.DataFrame) -> float:
    """How many users of the test split have their target in their list."""
    asked = store.eval_set("test")
    target = dict(zip(asked.users.tolist(), store.catalog.external(asked.next_items).to_list(), strict=True))
    return lists.filter(pl.col("item") == pl.col("user").replace_strict(target)).height / len(asked)
