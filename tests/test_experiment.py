"""Experiments by name: recipes, functions, files; and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.core.errors import UserError
from fullrank.experiment import Experiment, find_experiment

HOME = "fullrank.recipes.sprint"


def test_a_function_is_a_recipe() -> None:
    assert find_experiment(f"{HOME}:plain").recipe == "plain"
    assert find_experiment(f"{HOME}:sprint") == find_experiment("sprint")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{HOME}:plian", "unknown recipe in fullrank.recipes.sprint 'plian'; did you mean 'plain'"),
        ("no.such.module:plain", "cannot import 'no.such.module'"),
        (":plain", "write it as module:function"),
        (f"{HOME}:", "unknown recipe in"),
        (f"{HOME}:Sprint", "unknown recipe in"),
        ("fullrank.experiment:find_experiment", "cannot be called without arguments"),
        ("fullrank.training.schedule:factor", "cannot be called without arguments"),
        ("platform:node", "returned str; a recipe returns an Experiment"),
    ],
)
def test_what_is_no_recipe_is_said(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find_experiment(name)


def test_a_file_is_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(find_experiment("sasrec").to_yaml(), encoding="utf-8")
    assert find_experiment(path) == find_experiment("sasrec")
    assert isinstance(find_experiment(path), Experiment)
