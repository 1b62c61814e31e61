"""Checks before torch is loaded, which takes seconds: of folders that are not there, and of settings.

What passes here is looked at again by the verb itself, with the model; nothing here decides a
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError

EXPERIMENT = "fullrank.run.experiment"
MANIFEST, SPEC = "manifest.json", "spec.json"
"""Files of a run; a store has the first alone."""


def ask_alone(module: str, ask: Callable[[Any], object]) -> None:
    """Call `core.specs_alone.ask_alone`, which loads pydantic, and is therefore imported here."""
    from fullrank.core import specs_alone

    specs_alone.ask_alone(module, ask)


def check_runs(folders: Any) -> Any:
    """Raise `UserError` for a folder that is no run. For `argument(callback=...)`."""
    for path in _paths(folders):
        if not ((path / MANIFEST).is_file() and (path / SPEC).is_file()):  # one that is there is opened by the verb
            ask_alone("fullrank.run.manifest", methodcaller("open_manifest", path))
    return folders


def check_store(folders: Any) -> Any:
    """Raise `UserError` for a folder that is no store. For `option(callback=...)`."""
    for path in _paths(folders):
        if not (path / MANIFEST).is_file() or (path / SPEC).is_file():
            ask_alone("fullrank.data.impressions.store", methodcaller("open_store", path))
    return folders


def _paths(folders: Any) -> list[Path]:
    return [Path(path) for path in (folders if isinstance(folders, list | tuple) else [folders]) if path is not None]


def check_items(folder: Path) -> Path:
    """Raise `UserError` for a folder that has no items: that is neither a store nor a run. Also a callback."""
    return folder if (folder / MANIFEST).is_file() else check_store(folder)


def check_place(out: Path, *, overwrite: bool) -> None:
    """Raise `UserError` where a run cannot be written into a folder."""
    ask_alone("fullrank.training.run_folder", methodcaller("check_place", out, overwrite=overwrite))


def check_recipe(name: str | Path, settings: Sequence[str] | None) -> None:
    """Raise `UserError` for a recipe or a file that is not there, and for settings that it does not have."""
    if ":" not in str(name):  # a function of the user's own, which may load anything
        ask_alone(EXPERIMENT, lambda there: there.find_experiment(name).override(*settings or ()))


def check_settings(run: Path, settings: Sequence[str], *, evaluation: bool = False) -> None:
    """Raise `UserError` for settings that a run's experiment, or its evaluation, does not have."""
    from fullrank.core.readers import read_json

    def override(there: Any) -> None:
        try:
            experiment = there.Experiment.parse(read_json(run / SPEC))
        except UserError:  # the verb says what is wrong with the run
            return
        (experiment.evaluation if evaluation else experiment).override(*settings)

    if settings:
        ask_alone(EXPERIMENT, override)
