"""Specs that are made without torch are those of the modules: the same fields, bounds, defaults and sentences."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from fullrank.core import registry
from fullrank.core.errors import UserError
from fullrank.core.registry import kinds
from fullrank.core.specs_alone import ask_alone, module_alone
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.semantic_ids.spec import Encode

EXPERIMENT = "fullrank.run.experiment"


def alone(ask: Callable[[Any], Any], module: str = EXPERIMENT) -> Any:
    """`ask_alone` as in a process that has not loaded torch, and cannot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        return ask_alone(module, ask)


def test_every_component_has_the_same_settings() -> None:
    """The schema of an experiment holds every field, bound, default and docstring of every kind."""
    assert alone(lambda there: there.Experiment.model_json_schema()) == Experiment.model_json_schema()
    codes = alone(lambda there: there.Encode.model_json_schema(), "fullrank.semantic_ids.spec")
    assert codes == Encode.model_json_schema()


def test_every_recipe_is_the_same() -> None:
    for name in kinds("recipes"):
        found = alone(lambda there, name=name: there.find_experiment(name).dump())
        assert found == find_experiment(name).dump(), name


@pytest.mark.parametrize(
    "setting", ["model.dimm=8", "model.dim=-8", "model.loss=bcee", "model.loss.kind=gbce", "evaluation.negatives=9"]
)
def test_a_mistake_has_the_same_sentence(setting: str) -> None:
    def said(find: Callable[[str], Any]) -> str:
        try:
            return str(find("sasrec").override(setting).dump())
        except UserError as error:
            return f"{error.code}: {error}"

    assert alone(lambda there: said(there.find_experiment)) == said(find_experiment)


def test_what_computes_is_not_there() -> None:
    there = module_alone("fullrank.models.sequential.model")
    assert there.Recommender is not None and not hasattr(there, "RecommenderModel") and not hasattr(there, "torch")
    assert alone(lambda there: there.RecommenderModel, "fullrank.models.sequential.model") is None


def test_kinds_are_looked_up_as_before_afterwards() -> None:
    before = registry.load
    with pytest.raises(UserError):
        alone(lambda there: there.find_experiment("sasrek"))
    assert registry.load is before


def test_a_process_with_torch_asks_the_module_itself() -> None:
    assert ask_alone(EXPERIMENT, lambda there: there.Experiment) is Experiment
