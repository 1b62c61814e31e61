"""Dropout: it keeps its share and expectations exactly, and draws the same at the same place."""

import pytest
import torch

from fullrank.ops.dropout import STEPS, Dropout, draws, drop, keep_mask, keep_probability


@pytest.mark.parametrize("p", [0.1, 0.4, 0.5, 0.9])
def test_it_keeps_its_share_and_the_sum(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(301, 203, requires_grad=True)
    out = drop(x, p)
    kept = out.detach() != 0
    assert abs(kept.float().mean() - (1 - p)) < 4 * (p * (1 - p) / x.numel()) ** 0.5
    assert torch.equal(out.detach(), kept / torch.tensor(keep_probability(p)))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out.detach())


@pytest.mark.parametrize("p", [0.4, 1e-9, 1 - 1e-9])
def test_the_share_is_exactly_that_of_all_draws(p: float) -> None:
    """Over each of the 2^16 values that a draw may have; never all of them and never none."""
    every = torch.arange(-STEPS // 2, STEPS // 2, dtype=torch.int16)
    share = keep_mask(every, keep_probability(p), torch.empty(STEPS)).mean().item()
    assert share == keep_probability(p) and 0 < share < 1 and abs(share - (1 - p)) <= 1 / STEPS


def test_draws_are_even_and_know_nothing_of_each_other() -> None:
    torch.manual_seed(0)
    bits = torch.stack([(draws((400_000,)).long() >> place) & 1 for place in range(16)]).double()
    lagged = torch.cat([bits, bits.roll(1, 1), bits.roll(4, 1)])
    expected = 4.5 / bits.shape[1] ** 0.5
    assert (2 * bits.mean(1) - 1).abs().max() < expected
    assert (lagged.corrcoef() - torch.eye(len(lagged))).abs().max() < expected


def test_a_seed_gives_the_same_units_and_the_next_draw_others() -> None:
    x = torch.ones(7, 9)
    torch.manual_seed(3)
    first, second = drop(x, 0.5), drop(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(drop(x, 0.5), first) and not torch.equal(first, second)


def test_odd_shapes_types_and_layouts() -> None:
    for x in (torch.ones(0, 3), torch.ones(()), torch.ones(5, 3).T, torch.ones(3, 1, 2, dtype=torch.bfloat16)):
        out = drop(x, 0.5)
        assert out.shape == x.shape and out.dtype == x.dtype and ((out == 0) | (out == 2)).all()


def test_evaluation_drops_nothing() -> None:
    x = torch.ones(50, 50)
    assert torch.equal(Dropout(0.5).eval()(x), x) and not torch.equal(Dropout(0.5)(x), x)
    assert drop(x, 0.0) is x


def test_what_is_compiled_takes_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = torch.ones(20, 30)
    torch.manual_seed(0)
    ours = drop(x, 0.4)
    torch.manual_seed(0)
    assert torch.equal(ours, torch.nn.functional.dropout(x, 0.4))
