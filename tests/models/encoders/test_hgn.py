"""HGN against its equations, one window at a time."""

import pytest
import torch

from fullrank.models.sequential.encoders.hgn import HGN
from tiny import histories, padded, shaken
from twins import same


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("projection", [True, False])
def test_equals_its_equations(products, projection) -> None:
    """Both gates, their mean, and the sum of the events; what lies before a row adds nothing and is not counted."""
    model = shaken(HGN(window=3, products=products, projection=projection).build(4, 10)).eval()
    x = torch.randn(2, 6, 4, requires_grad=True)
    tokens = model(x, padded(histories([6, 2]))).tokens
    for row, length in enumerate((6, 2)):
        found = []
        for t in range(length):
            top, below, plain = torch.zeros(4), torch.zeros(()), torch.zeros(4)
            for place, k in enumerate(range(t - 2, t + 1)):
                if k >= 0:
                    gated = x[row, k] * (model.features.weight @ x[row, k] + model.features.bias).sigmoid()
                    score = (model.events.weight[0] @ gated + model.places[place]).sigmoid()
                    top, below, plain = top + score * gated, below + score, plain + x[row, k]
            found.append(model.projection(top / below + products * plain))
        slow = torch.stack(found)
        same(tokens[row, :length], slow, x)
