"""Live items over a small catalogue and a model that nobody trained, for tests."""

from pathlib import Path

import polars as pl

from fullrank.data.events.catalog import Catalog
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.run.experiment import find_experiment
from fullrank.serving.catalogue import LiveItems
from tiny import catalog, shaken

WORDS = ("rose", "soap", "lavender", "oil", "mascara", "brush", "crème", "bath", "salt", "eau")
NOW = 1000.0
TINY = ("sasrec", "model.dim=8", "model.encoder.attention.heads=2", "model.encoder.layers=1", "model.max_length=10")


def titled(size: int = 23) -> Catalog:
    """The small catalogue with titles of two words (the last has none), and columns of every kind."""
    frame = catalog(size).frame
    titles = [f"{WORDS[i % 10]} {WORDS[(i // 10 + i) % 10]}" for i in range(size - 1)]
    return Catalog(
        frame.with_columns(
            title=pl.Series([*titles, None]),
            in_stock=pl.Series([(None, True, False)[i % 3] for i in range(size)]),
            tags=pl.Series([[None, [], ["a"], ["a", "b"]][i % 4] for i in range(size)], dtype=pl.List(pl.String)),
        )
    )


def opened(known: Catalog | None = None, recipe: str = "sasrec", *settings: str) -> tuple:
    """A run of a recipe, in memory, and its predictor."""
    experiment = find_experiment(recipe).override(*settings)
    known = titled() if known is None else known
    model = shaken(experiment.model.build(known))
    return Run(Path("in memory"), experiment, {}), Predictor(model, known, device="cpu")


def small(**documents) -> tuple:
    """Live items of a tiny sasrec with these documents (the id is the key)."""
    run, predictor = opened(None, *TINY)
    return LiveItems.of(run, predictor, bodies(documents), NOW)


def bodies(documents: dict) -> dict:
    """Documents with their ids in them."""
    return {key: None if body is None else {"id": key, **body} for key, body in documents.items()}
