"""Models are counted before they are built, and watched while they are."""

import pytest
import torch
from torch import nn

from fullrank.ops import model_cost
from fullrank.ops.model_cost import CODE, build_to_train, build_within
from refusals import refused


def free(monkeypatch: pytest.MonkeyPatch, count: int | None) -> None:
    monkeypatch.setattr(model_cost, "available_bytes", lambda: count)


@pytest.mark.parametrize(("trained", "least"), [(True, 16_000), (False, 4_000)])
def test_weights_gradients_and_moments_count(trained: bool, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 x 10 weights in float32, four times, or once where nothing is trained."""

    def build() -> nn.Module:
        return nn.Linear(100, 10, bias=False).requires_grad_(trained)

    free(monkeypatch, least)
    assert build_to_train(build).weight.device.type == "cpu"
    free(monkeypatch, least - 1)
    with refused(CODE, "1,000"):
        build_to_train(build)


def test_tables_by_row_have_no_gradient_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 12_000)
    with refused(CODE):
        build_to_train(lambda: nn.Embedding(100, 10))
    build_to_train(lambda: nn.Embedding(100, 10), by_row=lambda table: list(table.parameters()))


def test_a_model_that_looks_at_values_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        assert float(torch.ones(1)) == 1  # a meta tensor has no value
        return nn.Linear(100, 10, bias=False)

    free(monkeypatch, 16_100)
    build_to_train(build)
    free(monkeypatch, 15_000)
    with refused(CODE):
        build_to_train(build)


def test_a_build_is_stopped_before_it_takes_the_memory() -> None:
    made = []

    def build() -> nn.Module:
        made.append(1)
        layers = nn.ModuleList(nn.Linear(2**16, 2**16) for _ in range(100))
        made.append(2)
        return layers

    with refused(CODE, "the spec of x"):
        build_within(build, 2**20, "the spec of x")
    assert made == [1]


def test_the_draws_are_those_of_a_model_built_at_once() -> None:
    torch.manual_seed(3)
    plain = nn.Linear(4, 4).weight
    torch.manual_seed(3)
    assert torch.equal(plain, build_to_train(lambda: nn.Linear(4, 4)).weight)


def test_where_nothing_is_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, None)
    assert build_to_train(lambda: nn.Linear(3, 3)).weight.shape == (3, 3)
