"""Experiments by name: recipes, functions, files; and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.core.errors import UserError
from fullrank.experiment import Experiment, named

HOME = "fullrank.recipes.sprint"


def test_a_function_is_a_recipe() -> None:
    assert named(f"{HOME}:plain").recipe == "plain"
    assert named(f"{HOME}:sprint") == named("sprint")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{HOME}:plian", "unknown recipe in fullrank.recipes.sprint 'plian'; did you mean 'plain'"),
        ("no.such.module:plain", "cannot import 'no.such.module'"),
        (":plain", "write it as module:function"),
        (f"{HOME}:", "unknown recipe in"),
        (f"{HOME}:Sprint", "unknown recipe in"),
        ("fullrank.experiment:named", "cannot be called without arguments"),
        ("fullrank.training.schedule:factor", "cannot be called without arguments"),
        ("platform:node", "returned str; a recipe returns an Experiment"),
    ],
)
def test_what_is_no_recipe_is_said(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        named(name)


def test_a_file_is_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(named("sasrec").to_yaml(), encoding="utf-8")
    assert named(path) == named("sasrec")
    assert isinstance(named(path), Experiment)
