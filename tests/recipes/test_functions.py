"""Every function of a module of recipes is an experiment that can be named, written and read back."""

import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fullrank import recipes
from fullrank.run.experiment import Experiment, find_experiment


def functions(module: ModuleType) -> list[str]:
    """Names of public functions that are made there and need no argument."""
    return [
        name for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and not name.startswith("_")
        and all(p.default is not p.empty for p in inspect.signature(f).parameters.values())
    ]  # fmt: skip


NAMES = [
    f"fullrank.recipes.{path.stem}:{name}"
    for path in sorted(Path(str(recipes.__file__)).parent.glob("[a-z]*.py"))
    for name in functions(import_module(f"fullrank.recipes.{path.stem}"))
]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_found_and_comes_back_as_it_was_written(name: str) -> None:
    made = find_experiment(name)
    assert Experiment.from_text(made.to_yaml()) == made


def test_recipes_are_found() -> None:
    assert len(NAMES) > 100 and {"fullrank.recipes.fair:paper", "fullrank.recipes.din:taobaoad"} <= set(NAMES)
