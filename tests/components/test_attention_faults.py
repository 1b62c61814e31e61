"""The checks of attention catch planted faults: each fails on an attention that breaks it, and on no sound one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fullrank.data.batch import Batch
from fullrank.models.sequential.attention import mask
from fullrank.models.sequential.attention.hstu import HSTU, HSTUAttention
from fullrank.models.sequential.attention.softmax import Softmax, SoftmaxAttention
from fullrank.testing.attention import (
    DIM,
    check_across,
    check_apply,
    check_causal,
    check_columns,
    check_effects,
    check_latent,
    check_learns,
    check_linear,
    check_matrices,
    check_padding,
    check_project,
    check_weights,
)  # fmt: skip
from tiny import shaken


class Leaky(SoftmaxAttention):
    """Planted: says that it is causal and looks ahead."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        q, k, v = self.project(x, batch.positions(from_end=False))
        return self.attend(q, k, v, mask(batch, causal=False))


class Blind(SoftmaxAttention):
    """Planted: bidirectional, and reads the padding."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        q, k, v = self.project(x, batch.positions(from_end=False))
        return self.attend(q, k, v, torch.ones_like(mask(batch, causal=False)))


class Unscaled(SoftmaxAttention):
    """Planted: its weights forget the square root."""

    def weights(self, x: Tensor, batch: Batch) -> Tensor:
        return super().weights(x * x.shape[-1] ** 0.25, batch)


class Overlooking(SoftmaxAttention):
    """Planted: a latent token does not see its stream's earlier tokens."""

    def attend_latent(self, q: Tensor, prefix: Any, own: Any, batch: Batch) -> Tensor:
        return super().attend_latent(q, prefix, (own[0][:, :, :, -1:], own[1][:, :, :, -1:]), batch)


class Open(SoftmaxAttention):
    """Planted: its weights show what the mask hides."""

    def weights(self, x: Tensor, batch: Batch) -> Tensor:
        return torch.ones(len(x), self.heads, x.shape[1], x.shape[1]) / x.shape[1]


class Swapped(SoftmaxAttention):
    """Planted: names the key's projection as the value's."""

    def matrices(self) -> tuple[Tensor, Tensor]:
        dim = self.output.out_features
        return self.qkv.weight[dim : 2 * dim].unflatten(0, (self.heads, -1)), self.output.weight


class Idle(SoftmaxAttention):
    """Planted: a parameter that nothing reads."""

    def __init__(self, dim: int, max_length: int, spec: Softmax):
        super().__init__(dim, max_length, spec)
        self.extra = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return super().forward(x, batch) + 0 * self.extra


class Around(SoftmaxAttention):
    """Planted: what it reads reaches the output past the projection."""

    def apply_weights(self, weights: Tensor, x: Tensor) -> Tensor:
        return super().apply_weights(weights, x) + 0.1 * x


class Peeping(SoftmaxAttention):
    """Planted: a token that looks at another sequence sees its padding."""

    def across(self, x: Tensor, memory: Any, valid: Tensor, captures: Any = None) -> Tensor:
        return super().across(x, memory, torch.ones_like(valid), captures)


class Deaf(Softmax):
    """Planted: a setting that nothing reads."""

    unread: bool = False


class Prophet(HSTUAttention):
    """Planted: a query asks about the time after the next event's."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        assert batch.times is not None
        return super().forward(x, replace(batch, times=batch.times.roll(-1, 1)))


class Stale(HSTUAttention):
    """Planted: the padding's times are read as the row's own."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return super().forward(x, replace(batch, lengths=torch.full_like(batch.lengths, batch.items.shape[1])))


class Signed(HSTUAttention):
    """Planted: notes the weights with their sign."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        y = super().forward(x, batch)
        if batch.captures is not None and batch.captures.columns:
            sums = (self.weights(x, batch) * batch.valid[:, None, :, None]).sum(2)
            batch.captures.columns[-1] = replace(batch.captures.columns[-1], sums=sums)
        return y


class Crowded(HSTUAttention):
    """Planted: counts the queries of the padding."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        y = super().forward(x, batch)
        if batch.captures is not None and batch.captures.columns:
            batch.captures.columns[-1] = replace(batch.captures.columns[-1], sums=self.weights(x, batch).abs().sum(2))
        return y


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Prophet, check_causal),
        (Stale, check_padding),
        (Signed, check_columns),
        (Crowded, check_columns),
    ],
)
def test_planted_faults_of_times_and_columns_are_caught(fault: type, check: Callable[[Any], None]) -> None:
    check(shaken(HSTUAttention(DIM, 16, HSTU())).eval())
    with pytest.raises(AssertionError):
        check(shaken(fault(DIM, 16, HSTU())).eval())


def test_a_setting_without_effect_is_caught() -> None:
    with pytest.raises(AssertionError, match="has no effect"):
        check_effects(Deaf(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("fault", "causal", "check"),
    [
        (Leaky, True, check_causal),
        (Blind, False, check_padding),
        (Unscaled, True, check_apply),
        (Swapped, True, check_matrices),
        (Around, True, check_matrices),
        (Swapped, True, check_linear),
        (Leaky, True, check_project),
        (Idle, True, check_learns),
        (Overlooking, True, check_latent),
        (Peeping, False, check_across),
        (Open, True, check_weights),
    ],
)
def test_planted_faults_are_caught(fault: type, causal: bool, check: Callable[[Any], None]) -> None:
    check(shaken(SoftmaxAttention(DIM, 16, Softmax(causal=causal))).eval())
    with pytest.raises(AssertionError):
        check(shaken(fault(DIM, 16, Softmax(causal=causal))).eval())
