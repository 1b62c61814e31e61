"""Every attention passes the checks of `fullrank.testing.attention`, which catch planted faults."""

from dataclasses import replace

import pytest
import torch

from fullrank.models.sequential.attention import mask
from fullrank.models.sequential.attention.hstu import HSTUAttention
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.testing import attention
from fullrank.testing.attention import DIM, LONGEST
from parts import HSTU, Softmax
from tests.components.cases import every_kind, run_checks
from tiny import shaken


class Leaky(SoftmaxAttention):
    """Planted: says that it is causal and looks ahead."""

    def forward(self, x, batch):
        q, k, v = self.project(x, batch.positions(from_end=False))
        return self.attend(q, k, v, mask(batch, causal=False))


class Blind(SoftmaxAttention):
    """Planted: bidirectional, and reads the padding."""

    def forward(self, x, batch):
        q, k, v = self.project(x, batch.positions(from_end=False))
        return self.attend(q, k, v, torch.ones_like(mask(batch, causal=False)))


class Unscaled(SoftmaxAttention):
    """Planted: its weights forget the square root."""

    def weights(self, x, batch):
        return super().weights(x * x.shape[-1] ** 0.25, batch)


class Overlooking(SoftmaxAttention):
    """Planted: a latent token does not see its stream's earlier tokens."""

    def attend_latent(self, q, prefix, own, batch):
        return super().attend_latent(q, prefix, (own[0][:, :, :, -1:], own[1][:, :, :, -1:]), batch)


class Open(SoftmaxAttention):
    """Planted: its weights show what the mask hides."""

    def weights(self, x, batch):
        return torch.ones(len(x), self.heads, x.shape[1], x.shape[1]) / x.shape[1]


class Swapped(SoftmaxAttention):
    """Planted: names the key's projection as the value's."""

    def matrices(self):
        dim = self.output.out_features
        return self.qkv.weight[dim : 2 * dim].unflatten(0, (self.heads, -1)), self.output.weight


class Idle(SoftmaxAttention):
    """Planted: a parameter that nothing reads."""

    def __init__(self, dim, max_length, spec):
        super().__init__(dim, max_length, spec)
        self.extra = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x, batch):
        return super().forward(x, batch) + 0 * self.extra


class Around(SoftmaxAttention):
    """Planted: what it reads reaches the output past the projection."""

    def apply_weights(self, weights, x):
        return super().apply_weights(weights, x) + 0.1 * x


class Peeping(SoftmaxAttention):
    """Planted: a token that looks at another sequence sees its padding."""

    def across(self, x, memory, valid, captures=None):
        return super().across(x, memory, torch.ones_like(valid), captures)


class Prophet(HSTUAttention):
    """Planted: a query asks about the time after the next event's."""

    def forward(self, x, batch):
        return super().forward(x, replace(batch, times=batch.times.roll(-1, 1)))


class Stale(HSTUAttention):
    """Planted: the padding's times are read as the row's own."""

    def forward(self, x, batch):
        return super().forward(x, replace(batch, lengths=torch.full_like(batch.lengths, batch.items.shape[1])))


class Signed(HSTUAttention):
    """Planted: notes the weights with their sign."""

    def noted(self, x, batch):
        return self.weights(x, batch) * batch.valid[:, None, :, None]

    def forward(self, x, batch):
        y = super().forward(x, batch)
        if batch.captures is not None and batch.captures.columns:
            batch.captures.columns[-1] = replace(batch.captures.columns[-1], sums=self.noted(x, batch).sum(2))
        return y


class Crowded(Signed):
    """Planted: counts the queries of the padding."""

    def noted(self, x, batch):
        return self.weights(x, batch).abs()


SOFTMAX, BOTH_SIDES, TIMED = Softmax(), Softmax(causal=False), HSTU()


@pytest.mark.parametrize(
    ("fault", "spec", "check"),
    [
        (Leaky, SOFTMAX, "causal"), (Blind, BOTH_SIDES, "padding"), (Unscaled, SOFTMAX, "apply"),
        (Swapped, SOFTMAX, "matrices"), (Around, SOFTMAX, "matrices"), (Swapped, SOFTMAX, "linear"),
        (Leaky, SOFTMAX, "project"), (Idle, SOFTMAX, "learns"), (Overlooking, SOFTMAX, "latent"),
        (Peeping, BOTH_SIDES, "across"), (Open, SOFTMAX, "weights"), (Prophet, TIMED, "causal"),
        (Stale, TIMED, "padding"), (Signed, TIMED, "columns"), (Crowded, TIMED, "columns"),
    ],
)  # fmt: skip
def test_planted_faults_are_caught(fault, spec, check) -> None:
    run = getattr(attention, f"check_{check}")
    run(shaken(spec.build(DIM, LONGEST)).eval())
    with pytest.raises(AssertionError):
        run(shaken(fault(DIM, LONGEST, spec)).eval())


@every_kind("attention")
def test_attention(pair) -> None:
    run_checks(pair)
