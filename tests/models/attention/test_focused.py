"""Focused attention against loops in every norm, what cancels, its laws at other widths, and what its spec refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fullrank.data.batch import Captures
from fullrank.models.sequential.attention.focused import FocusedAttention
from fullrank.testing.attention import OF_MODULES
from parts import Focused, Sprint, Transformer, model_with
from refusals import refused
from tests.models.regularizers.test_moves import shop, trained, whole
from tiny import close, drawn, histories, padded, shaken

SIGNED = ("head_rms", "row_l1", "row_rms", "none")
NORMS = (*SIGNED, "softmax", "relu_l1")
EACH = pytest.mark.parametrize("norm", NORMS)
EPS = 1e-6


def build(dim=12, **settings) -> FocusedAttention:
    return shaken(FocusedAttention(dim, 16, Focused(**settings)), 0.7).eval()


def by_hand(attention, x, norm, factors) -> Tensor:
    """One row's outputs, head by head and query by query, as Eqs. 2 to 7 are printed."""
    heads, dim = attention.heads, x.shape[-1]
    e, f = attention.width, dim // heads
    qs, ks, vs = (x @ attention.qkv.weight.T).split([2 * heads * e, 2 * heads * e, dim], -1)
    out = []
    for t in range(len(x)):
        parts = []
        for h in range(heads):
            maps = []
            for i in range(2):
                at = slice((2 * h + i) * e, (2 * h + i + 1) * e)
                maps.append((ks[: t + 1, at] @ qs[t, at] / e**0.5).softmax(0))
            a = factors[0] * maps[0] - factors[1] * maps[1]
            if norm == "row_l1":
                a = a / (a.abs().sum() + EPS)
            if norm == "row_rms":
                a = a / (a.pow(2).mean() + EPS).sqrt()
            if norm == "softmax":
                a = a.exp() / a.exp().sum()
            if norm == "relu_l1":
                a = (a.clamp_min(0) + EPS * maps[0]) / (a.clamp_min(0).sum() + EPS)
            y = a @ vs[: t + 1, h * f : (h + 1) * f]
            if norm == "head_rms":
                y = y / (y.pow(2).mean() + EPS).sqrt() * attention.norm.weight
            parts.append(y)
        out.append(torch.cat(parts) @ attention.output.weight.T)
    return torch.stack(out)


@EACH
@pytest.mark.parametrize("settings", [{}, {"heads": 3, "lambda_1": 1.5, "lambda_2": 0.5}, {"qk_width": 5}])
def test_equals_its_equations(norm, settings) -> None:
    attention = build(norm=norm, **settings)
    batch = padded(histories([9, 4, 1]))
    x = drawn(3, 9, 12)
    y = attention(x, batch)
    factors = settings.get("lambda_1", 1.0), settings.get("lambda_2", 1.0)
    for b, n in enumerate(batch.lengths.tolist()):
        assert close(y[b, :n], by_hand(attention, x[b, :n], norm, factors), 1e-3)


@EACH
def test_the_first_event(norm) -> None:
    """Both maps see one key: with equal factors the difference is exactly 0, and its gradient is no NaN.

    A row that sums to one gives it weight 1.
    """
    for factors, silent in (({}, norm in SIGNED), ({"lambda_2": 0.5}, False)):
        attention = build(norm=norm, **factors).train()
        x = torch.randn(2, 5, 12, requires_grad=True)
        y = attention(x, padded(histories([5, 5])))
        assert (not y[:, 0].any()) == silent
        (gradient,) = torch.autograd.grad(y.pow(2).sum(), x)
        assert gradient.isfinite().all()


def test_what_both_maps_agree_on_cancels() -> None:
    attention = build(norm="none")
    q, k, _ = attention.qkv.weight.split(attention.sizes)
    with torch.no_grad():
        for part in (q, k):
            both = part.view(attention.heads, 2, attention.width, -1)
            both[:, 1] = both[:, 0]
    x, batch = torch.randn(1, 6, 12), padded(histories([6]))
    assert not attention.weights(x, batch).any() and not attention(x, batch).any()


def test_head_rms_has_the_direction_of_any_row_scale() -> None:
    """RMSNorm of A V does not see by what positive number a row of A was divided."""
    attention = build(norm="head_rms")
    x, batch = drawn(2, 7, 12, seed=2), padded(histories([7, 7]))
    weights = 100 * attention.weights(x, batch)  # far above eps
    for scale in (3.0, weights.abs().sum(-1, keepdim=True).clamp_min(1e-3)):
        assert close(attention.apply_weights(weights * 100 / scale, x), attention.apply_weights(weights, x), 1e-2)


@EACH
@pytest.mark.parametrize("causal", [True, False])
def test_laws_at_another_width(norm, causal) -> None:
    """The checks of the room vary every setting but the numbers that have no default value."""
    spec = Focused(norm=norm, qk_width=4, causal=causal, rope=True, heads=3)
    made = shaken(FocusedAttention(12, 16, spec)).eval()
    assert made.linear == (norm != "head_rms")
    for check in OF_MODULES:
        check(made)


def test_matrices_of_table_6() -> None:
    """Per token at d = 512: 2 (6 d^2 + 3 d 1024) products in the blocks; the heads' 32 d^2 make 14.68 M of it."""
    spec = Transformer(
        layers=2, attention=Focused(heads=4, rope=True), norm="rms", norm_at="pre", feed_forward="swiglu", inner=1024,
        positions="none",
    )  # fmt: skip
    encoder = spec.build(512, 50)
    products = sum(p.numel() for p in encoder.parameters() if p.ndim == 2)
    assert products == 2 * (6 * 512**2 + 3 * 512 * 1024) and round((products + 32 * 512**2) / 1e6, 3) == 14.680


def sprint(norm, **settings) -> float:
    model = model_with(Sprint(**settings), dim=8, encoder=Transformer(layers=2, attention=Focused(norm=norm)))
    return float(model(padded(histories([5, 7, 2])))["sprint"].detach())


@EACH
def test_sprint_reads_it(norm) -> None:
    """The columns are those of the bound, and rows enter by `exact_bound` unless they sum to one; sums behind dropout
    are refused."""
    assert math.isfinite(sprint(norm))
    if norm in SIGNED:
        assert math.isfinite(sprint(norm, exact_bound=True)) and sprint(norm) != sprint(norm, exact_bound=True)
    else:
        with refused("setting-without-effect", "exact_bound", "FocusedAttention"):
            sprint(norm, exact_bound=True)
    with refused("columns-not-captured", "dropped_weights=false"):
        sprint(norm, dropped_weights=True)


@EACH
def test_noted_columns_bound_the_norm(norm) -> None:
    """|A|_2^2 <= largest column sum times largest row sum of what is noted, for every norm."""
    attention, batch = build(norm=norm), padded(histories([9, 6]))
    x, kept = torch.randn(2, 9, 12), []
    attention(x, replace(batch, captures=Captures(columns=kept)))
    (noted,) = kept
    assert (noted.rows is not None) == (norm in SIGNED)
    largest = torch.ones(2, 2) if noted.rows is None else noted.rows.amax(-1)
    shown = attention.weights(x, batch) * batch.valid[:, None, :, None]
    assert (torch.linalg.matrix_norm(shown, 2) ** 2 <= noted.sums.amax(-1) * largest + 1e-5).all()


def test_what_is_refused() -> None:
    with refused("width-not-divisible", "focused", 8, 3):
        Focused(heads=3).build(8, 10)
    with refused("width-not-even", "focused", 3):
        Focused(qk_width=3, rope=True).build(8, 10)
    with refused("invalid-setting", "lambda_2"):
        Focused.parse({"kind": "focused", "lambda_2": 0})


@pytest.mark.parametrize("norm", SIGNED)
def test_signed_rows_lose_the_mean(norm) -> None:
    """Of a history whose values are all alike they keep nothing; the other norms sum to one, as the checks have it."""
    attention = build(norm=norm)
    sums = attention.weights(torch.randn(1, 7, 12), padded(histories([7]))).sum(-1)
    assert not attention.rows_sum_to_one and sums.abs().max() < 1e-4


@pytest.mark.parametrize("norm", ["head_rms", "relu_l1"])
def test_it_learns_what_follows_what(norm) -> None:
    """200 steps on histories in which half of the events follow from the one before: far above popularity."""
    encoder = Transformer(layers=1, attention=Focused(norm=norm), dropout=0.0)  # type: ignore[arg-type]
    model = trained(encoder=encoder).eval()
    with torch.no_grad():
        (q,) = whole(model).queries
        found = (q.vectors @ q.table.all().T).topk(3).indices
    popular = torch.as_tensor(np.bincount(shop().ravel())).topk(3).indices
    hits, blind = ((some == q.targets[:, None]).any(1).float().mean() for some in (found, popular))
    assert hits > 1.3 * blind, f"{hits:.3f} against {blind:.3f} of the most popular"
