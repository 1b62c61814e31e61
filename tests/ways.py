"""Count the source files of fullrank that four common calls run through: `python tests/ways.py [NAME ...]`.

A file counts where one of its functions is called between the call and its answer (not where it is only imported), so
the numbers say how many files somebody opens who follows a way in a debugger. Names print the files of these ways. It
runs on any version that is on the path, also on those before `fullrank.load`, so that two commits can be compared:

    git worktree add ../before COMMIT
    PYTHONPATH=../before/src python tests/ways.py
"""

import inspect
import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import fullrank as fr

ROOT = Path(fr.__file__).parent
SMALL = ["training.max_epochs=1", "evaluation.bootstrap=0"]
HISTORY = {"me": [1, 2, 3]}


class Files:
    """The files of fullrank whose functions were called while this was on."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def start(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is taken, the stub does not say so

    @contextmanager
    def on(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        # The top level of a module and class bodies run at import: their code is not optimized, that of functions is.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                self.found.add(path.relative_to(ROOT).as_posix())


def training_step(store: Any, folder: Path) -> set[str]:
    """From the end of the first optimizer step to the end of the second."""
    files, steps = Files(), 0

    def after(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            files.start()
        elif steps == 2:
            files.stop()

    handle = register_optimizer_step_post_hook(after)
    try:
        train("sasrec", store, folder, "training.batch_size=256", "model.dim=16")
    finally:
        handle.remove()
        files.stop()
    assert steps >= 2, "the data are too few for two steps"
    return files.found


def recommendation(run: Any) -> set[str]:
    """One history, with the model at hand where that version has one at hand."""
    ask: Callable[[], Any] = lambda: on_cpu(fr.recommend, run, HISTORY)  # noqa: E731
    if hasattr(fr, "load"):
        predictor = fr.load(run, device="cpu")
        ask = lambda: predictor.recommend(HISTORY)  # noqa: E731
    return second_call(ask)


def prediction(run: Any, table: pl.DataFrame) -> set[str]:
    """One impression, with the model at hand where that version has one at hand."""
    row = table.head(1)
    ask: Callable[[], Any] = lambda: on_cpu(fr.predict, run, row)  # noqa: E731
    if hasattr(fr, "load"):
        predictor = fr.load(run, device="cpu")
        ask = lambda: predictor.predict(row)  # noqa: E731
    return second_call(ask)


def sweep_job(store: Any, folder: Path) -> set[str]:
    """A sweep of one cell: cost, training, evaluation, its row."""
    cell = {"name": "one", "recipe": "sasrec", "set": {"model.dim": 16, "training.max_epochs": 1}}
    files = Files()
    with files.on():
        fr.sweep(fr.Grid.parse({"cells": [cell]}), store, folder, progress=False)
    return files.found


def second_call(ask: Callable[[], Any]) -> set[str]:
    """The files of a call whose imports and caches are those of an earlier one."""
    ask()
    files = Files()
    with files.on():
        ask()
    return files.found


def train(recipe: str, data: Any, out: Path, *settings: str) -> Any:
    return on_cpu(fr.train, recipe, data, out, set=[*SMALL, *settings], progress=False)


def on_cpu(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The call on the CPU; versions without `device=` take it anyway."""
    if "device" in inspect.signature(call).parameters:
        named["device"] = "cpu"
    return call(*given, **named)


def events(users: int = 100, items: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    rows = [(u, int(i), 100 * u + t) for u in range(users) for t, i in enumerate(rng.permutation(items)[:15])]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def impressions(rows: int = 1000) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    user, item = rng.integers(20, size=rows), rng.integers(30, size=rows)
    return pl.DataFrame({"label": ((user + item) % 2).astype(int), "user": user, "item": item})


def ways() -> dict[str, set[str]]:
    """Way -> files, on generated data in a folder that goes away."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        store, table = fr.prepare(events(), folder / "events"), impressions()
        schema = {"fields": ["user", "item"], "split": {"kind": "random"}}
        shown = fr.prepare_impressions(table, folder / "impressions", schema=schema)
        run = train("sasrec", store, folder / "sasrec", "model.dim=16")
        ranker = train("dnn", shown, folder / "dnn", "training.batch_size=256")
        return {
            "step": training_step(store, folder / "step"),
            "recommend": recommendation(run),
            "predict": prediction(ranker, table),
            "sweep": sweep_job(store, folder / "sweep"),
        }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    for name, found in ways().items():
        print(f"{name:10} {len(found):3} files")
        if name in sys.argv[1:]:
            print("\n".join(f"    {one}" for one in sorted(found)))
