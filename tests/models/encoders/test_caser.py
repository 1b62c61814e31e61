"""Caser against its equations, one window at a time."""

import torch
from torch import Tensor

from fullrank.models.sequential.encoders.caser import Caser
from tiny import histories, padded, shaken
from twins import same


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


def test_equals_its_equations() -> None:
    model = shaken(Caser(window=4, horizontal=3, vertical=2, activation="tanh").build(5, 10)).eval()
    x = torch.randn(2, 7, 5, requires_grad=True)
    tokens = model(x, padded(histories([7, 3]))).tokens
    for row, length in enumerate((7, 3)):
        whole = torch.cat([torch.zeros(3, 5), x[row]])
        slow = torch.stack([state_reference(model, whole[t : t + 4]) for t in range(length)])
        same(tokens[row, :length], slow, x)


def test_reads_no_further_than_its_window() -> None:
    model = shaken(Caser(window=3).build(4, 10)).eval()
    x, batch = torch.randn(1, 8, 4), padded(histories([8]))
    other = x.clone()
    other[:, 2] += 1
    moved = (model(x, batch).tokens != model(other, batch).tokens).any(-1)[0]
    assert moved.tolist() == [False, False, True, True, True, False, False, False]
