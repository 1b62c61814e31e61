"""Focused attention against loops in every norm, what cancels, its laws at other widths, and what its spec refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fullrank.data.batch import Batch, Captures, ColumnSums
from fullrank.models.sequential.attention.focused import Focused, FocusedAttention
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.models.sequential.regularizers.sprint import Sprint
from fullrank.testing.attention import (
    check_apply,
    check_causal,
    check_columns,
    check_latent,
    check_learns,
    check_linear,
    check_matrices,
    check_padding,
    check_project,
    check_weights,
)  # fmt: skip
from refusals import refused
from tests.models.regularizers.test_moves import shop, trained, whole
from tiny import catalog, close, histories, padded, shaken

SIGNED = ("head_rms", "row_l1", "row_rms", "none")
NORMS = (*SIGNED, "softmax", "relu_l1")
EPS = 1e-6


def build(dim: int = 12, **settings: Any) -> FocusedAttention:
    attention = FocusedAttention(dim, 16, Focused(**settings))
    shaken(attention, 0.7)
    return attention.eval()


def by_hand(attention: FocusedAttention, x: Tensor, norm: str, factors: tuple[float, float]) -> Tensor:
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
                assert attention.norm is not None
                y = y / (y.pow(2).mean() + EPS).sqrt() * attention.norm.weight
            parts.append(y)
        out.append(torch.cat(parts) @ attention.output.weight.T)
    return torch.stack(out)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("settings", [{}, {"heads": 3, "lambda_1": 1.5, "lambda_2": 0.5}, {"qk_width": 5}])
def test_equals_its_equations(norm: str, settings: dict[str, Any]) -> None:
    attention = build(norm=norm, **settings)
    batch = padded(histories([9, 4, 1]))
    x = torch.randn(3, 9, 12, generator=torch.Generator().manual_seed(0))
    y = attention(x, batch)
    factors = settings.get("lambda_1", 1.0), settings.get("lambda_2", 1.0)
    for b, n in enumerate(batch.lengths.tolist()):
        assert close(y[b, :n], by_hand(attention, x[b, :n], norm, factors), 1e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_the_first_event(norm: str) -> None:
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
    x, batch = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(2)), padded(histories([7, 7]))
    weights = 100 * attention.weights(x, batch)  # far above eps
    for scale in (3.0, weights.abs().sum(-1, keepdim=True).clamp_min(1e-3)):
        assert close(attention.apply_weights(weights * 100 / scale, x), attention.apply_weights(weights, x), 1e-2)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "check",
    [check_causal, check_padding, check_apply, check_matrices, check_project, check_learns, check_latent,
     check_columns, check_weights],
)  # fmt: skip
def test_laws_at_another_width(norm: str, check: Callable[[Any], None]) -> None:
    """The laws vary every setting but the numbers that have no default value."""
    for causal in (True, False):
        spec = Focused(norm=norm, qk_width=4, causal=causal, rope=True, heads=3)  # type: ignore[arg-type]
        check(shaken(FocusedAttention(12, 16, spec)).eval())


@pytest.mark.parametrize("norm", ["row_l1", "row_rms", "none", "softmax", "relu_l1"])
def test_without_a_head_norm_it_is_linear_in_the_values(norm: str) -> None:
    assert build(norm=norm).linear
    check_linear(build(norm=norm))
    claimed = build(norm="head_rms")
    assert not claimed.linear
    claimed.linear = True
    with pytest.raises(AssertionError):
        check_linear(claimed)


class Apart(FocusedAttention):
    """Planted: normalises by the number of places instead of the keys that a query sees."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, places: Any = None) -> Tensor:
        return super().attend(q, k, v, allowed) / k.shape[2]


class Swapped(FocusedAttention):
    """Planted: subtracts the first map from the second where it shows its weights."""

    def weights(self, x: Tensor, batch: Batch) -> Tensor:
        return -super().weights(x, batch)


class Netted(FocusedAttention):
    """Planted: notes the signed sums, in which what was given and taken cancel."""

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        y = super().forward(x, batch)
        if batch.captures is not None and batch.captures.columns:
            sums = (self.weights(x, batch) * batch.valid[:, None, :, None]).sum(2)
            batch.captures.columns[-1] = replace(batch.captures.columns[-1], sums=sums)
        return y


class Single(FocusedAttention):
    """Planted: a latent token mixes by the first map alone."""

    def attend_latent(self, q: Tensor, prefix: Any, own: Any, batch: Batch) -> Tensor:
        e = self.width
        quiet = torch.cat([q[..., :e], 0 * q[..., e:]], -1)
        return super().attend_latent(quiet, prefix, own, batch)


@pytest.mark.parametrize(
    ("fault", "check"),
    [(Apart, check_padding), (Swapped, check_apply), (Netted, check_columns), (Single, check_latent)],
)
def test_planted_faults_are_caught(fault: type, check: Callable[[Any], None]) -> None:
    check(shaken(FocusedAttention(12, 16, Focused())).eval())
    with pytest.raises(AssertionError):
        check(shaken(fault(12, 16, Focused())).eval())


def test_matrices_of_table_6() -> None:
    """Per token at d = 512: 2 (6 d^2 + 3 d 1024) products in the blocks; the heads' 32 d^2 make 14.68 M of it."""
    spec = Transformer(
        layers=2, attention=Focused(heads=4, rope=True), norm="rms", norm_at="pre", feed_forward="swiglu", inner=1024,
        positions="none",
    )  # fmt: skip
    encoder = spec.build(512, 50)
    products = sum(p.numel() for p in encoder.parameters() if p.ndim == 2)
    assert products == 2 * (6 * 512**2 + 3 * 512 * 1024) and round((products + 32 * 512**2) / 1e6, 3) == 14.680


def test_half_the_width_costs_as_much_as_softmax() -> None:
    focused, softmax = build(64, heads=4, qk_width=8, norm="none"), 4 * 64**2
    assert sum(p.numel() for p in focused.parameters()) == softmax


def test_sprint_reads_it() -> None:
    """The columns are those of the bound, and rows enter by `exact_bound` unless they sum to one; sums behind dropout
    are refused."""
    for norm in NORMS:
        encoder = Transformer(layers=2, attention=Focused(norm=norm))  # type: ignore[arg-type]
        values = []
        for exact in (False, True):
            if exact and norm not in SIGNED:
                with refused("setting-without-effect", "exact_bound", "FocusedAttention"):
                    Recommender(dim=8, encoder=encoder, penalties=(Sprint(exact_bound=True),)).build(catalog())
                continue
            spec = Recommender(dim=8, max_length=12, encoder=encoder, penalties=(Sprint(exact_bound=exact),))
            torch.manual_seed(0)
            model = spec.build(catalog())
            shaken(model)
            terms = model(padded(histories([5, 7, 2])))
            assert terms["sprint"].isfinite()
            values.append(float(terms["sprint"].detach()))
        assert len(set(values)) == 1 + (norm in SIGNED)
    with refused("columns-not-captured", "dropped_weights=false"):
        Recommender(dim=8, encoder=encoder, penalties=(Sprint(dropped_weights=True),)).build(catalog())


def test_noted_columns_bound_the_norm() -> None:
    """|A|_2^2 <= largest column sum times largest row sum of what is noted, for every norm."""
    for norm in NORMS:
        attention, batch = build(norm=norm), padded(histories([9, 6]))
        x, kept = torch.randn(2, 9, 12), list[ColumnSums]()
        attention(x, replace(batch, captures=Captures(columns=kept)))
        (noted,) = kept
        assert isinstance(noted, ColumnSums) and (noted.rows is not None) == (norm in SIGNED)
        largest = torch.ones(2, 2) if noted.rows is None else noted.rows.amax(-1)
        shown = attention.weights(x, batch) * batch.valid[:, None, :, None]
        sigma = torch.linalg.matrix_norm(shown, 2)
        assert (sigma**2 <= noted.sums.amax(-1) * largest + 1e-5).all()


def test_a_reasoner_thinks_with_it() -> None:
    for norm in NORMS:
        spec = Recommender(dim=8, max_length=12, encoder=Transformer(attention=Focused(norm=norm)),  # type: ignore[arg-type]
                           task=LastItem(), reasoner=PLR())  # fmt: skip
        model = spec.build(catalog())
        shaken(model)
        assert model(padded(histories([5, 7, 2])))["last"].isfinite()


def test_what_is_refused() -> None:
    with refused("width-not-divisible", "focused", 8, 3):
        Focused(heads=3).build(8, 10)
    with refused("width-not-even", "focused", 3):
        Focused(qk_width=3, rope=True).build(8, 10)
    with refused("invalid-setting", "lambda_2"):
        Focused.parse({"kind": "focused", "lambda_2": 0})


def test_softmax_and_relu_rows_pass_the_mean() -> None:
    """A history whose values are all alike: rows that sum to one pass the value on, signed rows lose it."""
    for norm in NORMS:
        attention, batch = build(norm=norm), padded(histories([7]))
        kept = attention.weights(torch.randn(1, 7, 12), batch).sum(-1)
        if norm in ("softmax", "relu_l1"):
            assert attention.rows_sum_to_one and close(kept, torch.ones_like(kept), 1e-5)
        else:
            assert not attention.rows_sum_to_one and kept.abs().max() < 1e-4


@pytest.mark.parametrize("norm", NORMS)
def test_it_learns_what_follows_what(norm: str) -> None:
    """200 steps on histories in which half of the events follow from the one before: far above popularity."""
    encoder = Transformer(layers=1, attention=Focused(norm=norm), dropout=0.0)  # type: ignore[arg-type]
    model = trained(encoder=encoder).eval()
    with torch.no_grad():
        (q,) = whole(model).queries
        found = (q.vectors @ q.table.all().T).topk(3).indices
    popular = torch.as_tensor(np.bincount(shop().ravel())).topk(3).indices
    hits, blind = ((some == q.targets[:, None]).any(1).float().mean() for some in (found, popular))
    assert hits > 1.3 * blind, f"{hits:.3f} against {blind:.3f} of the most popular"
