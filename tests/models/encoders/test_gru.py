"""The GRU against its equations."""

from __future__ import annotations

import torch

from fullrank.models.sequential.encoders.gru import GRU
from tiny import close, histories, padded, shaken


def test_equals_its_equations() -> None:
    """Reset, update and new gates (Cho et al. 2014) step by step, and the linear map back to the width."""
    model = GRU(hidden=5).build(4, 10)
    shaken(model).eval()
    batch = padded(histories([6]))
    x = torch.randn(1, 6, 4)
    g = model.gru
    h = torch.zeros(5)
    for t in range(6):
        into = (g.weight_ih_l0 @ x[0, t] + g.bias_ih_l0).chunk(3)
        back = (g.weight_hh_l0 @ h + g.bias_hh_l0).chunk(3)
        reset, update = (into[0] + back[0]).sigmoid(), (into[1] + back[1]).sigmoid()
        h = (1 - update) * (into[2] + reset * back[2]).tanh() + update * h
        assert close(model(x, batch).tokens[0, t], model.back(h))


def test_no_map_where_the_widths_agree() -> None:
    model = GRU().build(4, 10)
    assert [name for name, _ in model.named_parameters() if not name.startswith("gru.")] == []
