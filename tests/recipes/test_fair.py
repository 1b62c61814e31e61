"""The recipes of FAIR: what they share, the norms of focused attention, and the weights under mean and sum."""

from __future__ import annotations

from typing import Any

import pytest

from fullrank.experiment import Experiment, find_experiment
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.recipes import fair

PARTS = (fair.plain, fair.focus, fair.focus_noise, fair.no_focus, fair.no_noise, fair.no_information)
NORMS = (fair.softmax_norm, fair.relu_norm, fair.no_norm)


def model(made: Experiment) -> Any:
    return made.model


@pytest.mark.parametrize("recipe", [*PARTS, *NORMS, fair.paper])
def test_every_function_round_trips(recipe: Any) -> None:
    made = find_experiment(f"fullrank.recipes.fair:{recipe.__name__}")
    assert Experiment.from_text(made.to_yaml()) == made


@pytest.mark.parametrize(("recipe", "norm"), [(fair.no_norm, "none"), (fair.relu_norm, "relu_l1")])
def test_a_norm_is_the_only_difference(recipe: Any, norm: str) -> None:
    whole = find_experiment("fair")
    assert recipe() == whole.override(f"recipe={recipe.__name__}", f"model.encoder.attention.norm={norm}")
    assert model(recipe()).encoder.attention.norm == norm != model(whole).encoder.attention.norm == "softmax"
    assert fair.softmax_norm().model == whole.model


def test_alpha_and_beta_are_of_the_mean() -> None:
    """Under the mean the recipe's beta is 16 times the paper's on the sum of 16 levels."""
    small, paper = model(find_experiment("fair")), model(fair.paper())
    assert (small.task, paper.task) == (SemanticTokens(reduction="mean"), SemanticTokens(reduction="sum"))
    assert [16 * penalty.weight for penalty in small.penalties] == [1.6, 0.16]
    assert [penalty.weight for penalty in paper.penalties] == [1.0, 0.01]
