"""The GRU, which is torch's; Caser and HGN against their equations, one window at a time."""

import pytest
import torch
from torch import Tensor

from fullrank.models.sequential.encoders.caser import Caser
from fullrank.models.sequential.encoders.hgn import HGN
from parts import GRU
from tiny import close, histories, padded, shaken
from twins import same


def test_the_gru_is_the_published_one_and_a_map_back_to_the_width() -> None:
    model = shaken(GRU(hidden=5).build(4, 10)).eval()
    x = torch.randn(1, 6, 4)
    assert close(model(x, padded(histories([6]))).tokens, model.back(model.gru(x)[0]))


def test_the_gru_has_no_map_where_the_widths_agree() -> None:
    model = GRU().build(4, 10)
    assert [name for name, _ in model.named_parameters() if not name.startswith("gru.")] == []


def state_reference(model, image) -> Tensor:
    """z of one window [L, D]: every filter at every place of it, written out."""
    found = []
    for v in range(len(model.columns.weight)):
        found.append((model.columns.weight[v][:, None] * image).sum(0) + model.columns.bias[v])
    vertical = torch.stack(found, 1).flatten()
    horizontal = []
    for height, convolution in enumerate(model.rows, 1):
        for kernel, bias in zip(convolution.weight, convolution.bias, strict=True):  # type: ignore[arg-type]
            places = range(model.window - height + 1)
            values = [(kernel.T * image[i : i + height]).sum() + bias for i in places]
            horizontal.append(torch.stack(values).relu().max())
    return model.join(torch.cat([vertical, torch.stack(horizontal)])).tanh()


def test_caser_equals_its_equations() -> None:
    model = shaken(Caser(window=4, horizontal=3, vertical=2, activation="tanh").build(5, 10)).eval()
    x = torch.randn(2, 7, 5, requires_grad=True)
    tokens = model(x, padded(histories([7, 3]))).tokens
    for row, length in enumerate((7, 3)):
        whole = torch.cat([torch.zeros(3, 5), x[row]])
        slow = torch.stack([state_reference(model, whole[t : t + 4]) for t in range(length)])
        same(tokens[row, :length], slow, x)


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("projection", [True, False])
def test_hgn_equals_its_equations(products, projection) -> None:
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
