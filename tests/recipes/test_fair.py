"""The recipes of FAIR: what they share, the norms of focused attention, and the weights under mean and sum."""

from typing import Any

import pytest

from fullrank.experiment import find_experiment
from fullrank.models.sequential.objectives.tasks.semantic_tokens import SemanticTokens
from fullrank.recipes import fair
from tests.recipes.conftest import model


@pytest.mark.parametrize(("recipe", "norm"), [(fair.no_norm, "none"), (fair.relu_norm, "relu_l1")])
def test_a_norm_is_the_only_difference(recipe: Any, norm: str) -> None:
    whole = find_experiment("fair")
    assert recipe() == whole.override(f"recipe={recipe.__name__}", f"model.encoder.attention.norm={norm}")
    assert model(recipe()).encoder.attention.norm == norm != model(whole).encoder.attention.norm == "softmax"
    assert fair.softmax_norm().model == whole.model


def test_alpha_and_beta_are_of_the_mean() -> None:
    """Under the mean the recipe's beta is 16 times the paper's on the sum of 16 levels."""
    small, paper = model("fair"), model(fair.paper())
    assert (small.task, paper.task) == (SemanticTokens(reduction="mean"), SemanticTokens(reduction="sum"))
    assert [16 * penalty.weight for penalty in small.penalties] == [1.6, 0.16]
    assert [penalty.weight for penalty in paper.penalties] == [1.0, 0.01]
