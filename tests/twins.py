"""What a fast form and its slow twin share: their values and their gradients."""

from typing import Any

import torch
from torch import Tensor

from tiny import close


def same(fast: Tensor, slow: Tensor, *inputs: Any, tolerance: float = 1e-4) -> None:
    """Values agree, and gradients by the inputs (of a sum in which every element has a weight of its own) do."""
    assert close(fast, slow, max(tolerance / 10, 2e-5)), "values differ"
    weight = torch.randn(fast.shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = (
        torch.autograd.grad((one * weight).sum(), inputs, retain_graph=True, materialize_grads=True)
        for one in (fast, slow)
    )
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert close(a, b, tolerance), f"the gradient by input {place} differs"
