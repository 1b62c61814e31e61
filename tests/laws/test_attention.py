"""Laws of every attention: the future and the padding are invisible, and its weights are what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discover import Pair, everything, name
from fullrank.attention import mask
from fullrank.attention.softmax import Softmax, SoftmaxAttention
from fullrank.batch import Batch, Taps
from tiny import built, close, histories, padded, plain, reachable, shaken

DIM = 12
LENGTHS = (1, 2, 5, 9, 3)
SUM_TO_ONE = {"softmax"}
"""Kinds whose rows of weights are a distribution."""
ALL = pytest.mark.parametrize("pair", everything("attention"), ids=name)


def modules(pair: Pair) -> Iterator[tuple[Any, Any]]:
    return built(reachable(plain(pair)), DIM, 16)


def case(extra: int = 0) -> tuple[Tensor, Batch]:
    batch = padded(histories(LENGTHS), extra=extra)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(len(LENGTHS), 40, DIM, generator=generator)
    return x[:, : batch.items.shape[1]], batch


def check_causal(attention: Any) -> None:
    """What comes after a position leaves its output as it is."""
    if not attention.causal:
        return
    x, batch = case()
    whole = attention(x, batch)
    for t in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, t:] += 3
        seen = batch.valid & (torch.arange(x.shape[1]) < t)
        assert close(attention(changed, batch)[seen], whole[seen]), f"position {t} is seen before it happens"


def check_padding(attention: Any) -> None:
    """What stands behind a row's end, and how much of it, leaves its valid outputs as they are."""
    x, batch = case()
    whole = attention(x, batch)
    assert whole.shape == x.shape
    other = torch.where(batch.valid[..., None], x, 7.0)
    assert close(attention(other, batch)[batch.valid], whole[batch.valid]), "padding is seen"
    longer, wide = case(extra=4)
    assert close(attention(longer, wide)[wide.valid], whole[batch.valid]), "extra padding is seen"
    for row, length in enumerate(LENGTHS):
        one = padded([batch.items[row, :length].tolist()])
        assert close(attention(x[row : row + 1, :length], one)[0], whole[row, :length]), f"row {row} differs when alone"


def check_weights(attention: Any, *, distribution: bool) -> None:
    x, batch = case()
    weights = attention.weights(x, batch)
    assert weights.shape == (len(x), attention.heads, x.shape[1], x.shape[1])
    allowed = mask(batch, causal=attention.causal)
    queries = batch.valid[:, None, :, None]
    assert not weights.masked_select(queries & ~allowed).any(), "a hidden place has weight"
    if distribution:
        assert (weights.masked_select(queries & allowed) > 0).all(), "a visible place has none"
        assert close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def check_apply(attention: Any) -> None:
    x, batch = case()
    again = attention.apply_weights(attention.weights(x, batch), x)
    assert close(again[batch.valid], attention(x, batch)[batch.valid])


def check_matrices(attention: Any) -> None:
    """`apply_weights` is, up to biases, the sum over heads of output @ value @ mixed tokens."""
    x, batch = case()
    value, output = attention.matrices()
    weights = attention.weights(x, batch)
    mixed = torch.einsum("bhts,bsd,hed->bthe", weights, x, value).flatten(2)
    linear = attention.apply_weights(weights, x) - attention.apply_weights(weights, torch.zeros_like(x))
    assert close((mixed @ output.T)[batch.valid], linear[batch.valid], 1e-4)


def check_project(attention: Any) -> None:
    """`attend` on what `project` gives, under the mask, is the module: what a cache relies on."""
    x, batch = case()
    projected = attention.project(x, batch.positions(from_end=False))
    again = attention.attend(*projected, mask(batch, causal=attention.causal))
    assert close(again[batch.valid], attention(x, batch)[batch.valid])


def check_columns(attention: Any) -> None:
    """Where it notes column sums, they are those of its weights, in value and gradient, and its output is the same."""
    x, batch = case()
    x.requires_grad_()
    noting = replace(batch, taps=Taps(frozenset({"columns"})))
    output = attention(x, noting)
    assert close(output[batch.valid], attention(x, batch)[batch.valid])
    for noted in noting.taps.columns:  # type: ignore[union-attr]
        wanted = (attention.weights(x, batch).abs() * batch.valid[:, None, :, None]).sum(2)
        assert noted.module is attention and torch.equal(noted.valid, batch.valid)
        assert close(noted.sums, wanted * batch.valid[:, None])
        (found,) = torch.autograd.grad(noted.sums.square().sum(), x, retain_graph=True)
        (slow,) = torch.autograd.grad(wanted.square().sum(), x)
        assert close(found[batch.valid], slow[batch.valid], 1e-4)


def check_learns(attention: Any) -> None:
    x, batch = case()
    attention.train()
    attention(x, batch)[batch.valid].pow(2).sum().backward()
    for label, parameter in attention.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
        assert parameter.grad.any(), f"{label} does not learn"
    attention.eval()


@ALL
@pytest.mark.parametrize(
    "check", [check_causal, check_padding, check_apply, check_matrices, check_project, check_columns, check_learns]
)
def test_laws(pair: Pair, check: Callable[[Any], None]) -> None:
    for spec, attention in modules(pair):
        try:
            check(attention)
        except AssertionError as error:
            raise AssertionError(f"{spec!r}: {error}") from error


@ALL
def test_weights(pair: Pair) -> None:
    for _, attention in modules(pair):
        check_weights(attention, distribution=pair[1] in SUM_TO_ONE)


@ALL
def test_rows_of_length_one(pair: Pair) -> None:
    batch = padded([[3], [4]])
    for _, attention in modules(pair):
        y = attention(torch.randn(2, 1, DIM), batch)
        assert y.shape == (2, 1, DIM) and y.isfinite().all()


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

    def __init__(self, dim: int, spec: Softmax):
        super().__init__(dim, spec)
        self.extra = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return super().forward(x, batch) + 0 * self.extra


class Uneven(SoftmaxAttention):
    """Planted: its columns are those of other weights."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        y = super().forward(x, batch)
        if batch.taps is not None:
            batch.taps.columns[-1] = replace(batch.taps.columns[-1], sums=batch.taps.columns[-1].sums.flip(1))
        return y


@pytest.mark.parametrize(
    ("fault", "causal", "check"),
    [
        (Leaky, True, check_causal),
        (Blind, False, check_padding),
        (Unscaled, True, check_apply),
        (Swapped, True, check_matrices),
        (Leaky, True, check_project),
        (Idle, True, check_learns),
        (Uneven, False, check_columns),
        (Open, True, lambda attention: check_weights(attention, distribution=False)),
    ],
)
def test_planted_faults_are_caught(fault: type, causal: bool, check: Callable[[Any], None]) -> None:
    check(shaken(SoftmaxAttention(DIM, Softmax(causal=causal))).eval())
    with pytest.raises(AssertionError):
        check(shaken(fault(DIM, Softmax(causal=causal))).eval())
