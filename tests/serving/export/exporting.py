"""Runs that were never trained, made in a moment, and what their exports are compared with."""

from pathlib import Path

import numpy as np
import torch

from fullrank.core.errors import UserError
from fullrank.core.files import write_json
from fullrank.data.events.store import Store
from fullrank.models.ranking.calibration import Calibration
from fullrank.run import Run, seal_run, write_run, write_weights
from fullrank.run.experiment import find_experiment
from fullrank.run.manifest import CALIBRATION
from tiny import catalog, shaken

ITEMS = 40
SMALL = ("model.dim=8", "model.max_length=9")
MORE = {
    "srt": (
        "model.encoder.layers=1",
        "model.items.fields=[{column: title, tokens: 4}, {column: brand, tokens: 2}]",
    ),
    "sasrec": ("model.encoder.layers=1",), "hstu": ("model.encoder.layers=1",), "plr": ("model.encoder.layers=1",),
    "bert4rec": ("model.encoder.layers=1",),
    "fdsa": ("model.items.categorical=[brand]",),
    "s3rec_pretrain": ("model.penalties.0.attributes=[brand]", "model.encoder.layers=1"),
    "mojito": ("model.encoder.layers=1",),
    "rpg": ("model.encoder.layers=1",), "gru4rec": ("model.encoder.layers=2",),
}  # fmt: skip


def made_run(recipe: str, folder: Path, *settings: str, items: int = ITEMS, store: Store | None = None) -> Run:
    """A run folder with drawn weights, sealed, as if it had been trained on `store`."""
    spec = find_experiment(recipe)
    try:
        spec = spec.override(*SMALL, *MORE.get(recipe, ()), *settings)
    except UserError:  # a baseline has no width
        spec = spec.override(*settings)
    known = catalog(items) if store is None else store.catalog
    torch.manual_seed(0)
    model = spec.model.build(known)
    if isinstance(model, torch.nn.Module):
        shaken(model)
    return sealed_run(folder, spec, known, model, store)


def sealed_run(folder: Path, spec, known, model, store=None, calibration: Calibration | None = None) -> Run:
    """A model's run, as if it had been trained on `store`."""
    data = {"path": str(folder / "nowhere"), "split_fingerprint": "tiny"}
    if store is not None:
        data = {"path": str(store.path), "split_fingerprint": store.fingerprint}
    write_run(folder, spec, known, {"parameters": 1, "data": data})
    write_weights(folder, model)
    if calibration is not None:
        write_json(folder / CALIBRATION, calibration.dump())
    seal_run(folder)
    return Run.open(folder)


def asked(rows: int, length: int, items: int = ITEMS, seed: int = 0) -> dict:
    """Arguments of `ExportedModel.answer`."""
    draw = np.random.default_rng(seed)
    times = 1_600_000_000 + draw.integers(0, 10**6, (rows, length)).cumsum(1)
    return {
        "items": draw.integers(0, items, (rows, length)), "lengths": draw.integers(1, length + 1, rows),
        "times": times, "excluded": draw.integers(-1, items, (rows, 3)),
    }  # fmt: skip
