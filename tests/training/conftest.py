"""A small prepared marketplace, and experiments that train on it in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.data.events.prepare import prepare
from fullrank.data.events.store import Store
from fullrank.data.sources.planted import Planted
from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.attention.softmax import Softmax
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Store:
    tables = Planted(users=300, items=80, events_per_user=12).read()
    place = tmp_path_factory.mktemp("market") / "store"
    return prepare(
        tables.events, place, items=tables.items, set=["duplicates=first"]
    )  # no repeats: `test_selection.py`


def tiny(*settings: str, dropout: float = 0.2) -> Experiment:
    """A SASRec of 2 x 16."""
    encoder = Transformer(layers=2, attention=Softmax(heads=2), feed_forward="mlp", dropout=dropout)
    training = Training(max_epochs=6, batch_size=512, lr=3e-3)
    return Experiment(model=Recommender(dim=16, max_length=12, encoder=encoder), training=training).override(*settings)


@pytest.fixture(scope="session")
def worker() -> Path:
    return Path(__file__).with_name("worker.py")
