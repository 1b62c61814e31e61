"""The SPRINT benchmark: silent while its check is red, and its check sees a blocked attention that is wrong."""

from typing import Any

import pytest
import torch

from benchmarks.harness import Wrong
from benchmarks.sprint import Stepper, check
from benchmarks.step_memory import MODES, model_of, rows_of
from fullrank.models.sequential.attention import softmax
from fullrank.ops.column_attention import column_attention


def test_sums_without_gradient_are_noticed() -> None:
    def detached(*given: Any, **settings: Any) -> Any:
        out, sums, lse = column_attention(*given, **settings)
        return out, sums.detach(), lse

    with pytest.raises(Wrong, match="slow twin"):
        check(detached)


def test_modes_compute_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "column_attention", softmax.column_attention)  # the slow mode replaces it
    losses = [model_of(mode, dim=16)(rows_of(3, 9))["ahead_1"] for mode in MODES]
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(losses[0], losses[2])


def test_a_timed_step_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.sprint.TOKENS", 60)
    step = Stepper(model_of("blocked", dim=16), 20)
    before = step.model.items.all().clone()
    assert step() > 0 and not torch.equal(before, step.model.items.all())
