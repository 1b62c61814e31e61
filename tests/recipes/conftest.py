"""A marketplace that recipes learn on, and their models without their types."""

from pathlib import Path
from typing import Any

import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.run.experiment import Experiment, find_experiment
from markets import planted_store


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return planted_store(tmp_path_factory.mktemp("market") / "store", users=400, items=100, events_per_user=12)


def model(made: Experiment | str) -> Any:
    return (find_experiment(made) if isinstance(made, str) else made).model


def beats_popularity(recipe: str, loss: str, falls_to: float, market: Store, folder: Path, *settings: str) -> None:
    """The loss falls, and after some epochs it ranks clearly better than popularity does."""
    small = ["model.dim=32", "model.max_length=20", "training.evaluate_every=6", "training.lr=0.004"]
    run = fr.train(recipe, market, folder / "run", set=[*small, "training.patience=null", *settings], progress=False)
    losses = [row[loss] for row in run.rows() if row["event"] == "epoch"]
    assert losses[-1] < falls_to * losses[0]
    popular = fr.train("popularity", market, folder / "popularity", progress=False)
    score, least = (fr.evaluate(each, "validation").metrics["ndcg@10"] for each in (run, popular))
    assert score > 1.2 * least, (score, least)
