"""Starting values: the module's own linear layers and tables, and nothing below them."""

import torch
from torch import nn

from fullrank.models.initial import STD, start_small


def test_start_small() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(50, 60))
    parts = {"linear": nn.Linear(100, 200), "table": nn.Embedding(300, 40), "norm": nn.LayerNorm(5), "in": inner}
    module = nn.ModuleDict(parts)
    below = inner[0].weight.clone()
    start_small(module)
    for weight in (module["linear"].weight.detach(), module["table"].weight.detach()):
        assert abs(float(weight.std()) - STD) < 0.05 * STD
        assert abs(float(weight.mean())) < 0.05 * STD
    assert not module["linear"].bias.any()
    assert torch.equal(module["norm"].weight, torch.ones(5))
    assert torch.equal(inner[0].weight, below)
