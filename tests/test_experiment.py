"""Experiments by name: recipes, functions, files; and what a wrong one is told."""

from pathlib import Path

import pytest

from fullrank.run.experiment import find_experiment
from refusals import refused

HOME = "fullrank.recipes.sprint"


def test_a_function_is_a_recipe() -> None:
    assert find_experiment(f"{HOME}:plain").recipe == "plain"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{HOME}:plian", ("unknown-recipe", "fullrank.recipes.sprint", "plian", "plain")),
        ("no.such.module:plain", ("recipe-not-importable", "no.such.module")),
        (":plain", ("recipe-not-importable",)),
        (f"{HOME}:", ("unknown-recipe",)),
        (f"{HOME}:Sprint", ("unknown-recipe",)),
        ("fullrank.run.experiment:find_experiment", ("recipe-not-callable",)),
        ("fullrank.training.optim:factor", ("unknown-recipe", "lr_factor")),
        ("platform:node", ("not-an-experiment",)),
    ],
)
def test_what_is_no_recipe_is_said(name: str, said: tuple[str, ...]) -> None:
    with refused(*said):
        find_experiment(name)


def test_a_file_is_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(find_experiment("sasrec").to_yaml(), encoding="utf-8")
    assert find_experiment(path) == find_experiment("sasrec")
