"""Every function of the SPRINT recipes builds, at the size that it names."""

import pytest

from fullrank.models.sequential.model import RecommenderModel
from fullrank.recipes import sprint as recipes
from fullrank.run.experiment import find_experiment
from tests.recipes.test_functions import functions
from tiny import catalog, histories, padded

FUNCTIONS = functions(recipes)
SMALL = [name for name in FUNCTIONS if not name.startswith("ml20m") and name not in ("beauty", "toys", "ml1m")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_an_experiment_of_its_name(name: str) -> None:
    made = find_experiment(f"{recipes.__name__}:{name}")
    assert made.recipe == name and made.evaluation.seen == "keep"
    if name.startswith("ml20m_"):
        layers, dim = recipes.LADDER[name.removeprefix("ml20m_")]
        assert (made.model.encoder.layers, made.model.dim) == (layers, dim)
        assert dim // made.model.encoder.attention.heads == 64


def test_there_is_a_function_for_every_rung() -> None:
    assert {f"ml20m_{size}" for size in recipes.LADDER} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_takes_a_step(name: str) -> None:
    model = getattr(recipes, name)().override("model.dim=8", "model.encoder.layers=1").model.build(catalog())
    assert isinstance(model, RecommenderModel)
    terms = model(padded(histories([5, 7, 3])))
    assert all(value.isfinite() for value in terms.values())
    groups = {"mojito": ["long_term"], "tpab": ["ahead_1_bootstrapped"]}.get(name, [])
    assert set(terms) == {"ahead_1", *groups, *model.penalties}
